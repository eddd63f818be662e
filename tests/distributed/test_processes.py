"""Workers as processes that are killed; slow, since every process imports torch."""

from __future__ import annotations

import os
import random
import signal
import threading

import numpy as np
import pytest
import torch

import notsodeep as nsd
from clusters import EQUAL, small_cluster
from notsodeep.distributed import ClusterKernel
from notsodeep.solve import CG, KernelTiles, NetworkKernel, solve_operator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def test_workers_killed_at_random_moments_change_nothing():
    rng, options = np.random.default_rng(0), CG(tol=1e-11, rank=50)
    X = torch.from_numpy(rng.normal(size=(1500, 40)) / 40**0.5)
    v = torch.from_numpy(rng.normal(size=(1500, 3)))
    kernel, luck = NetworkKernel(nsd.DEQ("relu", 0.2), "ntk"), random.Random(0)
    exact = solve_operator(KernelTiles(kernel, X), v, [1e-2], options)
    with small_cluster(3, processes=True) as (cluster, client):
        there = ClusterKernel(client, kernel, X)
        there @ v[:, :1]
        stop = threading.Event()

        def kill():
            for _ in range(2):
                if stop.wait(luck.uniform(0.0, 1.0)):
                    return
                os.kill(luck.choice([nanny.pid for nanny in cluster.workers.values() if nanny.pid]), signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        found = solve_operator(there, v, [1e-2], options)
        stop.set()
        thread.join()
        again = there @ v  # with those that were restarted
    assert torch.allclose(found.coefficients, exact.coefficients, rtol=EQUAL, atol=EQUAL)
    assert torch.allclose(again, kernel(X, None) @ v, rtol=0, atol=EQUAL)
