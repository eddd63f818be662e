"""Random networks on random data, against invariants and an independent oracle.

    PYTHONPATH=src python tests/fuzz/run.py --inputs 1000000 --jobs 15 --seconds 420
    PYTHONPATH=src python tests/fuzz/run.py --case kernels 17

An input is a pair of points whose kernels were evaluated and checked (the pairs of a matrix are its upper triangle with
the diagonal), a spectral law, a command line, a file given to a reader, or a document; cases that the library refuses
count none. Every failure is printed with the
case that makes it again.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.checks import CASES, run_case
from notsodeep.errors import NotSoDeepWarning

_SHARES = (
    *("kernels",) * 30,
    *("equivalents", "machines") * 4,
    *("laws", "arguments") * 2,
    *("cli", "files", "documents", "certificates", "derivatives", "settings"),
    *("cells", "modules", "twins", "images") * 3,
)
# the last ones wait for an interrupt or threads, train, or have hundreds of rows
SHARES = (*_SHARES, *_SHARES, "inputs", "replacements", "evidence", "classes")
SLOW, LARGE = 5.0, 1000.0  # seconds and megabytes for at most fifty points, unless a warning has said so
HANGS = 90  # seconds of the processor for a case, which is several calls, some of them of more points


@dataclass(frozen=True)
class Report:
    """One case as the parent process sees it."""

    kind: str
    seed: int
    inputs: int = 0
    refused: str = ""
    against_oracle: int = 0
    failure: str = ""
    seconds: float = 0.0
    warned: bool = False
    process: float = 0.0
    longest: float = 0.0
    largest: float = 0.0

    @property
    def beyond(self) -> bool:
        """Whether a call of few points took more than is allowed without a word."""
        return not self.warned and (self.longest > SLOW or self.largest > LARGE)


def report(task: tuple[str, int]) -> Report:
    """Run one case under a clock; whatever it raises is its failure."""
    kind, seed = task
    start, failure, warned = time.monotonic(), "", False
    inputs = oracle = 0
    refused, longest, largest = "", 0.0, 0.0
    signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, HANGS)  # a busy machine is no fault of the case
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            outcome = run_case(kind, seed)
            inputs, refused, oracle = outcome.inputs, outcome.refused, outcome.against_oracle
            longest, largest = outcome.longest, outcome.largest
        warned = bool(said)
    except TimeoutError as error:
        if any(
            issubclass(w.category, NotSoDeepWarning) for w in said
        ):  # the library had told that this would take long
            warned, refused = True, "announced as slow, and stopped"
        else:
            failure = str(error)
    except Exception as error:  # any exception at all is what is looked for
        failure = f"{type(error).__name__}: {error}"[:600]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.monotonic() - start
    return Report(kind, seed, inputs, refused, oracle, failure, seconds, warned, memory, longest, largest)


def hold_or_are_refused(kind: str, first: int, count: int) -> None:
    """Assert that none of these cases fails; the error says how to repeat those that do."""
    found = [report((kind, seed)) for seed in range(first, first + count)]
    failures = {f"--case {r.kind} {r.seed}": r.failure for r in found if r.failure}
    assert not failures, failures
    assert sum(r.inputs for r in found) > 0


def _hangs(number: int, frame: Any) -> None:
    raise TimeoutError(f"no answer within {HANGS} s")


def tasks(first: int, only: str | None) -> Iterator[tuple[str, int]]:
    seed = first
    while True:
        yield only or SHARES[seed % len(SHARES)], seed
        seed += 1


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)


def fuzz(inputs: int, seconds: float, seed: int, jobs: int, only: str | None = None) -> list[Report]:
    """Cases from ``seed`` on until so many inputs are checked or the time is over."""
    done: list[Report] = []
    deadline, checked = time.monotonic() + seconds, 0
    if jobs <= 1:
        found: Any = map(report, tasks(seed, only))
        pool = None
    else:
        pool = multiprocessing.get_context("spawn").Pool(jobs, _prepare)
        # the pool would draw an endless iterator at once: rounds keep it short
        found = (r for block in _rounds(seed, only, 40 * jobs) for r in pool.imap_unordered(report, block))
    try:
        for r in found:
            done.append(r)
            checked += r.inputs
            if r.failure:
                print(f"FAILED --case {r.kind} {r.seed}: {r.failure}", flush=True)
            if checked >= inputs or time.monotonic() > deadline:
                break
    finally:
        if pool is not None:
            pool.terminate()
    return done


def _rounds(seed: int, only: str | None, size: int) -> Iterator[list[tuple[str, int]]]:
    source = tasks(seed, only)
    while True:
        yield [next(source) for _ in range(size)]


def summary(done: list[Report], seconds: float) -> str:
    refused = collections.Counter(r.refused for r in done if r.refused)
    beyond = sorted((r for r in done if r.beyond), key=lambda r: -r.longest)
    lines = [
        f"{sum(r.inputs for r in done)} inputs in {len(done)} cases ({sum(r.against_oracle for r in done)} pairs "
        f"against the oracle), {sum(bool(r.failure) for r in done)} failures, {seconds:.0f} s",
        f"seeds {min(r.seed for r in done)} to {max(r.seed for r in done)}; refused: {dict(refused) or 'none'}",
        f"longest call {max(r.longest for r in done):.1f} s, largest {max(r.largest for r in done):.0f} MB (process "
        f"{max(r.process for r in done):.0f} MB), {len(beyond)} over {SLOW:.0f} s or {LARGE:.0f} MB without a warning"
        + "".join(f"\n  --case {r.kind} {r.seed}: {r.longest:.1f} s, {r.largest:.0f} MB" for r in beyond[:20]),
    ]
    return "\n".join(lines)


def record(done: list[Report], seconds: float) -> dict[str, Any]:
    """What a run found, as a document."""
    kinds = sorted({r.kind for r in done})
    failed, beyond = [r for r in done if r.failure], [r for r in done if r.beyond]
    return {
        "inputs": sum(r.inputs for r in done),
        "cases": len(done),
        "failures": len(failed),
        "beyond_limits": len(beyond),
        "seconds": round(seconds, 1),
        "against_oracle": sum(r.against_oracle for r in done),
        "longest_call": round(max(r.longest for r in done), 1),
        "largest_call_megabytes": round(max(r.largest for r in done)),
        "largest_process_megabytes": round(max(r.process for r in done)),
        "seeds": [min(r.seed for r in done), max(r.seed for r in done)],
        "by_kind": {
            kind: {
                "cases": sum(r.kind == kind for r in done),
                "inputs": sum(r.inputs for r in done if r.kind == kind),
                "seconds": round(sum(r.seconds for r in done if r.kind == kind), 1),
                "refused": sum(bool(r.refused) for r in done if r.kind == kind),
            }
            for kind in kinds
        },
        "failed": [{"case": f"{r.kind} {r.seed}", "failure": r.failure} for r in failed],
        "beyond": [
            {"case": f"{r.kind} {r.seed}", "seconds": round(r.longest, 1), "megabytes": round(r.largest)}
            for r in beyond
        ],
        "dearest": [
            {
                "case": f"{r.kind} {r.seed}",
                "seconds": round(r.seconds, 1),
                "call": round(r.longest, 1),
                "megabytes": round(r.largest),
                "warned": r.warned,
            }
            for r in sorted(done, key=lambda r: -max(r.seconds / 10.0, r.largest / LARGE))[:40]
        ],
    }


def main() -> int:
    """The command line; returns the number of failures, as an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--json", type=Path, help="write counts and failing cases there")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "SEED"), help="one case, with its traceback")
    options = parser.parse_args()
    if options.case is not None:
        try:
            print(run_case(options.case[0], int(options.case[1])))
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    _prepare()
    start = time.monotonic()
    done = fuzz(options.inputs, options.seconds, options.seed, options.jobs, options.only)
    seconds = time.monotonic() - start
    print(summary(done, seconds))
    if options.json is not None:
        options.json.write_text(json.dumps(record(done, seconds), indent=1) + "\n")
    return min(1, sum(bool(r.failure) for r in done))


if __name__ == "__main__":
    raise SystemExit(main())
