"""Kernels on a Dask cluster of processes: efficiency, overhead per step, a model held against both, and a kill test.

    python -m benchmarks.distributed --parts scaling overhead
    python -m benchmarks.distributed --parts mnist --data FOLDER --workers 4 --memory 5

``scaling``: tiles are built and multiplied by 1, 2 and 4 processes of one thread each. Three ideals: the same tiles in
as many plain processes, without Dask and without messages (what the cores give: they share caches, memory and clock);
one worker, and one process without Dask, each over the number of processes (of cores, where there are fewer).
``inside_tasks`` is the part of the time in which the busiest worker computed, ``largest_share`` its work over the mean.
``overhead``: what a step of conjugate gradients costs beside computing, at n = 60,000: the messages of a step with
workers that only echo. ``mnist``: all images by conjugate gradients, once undisturbed and once while two workers are
killed; each run leaves its result in ``--folder``, and what lies there is compared. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import notsodeep as nsd
from distributed import Client, LocalCluster, get_task_stream
from notsodeep.datasets import load
from notsodeep.distributed import ClusterKernel, Plan, Rates, expand, plan
from notsodeep.distributed.cluster import Call
from notsodeep.distributed.layout import Grid, Tile, blocks_of
from notsodeep.distributed.worker import Share
from notsodeep.solve import KernelTiles, NetworkKernel, solve_operator

from ._clock import elapsed

_TASK = 1e-3
_STARTED = time.perf_counter()
RUNS = ("undisturbed", "killed")


@contextlib.contextmanager
def cluster_of(workers: int, memory: str | None = None, threads: int = 1) -> Iterator[tuple[LocalCluster, Client]]:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            dashboard_address=":0",
            silence_logs=50,
            memory_limit=memory or 0,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


def timed(work: Callable[[], Any], repeats: int = 1) -> float:
    """The median of some runs, in seconds."""
    return statistics.median(elapsed(work) for _ in range(repeats))


def say(found: Any) -> None:
    """What is known so far: a run that is cut short leaves something."""
    print(f"{time.perf_counter() - _STARTED:7.1f} s", json.dumps(found), file=sys.stderr, flush=True)


def rows_of(options: argparse.Namespace, n: int) -> torch.Tensor:
    """Gaussian rows of the images' width and mean squared norm one."""
    return torch.from_numpy(np.random.default_rng(0).normal(size=(n, options.features)) / options.features**0.5)


# ---- scaling -------------------------------------------------------------------------------------------------


def scaling(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    X, kernel = rows_of(options, options.n), NetworkKernel(nsd.DEQ(options.activation, 0.2), "ntk")
    v = torch.randn(options.n, 10, dtype=torch.float64)
    dtype = getattr(torch, options.dtype)
    kernel(X[:64], None)  # tables are made once, in every process
    tiles = KernelTiles(kernel, X, store="memory", dtype=dtype, progress=False)
    alone = {"build_s": timed(lambda: list(tiles.panels()))}
    alone["product_s"] = timed(lambda: tiles @ v, options.repeats)
    tiles = KernelTiles(kernel, X[:1])  # gives the memory back
    found: list[dict[str, Any]] = []
    for workers in options.processes:
        with cluster_of(workers) as (_, client):
            operator = ClusterKernel(client, kernel, X[:256], progress=False)
            operator @ v[:256]  # workers import torch and make their tables
            operator.close()
            operator = ClusterKernel(client, kernel, X, tile=options.tile, dtype=dtype, progress=False)
            operator.columns(torch.tensor([0]))  # rows are there
            document, shares = operator.document, shares_of(operator)
            with get_task_stream(client) as stream:
                built = timed(operator.build)
            inside = {"build": busiest(stream.data, "kernel-build") / built}
            with get_task_stream(client) as stream:
                product = timed(lambda op=operator: op @ v, options.repeats)
            inside["product"] = busiest(stream.data, "kernel-product") / (options.repeats * product)
            operator.close()
        plain = plainly(document, list(shares.values()), X.numpy(), v.numpy(), options.repeats)
        work = [sum(map(operator.grid.work, mine)) for mine in shares.values()]
        row = {"processes": workers, "build_s": built, "product_s": product, "inside_tasks": inside, "plain": plain}
        found.append(row | {"largest_share": round(max(work) * len(work) / sum(work), 3)})
        say(found[-1])
    cores = len(os.sched_getaffinity(0))
    for row in found:
        ideal = min(row["processes"], cores)
        for name in ("build", "product"):
            seconds = row[f"{name}_s"]
            row[f"{name}_efficiency"] = {
                "of_plain_processes": round(row["plain"][f"{name}_s"] / seconds, 3),
                "of_one_worker": round(found[0][f"{name}_s"] / (ideal * seconds), 3),
                "of_one_process_without_dask": round(alone[f"{name}_s"] / (ideal * seconds), 3),
            }
    return {"n": options.n, "features": options.features, "alone": alone, "clusters": found}


def shares_of(operator: ClusterKernel) -> dict[str, list[Tile]]:
    """The tiles of every worker."""
    shares: dict[str, list[Tile]] = {}
    for tile, worker in operator.owners.items():
        shares.setdefault(worker, []).append(tile)
    return shares


def plainly(document: dict[str, Any], shares: list[list[Tile]], X: Any, v: Any, repeats: int) -> dict[str, float]:
    """The same tiles by as many plain processes: no Dask, no messages. What these cores give at best."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(len(shares) + 1)
    grid = Grid(document["n"], document["tile"])
    processes = []
    for mine in shares:
        rows = {block: X[grid.span(block)] for block in blocks_of(mine)}
        part = np.concatenate([v[grid.span(block)] for block in rows])
        job = context.Process(target=_plain, args=(document, mine, rows, part, repeats, gate))
        job.start()
        processes.append(job)
    spans: dict[str, list[float]] = {}
    for name in ("build_s", *["product_s"] * repeats):
        gate.wait()
        started = time.perf_counter()
        gate.wait()
        spans.setdefault(name, []).append(time.perf_counter() - started)
    for job in processes:
        job.join()
    return {name: statistics.median(seconds) for name, seconds in spans.items()}


def _plain(document: Any, mine: list[Tile], rows: Any, v: Any, repeats: int, gate: Any) -> None:
    torch.set_num_threads(1)
    share = Share(document, float("inf"), None)
    share.take(list(rows), list(rows.values()))
    few = next(iter(share.rows.values()))[:256]
    share.kernel(few, None)  # tables
    gate.wait()
    share.keep(mine)
    gate.wait()
    for _ in range(repeats):
        gate.wait()
        share.product(mine, list(rows), False, v)
        gate.wait()


def busiest(stream: Any, name: str) -> float:
    """Seconds that the busiest worker spent inside tasks of this name: the rest of the time is not computing."""
    inside: dict[str, float] = {}
    for task in stream:
        if str(task["key"]).startswith(name):
            spent = sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")
            inside[task["worker"]] = inside.get(task["worker"], 0.0) + spent
    return max(inside.values(), default=0.0)


# ---- overhead ------------------------------------------------------------------------------------------------


def overhead(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A step without its computing: parts of v out, as many numbers back, and their sum."""
    n, columns = 60_000, 10
    rng = np.random.default_rng(0)
    kernel, X = NetworkKernel(nsd.DEQ("relu", 0.2), "ck"), torch.from_numpy(rng.normal(size=(n, 4)))
    v = rng.normal(size=(n, columns))
    found = []
    for workers in options.processes:
        with cluster_of(workers) as (_, client), ClusterKernel(client, kernel, X, store="none") as operator:
            operator.columns(torch.tensor([0]))  # rows are there
            shares = shares_of(operator)

            def step(operator: ClusterKernel = operator, shares: Any = shares) -> None:
                out, grid, calls = np.zeros_like(v), operator.grid, []
                for worker, mine in shares.items():
                    part = grid.part(v, blocks_of(mine))
                    calls.append(Call(worker, "kernel-echo", np.positive, (), (part,), items=mine))
                for call, image in operator.cluster.run(calls):
                    for there, here in grid.spans(blocks_of(call.items)):
                        out[there] += image[here]

            step()
            sent = sum(sum(operator.grid.rows(b) for b in blocks_of(mine)) for mine in shares.values()) * columns * 8
            seconds = timed(step, 5 * options.repeats)
        found.append({"processes": workers, "step_ms": round(1e3 * seconds, 2), "megabytes": round(2e-6 * sent, 2)})
    return found


# ---- the model -----------------------------------------------------------------------------------------------


def model(options: argparse.Namespace, scaled: dict[str, Any], echoed: list[dict[str, Any]]) -> dict[str, Any]:
    """Plans beside what was measured: with the rates of one plain process, and of as many as there are workers."""
    latency, bandwidth = _line(echoed)
    rows, found = [], {}
    for row in scaled["clusters"]:
        bare = _plan(options, scaled, row["processes"], Rates(1.0, 1.0))
        found[row["processes"]] = Rates(
            build=bare.build_seconds / row["plain"]["build_s"],
            product=bare.compute_seconds / row["plain"]["product_s"],
            latency=latency,
            task=_TASK,
            bandwidth=bandwidth,
        )
    for row in scaled["clusters"]:
        one, same = (_plan(options, scaled, row["processes"], found[k]) for k in (min(found), row["processes"]))
        rows.append(
            {
                "processes": row["processes"],
                "build_s": [round(one.build_seconds, 3), round(same.build_seconds, 3), round(row["build_s"], 3)],
                "product_s": [round(one.step_seconds, 4), round(same.step_seconds, 4), round(row["product_s"], 4)],
            }
        )
    return {
        "rates": {k: vars(rates) for k, rates in found.items()},
        "by_rates_of_one_by_rates_of_as_many_and_measured": rows,
    }


def _plan(options: argparse.Namespace, scaled: dict[str, Any], processes: int, rates: Rates) -> Plan:
    return plan(scaled["n"], scaled["features"], processes, rates, tile=options.tile)


def _line(echoed: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds per step and bytes per second, from steps of different size; a task is taken to cost a millisecond."""
    size = np.array([1e6 * row["megabytes"] for row in echoed])
    seconds = np.array([1e-3 * row["step_ms"] - row["processes"] * _TASK for row in echoed])
    if len(echoed) < 2:
        return 0.0, float(size[0] / seconds[0])
    per_byte, latency = np.polyfit(size, seconds, 1)
    return max(float(latency), 0.0), 1.0 / max(float(per_byte), 1e-12)


# ---- all of MNIST, while workers are killed ------------------------------------------------------------------


def mnist(options: argparse.Namespace) -> dict[str, Any]:
    data = load(options.dataset, options.data).first(options.images).standardised()
    X = torch.from_numpy(data.X_train.astype(np.float64))
    targets = torch.from_numpy(2.0 * np.eye(10)[data.y_train] - 1.0)
    test = torch.from_numpy(data.X_test[: options.test].astype(np.float64))
    kernel = NetworkKernel(nsd.DEQ(options.activation, 0.2), "ntk")
    folder = Path(options.folder or tempfile.mkdtemp())
    for name in options.runs:
        with cluster_of(options.workers, f"{options.memory}GiB", options.threads) as (cluster, client), Peak() as peak:
            started = time.perf_counter()
            room = None if options.room is None else options.room * 2**30
            operator = Watched(client, kernel, X, dtype=torch.float32, memory=room, patience=30.0)
            killer = Killer(cluster, operator, 2 if name == "killed" else 0)
            lift = 1e-3 * float(operator.diagonal().mean())
            operator.build()
            built = time.perf_counter() - started
            found = solve_operator(operator, targets, [lift], tol=options.tol, rank=options.rank)
            seconds = time.perf_counter() - started
            killer.stop()
            operator.close()
            scores = expand(client, kernel, X, found.coefficients[0], test)
        result = {
            "accuracy": round(100.0 * float((scores.argmax(1).numpy() == data.y_test[: options.test]).mean()), 2),
            "steps": found.steps,
            "refinements": found.refinements,
            "residual": float(found.residuals.max()),
            "build_s": round(built, 1),
            "fit_s": round(seconds, 1),
            "of_it": {name: [calls, round(spent, 1)] for name, (calls, spent) in operator.spent.items()},
            "predict_s": round(time.perf_counter() - started - seconds, 1),
            "killed": killer.done,
            "losses": operator.losses,
            "peak_gib": round(peak.bytes / 2**30, 2),
        }
        np.save(folder / f"{name}.npy", found.coefficients[0].numpy())
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        say(result)
    about = {"n": len(X), "workers": options.workers, "threads": options.threads, "tol": options.tol}
    return about | compared(folder)


def compared(folder: Path) -> dict[str, Any]:
    """The runs of which the results are there, and how far the coefficients of the second are from the first."""
    there = [name for name in RUNS if (folder / f"{name}.json").exists()]
    runs = {name: json.loads((folder / f"{name}.json").read_text()) for name in there}
    if len(there) < len(RUNS):
        return {"runs": runs}
    one, other = (np.load(folder / f"{name}.npy") for name in RUNS)
    return {"runs": runs, "relative_difference": float(np.linalg.norm(one - other) / np.linalg.norm(one))}


class Watched(ClusterKernel):
    """Says where the time goes: calls and seconds of each kind of work."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.spent: dict[str, tuple[int, float]] = {}
        super().__init__(*arguments, **options)

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = work()
        calls, before = self.spent.get(name, (0, 0.0))
        self.spent[name] = calls + 1, before + time.perf_counter() - started
        if name != "products" or not calls % 10:
            say({name: self.spent[name], "losses": self.losses})
        return found

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        return self._timed("products", lambda: super(Watched, self).__matmul__(v))

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        return self._timed("exact products", lambda: super(Watched, self).exact(v))

    def build(self) -> None:
        self._timed("build", super().build) if self.built_part < 1.0 else super().build()

    def columns(self, index: torch.Tensor) -> torch.Tensor:
        return self._timed("columns", lambda: super(Watched, self).columns(index))

    def low_rank(self, rank: int, seed: int) -> Any:
        return self._timed("factor", lambda: super(Watched, self).low_rank(rank, seed))


class Killer:
    """Kills workers, the first while tiles are built and the others during steps."""

    def __init__(self, cluster: Any, operator: ClusterKernel, count: int) -> None:
        self.cluster, self.operator, self.count, self.done = cluster, operator, count, 0
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while self.done < self.count and not self._over.wait(0.5):
            share = self.operator.built_part
            if share > (0.4, 0.999)[min(self.done, 1)] and not self._over.wait(3.0 * self.done):
                pids = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
                os.kill(pids[self.done % len(pids)], signal.SIGKILL)
                self.done += 1

    def stop(self) -> None:
        self._over.set()


class Peak:
    """The largest memory of this process and all its children, looked at four times a second."""

    def __enter__(self) -> Peak:
        self.bytes, self._over = 0, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.25):
            total = 0
            for process in (me, *me.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            self.bytes = max(self.bytes, total)

    def __exit__(self, *error: object) -> None:
        self._over.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("scaling", "overhead", "mnist"), default=["scaling", "overhead"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--n", type=int, default=32_000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--tile", type=int, default=2048)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="of stored tiles in scaling")
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", default=None, help="folder of the data sets")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of each worker of mnist")
    parser.add_argument("--memory", type=float, default=5.0, help="GiB for each worker of mnist")
    parser.add_argument("--room", type=float, default=None, help="GiB of it for rows, tiles and factor")
    parser.add_argument("--tol", type=float, default=1e-8)
    parser.add_argument("--rank", type=int, default=None)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, help="of mnist")
    parser.add_argument("--folder", default=None, help="for the results of the runs of mnist")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "options": vars(options),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
    }
    for part in options.parts:
        document[part] = {"scaling": scaling, "overhead": overhead, "mnist": mnist}[part](options)
    if {"scaling", "overhead"} <= set(options.parts):
        document["model"] = model(options, document["scaling"], document["overhead"])
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
