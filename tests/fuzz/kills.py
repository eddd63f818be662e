"""Kill writing commands at random moments within their runs, many at once, and count.

    PYTHONPATH=src python tests/fuzz/kills.py --times 100 --jobs 8

What is killed, and what must hold afterwards, is in tests/test_faults.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PIECE = 25  # kills of one process: long commands are shared by several


def one(name: str, times: int, seed: int) -> tuple[int, int]:
    import test_faults

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        return test_faults.kill(name, times, Path(folder), seed)


def _in_its_own_process(task: tuple[str, int, int]) -> dict[str, Any]:
    start = time.monotonic()
    line = [sys.executable, __file__, "--one", *map(str, task)]
    done = subprocess.run(line, capture_output=True, text=True)
    counts = done.stdout.split()
    failed = "" if done.returncode == 0 and counts else (done.stderr or done.stdout)[-1500:]
    return {
        "command": task[0],
        "killed": task[1] if not failed else 0,
        "begun": int(counts[-2]) if not failed else 0,
        "writing": int(counts[-1]) if not failed else 0,
        "seconds": round(time.monotonic() - start, 1),
        "failure": failed,
    }


def main() -> int:
    """The command line; 1 if anything was left half done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "TIMES", "SEED"), help="in this process")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.one is not None:
        name, times, seed = options.one
        print(*one(name, int(times), int(seed)))
        return 0
    import test_faults

    here = set(test_faults.WRITERS).difference(() if torch.cuda.is_available() else test_faults.ON_CUDA)
    names = options.names or sorted(here, key=lambda name: name != "demo")
    pieces = [min(PIECE, options.times - start) for start in range(0, options.times, PIECE)]
    tasks = [(name, times, seed) for name in names for seed, times in enumerate(pieces)]
    found = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for piece in as_completed([pool.submit(_in_its_own_process, task) for task in tasks]):
            found.append(piece.result())
            print(found[-1], flush=True)
    for name in names:
        rows = [r for r in found if r["command"] == name]
        killed, begun, writing = (sum(r[key] for r in rows) for key in ("killed", "begun", "writing"))
        wrong = [r["failure"] for r in rows if r["failure"]]
        counts = f"{killed} killed while they ran, {writing} of them while they wrote, of {begun} begun"
        print(f"{name}: {counts}; {len(wrong)} failures", *wrong, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(r["failure"] for r in found))


if __name__ == "__main__":
    raise SystemExit(main())
