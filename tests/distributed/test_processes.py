"""Workers as processes that are killed, restarted and secured; slow, since every process imports torch."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from clusters import EQUAL, small_cluster
from notsodeep.distributed import ClusterKernel
from notsodeep.errors import ClusterError
from notsodeep.solve import KernelTiles, NetworkKernel, solve_operator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(1500, 40)) / 40**0.5)
    v = torch.from_numpy(rng.normal(size=(1500, 3)))
    kernel = NetworkKernel(nsd.DEQ("relu", 0.2), "ntk")
    return kernel, X, v, solve_operator(KernelTiles(kernel, X), v, [1e-2], tol=1e-11, rank=50)


@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_random_moments_change_nothing(problem, seed, monkeypatch):
    kernel, X, v, exact = problem
    monkeypatch.setattr("notsodeep.distributed.operator._SMALL", (0, 1 << 26)[seed % 2])  # the factor there, or here
    rng = random.Random(seed)
    with (
        small_cluster(3, processes=True) as (cluster, client),
        ClusterKernel(client, kernel, X, patience=20.0) as operator,
    ):
        operator @ v[:, :1]
        stop = threading.Event()

        def kill():
            for _ in range(2):
                if stop.wait(rng.uniform(0.0, 1.0)):
                    return
                os.kill(rng.choice([nanny.pid for nanny in cluster.workers.values() if nanny.pid]), signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        found = solve_operator(operator, v, [1e-2], tol=1e-11, rank=50)
        stop.set()
        thread.join()
        deadline = time.monotonic() + 60
        while len(operator.cluster.alive()) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        again = operator @ v  # with those that were restarted
    assert abs(found.steps - exact.steps) <= 3  # rounding counts there
    assert torch.allclose(found.coefficients, exact.coefficients, rtol=EQUAL, atol=EQUAL)
    assert torch.allclose(again, kernel(X, None) @ v, rtol=0, atol=EQUAL)


def test_a_secured_cluster_serves_as_well(problem, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    from distributed.security import Security

    kernel, X, v, _ = problem
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run([*command, "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    roles = {f"tls_{role}_{part}": str(path) for role in ("client", "worker", "scheduler")
             for part, path in (("cert", certificate), ("key", key))}  # fmt: skip
    security = Security(require_encryption=True, tls_ca_file=str(certificate), **roles)
    with small_cluster(2, processes=True, security=security, protocol="tls://") as (cluster, client):
        assert cluster.scheduler_address.startswith("tls://")
        with ClusterKernel(client, kernel, X) as operator:
            assert torch.allclose(operator @ v, kernel(X, None) @ v, rtol=0, atol=EQUAL)


def test_workers_without_enough_memory_end_with_advice(problem):
    kernel, X, v, _ = problem
    # a nanny kills a worker at 0.95 of its limit, and torch alone takes more than this: again and again
    with (
        small_cluster(1, processes=True, memory_limit="140MiB") as (_, client),
        pytest.raises(ClusterError, match=r"memory|no workers"),
    ):
        ClusterKernel(client, kernel, X, patience=5.0) @ v
