"""A solve whose process is killed goes on in the next one, and ends with the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

SCRIPT = """
import sys
import numpy as np, torch
import notsodeep as nsd
from notsodeep.solve import solve_kernel
from notsodeep.solve.iterative import SolveCheckpoint

SolveCheckpoint.due = lambda self: True
mix = nsd.GaussianMixture.two_class(60)
X, y = mix.sample(400, seed=0)
targets = torch.from_numpy(np.stack([2.0 * y - 1.0, np.sin(X[:, 0])], axis=1))
found = solve_kernel(
    lambda a, b: nsd.ntk(nsd.DEQ("relu", 0.2), a, b), torch.from_numpy(X), targets, [1e-4], method="cg",
    preconditioner="none", tol=1e-10, dtype="float32", checkpoint=sys.argv[1], max_steps=5000,
)
np.savez(sys.argv[2], coefficients=found.coefficients.numpy(), steps=found.steps)
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_is_resumed_by_the_next(tmp_path):
    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path / "state", tmp_path / f"{name}.npz"])

    assert start("whole").wait(120) == 0
    kills = 0
    while not (tmp_path / "resumed.npz").exists():
        process = start("resumed")
        deadline = time.monotonic() + 60
        seen = (tmp_path / "state").stat().st_mtime_ns if (tmp_path / "state").exists() else 0
        while process.poll() is None and kills < 2 and time.monotonic() < deadline:
            if (tmp_path / "state").exists() and (tmp_path / "state").stat().st_mtime_ns > seen:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.wait(120)
    whole, resumed = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "resumed.npz")
    assert kills == 2
    assert not (tmp_path / "state").exists()
    assert whole["steps"] == resumed["steps"]
    assert (whole["coefficients"] == resumed["coefficients"]).all()
