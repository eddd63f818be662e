"""Small clusters: threads of this process where that is enough, processes where something is killed."""

from __future__ import annotations

import contextlib
import logging

EQUAL = 1e-10  # what a cluster may differ by; sums are taken in another order, tables span other tiles


@contextlib.contextmanager
def small_cluster(workers=3, **options):
    import distributed

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    settings = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    settings |= {"protocol": "tcp://"}  # what travels is serialised, as between machines
    with (
        distributed.LocalCluster(n_workers=workers, **{**settings, **options}) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster, client
