"""Tiles on a cluster give the numbers of tiles in one process, whatever happens to the workers meanwhile."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from clusters import EQUAL, small_cluster
from helpers import tolerance, ulps
from notsodeep.distributed import ClusterKernel
from notsodeep.distributed import worker as here
from notsodeep.distributed.cluster import Lost
from notsodeep.errors import CheckpointError, ClusterError, InvalidInputError, NotSoDeepWarning
from notsodeep.solve import KernelTiles, NetworkKernel, solve_operator

N = 260


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(N, 20)) / 20**0.5)
    return NetworkKernel(nsd.DEQ("relu", 0.2), "ntk"), X, torch.from_numpy(rng.normal(size=(N, 2)))


def until(happened, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shares(run):
    """Of this run, on all workers of this process."""
    return [store[run] for store in list(here._STORES.values()) if run in store]


homeless = pytest.mark.filterwarnings("ignore:.*have no room:notsodeep.errors.NotSoDeepWarning")


@homeless
@pytest.mark.parametrize("options", [{}, {"store": "none"}, {"store": "disk", "tile": 47}, {"memory": 1.2e5}])
def test_products_columns_and_entries_are_those_of_one_process(client, problem, options):
    kernel, X, v = problem
    K = kernel(X, None)
    with ClusterKernel(client, kernel, X, **options) as operator:
        for _ in range(2):  # computed, then from where they are kept
            assert torch.allclose(operator @ v, K @ v, rtol=0, atol=EQUAL)
        assert torch.allclose(operator.exact(v[:, 0]), K @ v[:, 0], rtol=0, atol=EQUAL)
        assert torch.allclose(operator.columns(torch.tensor([3, 200, 3])), K[:, [3, 200, 3]], rtol=0, atol=EQUAL)
        assert torch.allclose(operator.diagonal(), K.diagonal(), rtol=0, atol=EQUAL)
        assert torch.allclose(operator.matrix(), K, rtol=0, atol=EQUAL)
        assert operator.fingerprint() == KernelTiles(kernel, X).fingerprint()


def test_weights_float32_and_refinement(client, problem):
    kernel, X, v = problem
    scale = torch.linspace(0.5, 1.5, N, dtype=torch.float64)
    exact = scale[:, None] * (kernel(X, None) @ (scale[:, None] * v))
    with ClusterKernel(client, kernel, X, scale=scale, dtype=torch.float32) as operator:
        low = (operator @ v - exact).abs().max() / exact.abs().max()
        assert ulps(0.01, torch.float32) < float(low) < tolerance(torch.float32)
        assert torch.allclose(operator.exact(v), exact, rtol=0, atol=EQUAL)


def test_the_solve_is_that_of_one_process(client, problem):
    kernel, X, v = problem
    local = solve_operator(KernelTiles(kernel, X), v, [2.0, 0.5], tol=1e-11, rank=40)
    with ClusterKernel(client, kernel, X) as operator:
        found = solve_operator(operator, v, [2.0, 0.5], tol=1e-11, rank=40)
    assert (found.rank, found.preconditioner) == (local.rank, local.preconditioner)
    assert abs(found.steps - local.steps) <= 1
    assert torch.allclose(found.coefficients, local.coefficients, rtol=EQUAL, atol=EQUAL)


@homeless
@pytest.mark.parametrize("weighted", [False, True])
def test_the_rows_of_a_large_factor_live_with_the_workers(client, problem, monkeypatch, weighted):
    kernel, X, v = problem
    scale = torch.linspace(0.0, 1.5, N, dtype=torch.float64) if weighted else None
    local = KernelTiles(kernel, X, scale=scale).low_rank(60, 1)
    monkeypatch.setattr("notsodeep.distributed.operator._SMALL", 0)
    with ClusterKernel(client, kernel, X, scale=scale, memory=1.2e5) as operator:
        operator @ v
        found = operator.low_rank(60, 1)
        assert torch.equal(found.pivots, local.pivots)
        held = shares(operator.crew.run)
        sizes = [{b: len(F) for b, F in share.factor.rows.items()} for share in held]
        assert sum(sum(mine.values()) for mine in sizes) == N
        assert all(share.held <= max(share.limit, 0.0) for share in held)  # tiles made way
        for _ in range(2):
            Z = torch.eye(60, dtype=torch.float64)
            assert torch.allclose(found.outer(Z), local.F, rtol=0, atol=EQUAL)
            assert torch.allclose(found.inner(v), local.inner(v), rtol=0, atol=EQUAL)
            assert torch.allclose(found.gram(), local.gram(), rtol=0, atol=EQUAL)
            assert torch.allclose(found.residual, local.residual, rtol=0, atol=EQUAL)
            operator.low_rank(20, 2)  # takes its place: the first is made again from its pivots
        assert operator.losses == 0


def test_a_twin_travels_too(client, problem):
    _, X, v = problem
    twin = nsd.match(nsd.DEQ("relu", 0.2), 1.0)
    kernel = NetworkKernel(twin, "ck")
    with ClusterKernel(client, kernel, X) as operator:
        assert torch.allclose(operator @ v, kernel(X, None) @ v, rtol=0, atol=EQUAL)


def test_memory_is_given_back_and_never_exceeds_the_limit(client, problem):
    kernel, X, v = problem
    operator = ClusterKernel(client, kernel, X, memory=1.2e5)
    with pytest.warns(NotSoDeepWarning, match=r"of \d+ tiles have no room"):
        operator @ v
    held = shares(operator.crew.run)
    assert len(held) == 3
    assert all(share.held > 0 and share.held + sum(r.nbytes for r in share.rows.values()) <= 1.2e5 for share in held)
    assert sum(len(share.tiles) for share in held) < len(operator.grid.tiles())
    del held
    run = operator.crew.run
    operator.close()
    until(lambda: not shares(run))


def test_few_tasks_and_each_with_a_name(client, problem):
    kernel, X, v = problem
    with ClusterKernel(client, kernel, X) as operator:
        operator @ v
        seen = []
        inner = operator.cluster.run
        operator.cluster.run = lambda calls, *rest: (seen.extend(calls), inner(calls, *rest))[1]
        operator @ v
    assert [call.name for call in seen] == ["kernel-product"] * 3
    assert len({call.worker for call in seen}) == 3


def test_what_cannot_travel_is_refused(client, problem):
    _, X, _ = problem
    own = nsd.Activation.from_callable(lambda x: torch.tanh(x) * 0.9)
    with pytest.raises(InvalidInputError, match="travels to workers as JSON"):
        ClusterKernel(client, NetworkKernel(nsd.DEQ(own, 0.2), "ck"), X)
    with pytest.raises(InvalidInputError, match=r"must be a dask.distributed.Client, got str"):
        ClusterKernel("tcp://somewhere:8786", NetworkKernel(nsd.DEQ("relu", 0.2), "ck"), X)
    with pytest.raises(InvalidInputError, match="store must be one of"):
        ClusterKernel(client, NetworkKernel(nsd.DEQ("relu", 0.2), "ck"), X, store="attic")


def test_other_versions_are_refused(client, problem, monkeypatch):
    kernel, X, v = problem
    ours = here.versions()
    monkeypatch.setattr("notsodeep.distributed.cluster.versions", _asked)  # what workers answer is as it was
    monkeypatch.setattr("notsodeep.distributed.cluster.HERE", lambda: ours | {"torch": "1.0.0"})
    with pytest.raises(ClusterError, match=r"different versions: torch .* on tcp.*, 1\.0\.0 here"):
        ClusterKernel(client, kernel, X) @ v


def _asked():
    return here.versions()


def test_a_folder_of_other_tiles_is_refused_and_its_own_is_used_again(client, problem, tmp_path):
    kernel, X, v = problem
    with ClusterKernel(client, kernel, X, store="disk", folder=tmp_path, tile=100) as operator:
        first = operator @ v
    files = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tile-*.npy")}
    assert len(files) == 6
    with ClusterKernel(client, kernel, X, store="disk", folder=tmp_path, tile=100) as operator:
        assert torch.allclose(operator @ v, first, rtol=0, atol=EQUAL)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("tile-*.npy")} == files
    with pytest.raises(CheckpointError, match="other data"):
        ClusterKernel(client, kernel, 2.0 * X, store="disk", folder=tmp_path, tile=100) @ v


# ---- faults ----------------------------------------------------------------------------------------------


# Dask's own tasks end unheard when a worker or a scheduler is closed under them
rough = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Accident:
    """Something that happens to the workers of a run when the k-th product of a share begins."""

    def __init__(self, monkeypatch, at, happens):
        from notsodeep.distributed.worker import Share

        self.count, self.lock, inner = 0, threading.Lock(), Share.product

        def product(share, *rest):
            with self.lock:
                self.count += 1
                now = self.count == at
            if now:
                happens()
                time.sleep(0.6)  # the step in flight, while the news spreads
            return inner(share, *rest)

        monkeypatch.setattr(Share, "product", product)


def close_one(cluster):
    worker = next(iter(cluster.workers.values()))
    cluster.loop.add_callback(worker.close, executor_wait=False, nanny=False)


@rough
def test_a_worker_that_goes_in_the_middle_of_a_step_changes_nothing(fragile, problem, monkeypatch):
    cluster, client = fragile
    kernel, X, v = problem
    exact = solve_operator(KernelTiles(kernel, X), v, [0.5], tol=1e-11, rank=40)
    monkeypatch.setattr("notsodeep.distributed.operator._SMALL", 0)
    Accident(monkeypatch, at=13, happens=lambda: close_one(cluster))
    with ClusterKernel(client, kernel, X, patience=0.1) as operator:
        found = solve_operator(operator, v, [0.5], tol=1e-11, rank=40)
        assert operator.losses >= 1
        assert len(operator.crew.strength) == 2
        assert abs(found.steps - exact.steps) <= 1
        assert torch.allclose(found.coefficients, exact.coefficients, rtol=EQUAL, atol=EQUAL)
        kept = operator.owners
        cluster.scale(4)  # one is gone: a new one takes its part, the others keep theirs
        until(lambda: len(operator.cluster.alive()) == 3)
        operator.crew.look()
        assert torch.allclose(operator @ v, kernel(X, None) @ v, rtol=0, atol=EQUAL)
        assert len(operator.crew.strength) == 3
        assert sum(operator.owners[tile] == name for tile, name in kept.items()) >= 0.6 * len(kept)
        stores = [store for worker, store in here._STORES.items() if worker.address in operator.crew.strength]
        held = [tile for store in stores for tile in store[operator.crew.run].tiles]
        assert sorted(held) == sorted(kept)  # each on one worker: what moved was dropped where it was


def test_a_worker_that_forgot_everything_is_told_again(client, problem):
    kernel, X, v = problem
    with ClusterKernel(client, kernel, X) as operator:
        first = operator @ v
        for store in list(here._STORES.values()):
            store.pop(operator.crew.run, None)  # as after a restart at the same address
        assert torch.allclose(operator @ v, first, rtol=0, atol=EQUAL)
        assert operator.losses == 3


def test_a_worker_that_was_given_up_in_error_has_lost_nothing(client, problem):
    kernel, X, v = problem
    with ClusterKernel(client, kernel, X) as operator:
        first = operator @ v
        held = {id(share): set(share.tiles) for share in shares(operator.crew.run)}
        for _ in range(3):
            for worker in operator.crew.strength:  # as when what it was to fetch went with another worker
                operator.crew._lose(worker, Lost("data of another worker"))
            assert torch.allclose(operator @ v, first, rtol=0, atol=EQUAL)
            time.sleep(0.3)  # the ends of the old leases are heard of
        assert {id(share): set(share.tiles) for share in shares(operator.crew.run)} == held
        assert operator.losses == 9


def test_what_dask_may_spill_does_not_end_a_share(client, problem):
    kernel, X, v = problem
    with ClusterKernel(client, kernel, X) as operator:
        first = operator @ v
        for worker in list(here._STORES):
            for key in list(worker.data):  # to the disk and back, as Dask does at 70 % of a worker's memory
                worker.data[key] = pickle.loads(pickle.dumps(worker.data[key]))
        assert torch.allclose(operator @ v, first, rtol=0, atol=EQUAL)
        assert operator.losses == 0
        assert len(list(shares(operator.crew.run))) == 3
        run = operator.crew.run
    until(lambda: not list(shares(run)))  # and goes with its lease


def test_memory_that_runs_out_is_survived_once_and_then_explained(client, problem, monkeypatch):
    from notsodeep.distributed.worker import Share

    kernel, X, v = problem
    inner = Share.product
    with ClusterKernel(client, kernel, X) as operator:
        exact = operator @ v

        def tight(share, *rest):
            if share.tiles:
                raise MemoryError
            return inner(share, *rest)

        monkeypatch.setattr(Share, "product", tight)
        assert torch.allclose(operator @ v, exact, rtol=0, atol=EQUAL)
        assert all(share.limit == 0.0 for share in shares(operator.crew.run))
        monkeypatch.setattr(Share, "product", lambda *_: (_ for _ in ()).throw(RuntimeError("can't allocate memory")))
        with pytest.raises(ClusterError, match=r"ran out of memory.*more workers"):
            operator @ v


def test_an_error_of_the_work_itself_is_raised_at_once(client, problem, monkeypatch):
    from notsodeep.distributed.worker import Share

    kernel, X, v = problem
    with ClusterKernel(client, kernel, X) as operator:
        monkeypatch.setattr(Share, "product", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            operator @ v


@rough
def test_a_scheduler_that_goes_leaves_the_checkpoint_and_a_new_one_goes_on(problem, monkeypatch, tmp_path):
    kernel, X, v = problem
    path = tmp_path / "solve.safetensors"
    exact = solve_operator(KernelTiles(kernel, X), v, [0.5], tol=1e-11, rank=20)
    monkeypatch.setattr("notsodeep.distributed.operator._SMALL", 0)
    with small_cluster(2) as (cluster, client):
        Accident(monkeypatch, at=21, happens=threading.Thread(target=cluster.close).start)
        with pytest.raises(ClusterError, match=r"does not answer|no workers"):
            solve_operator(
                ClusterKernel(client, kernel, X, patience=0.1), v, [0.5], tol=1e-11, rank=20, checkpoint=path
            )
    monkeypatch.undo()
    assert path.exists()
    with small_cluster(2) as (_, client), ClusterKernel(client, kernel, X) as operator:
        seen = []
        inner = operator.__class__.__matmul__
        monkeypatch.setattr(ClusterKernel, "__matmul__", lambda self, w: (seen.append(1), inner(self, w))[1])
        found = solve_operator(operator, v, [0.5], tol=1e-11, rank=20, checkpoint=path)
    assert abs(found.steps - exact.steps) <= 1
    assert len(seen) <= found.steps - 8  # ten products were there, and are not made again
    assert torch.allclose(found.coefficients, exact.coefficients, rtol=EQUAL, atol=EQUAL)
    assert not path.exists()
