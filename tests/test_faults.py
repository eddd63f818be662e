"""Faults: every command that writes is killed at random moments and runs out of space.

After each fault a file is what it was before or whole, never a half; the next run completes, clears what was left, and
its numbers are those of a run that was never disturbed. Commands run in children of a server that has imported all and
computed nothing: neither the threads of gradients nor a CUDA context outlive a fork.
``tests/fuzz/kills.py`` kills each of them a hundred times.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.cli import app

matplotlib.use("Agg")
import matplotlib.image
import matplotlib.pyplot

resource = pytest.importorskip("resource", reason="needs the limits of Unix")

CLEAN = 0
FAILED = 1
REFUSED = 2  # before the work


# ---- what writes ---------------------------------------------------------------------------------------------


def command(line: str) -> Callable[[], None]:
    """A command line as it runs in a child, in its folder."""

    def run() -> None:
        with contextlib.redirect_stdout(open(os.devnull, "w")):
            app(line.split(), prog_name="notsodeep")

    return run


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    return X, (X[:, 0] > 0).long()


def train(device: str = "cpu") -> None:
    model = nsd.nn.ENN(nsd.ENN(["tanh"]), 6, 200, 2, seed=1, device=device)
    nsd.nn.fit(model, blobs(), optimiser="adam", epochs=12, checkpoint="run.safetensors", progress=False)
    nsd.nn.save(model, "model.safetensors")


def save() -> None:
    for _ in range(20):
        nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh", "tanh"]), 64, 300, 2, seed=1), "model.safetensors")


def replacement() -> None:
    torch.manual_seed(0)
    X, model = blobs()[0].repeat(3, 1), torch.nn.Linear(6, 2)
    options = nsd.nn.ReplaceOptions(steps=20, width=300)
    fast = nsd.replace(model, X, calibration=X, disagreement=0.3, options=options, progress=False)
    for _ in range(20):
        fast.save("fast.safetensors")


def is_matrix(path: Path) -> Any:
    return np.load(path).tobytes()


def is_json(path: Path) -> Any:
    return json.loads(path.read_text())


def is_picture(path: Path) -> Any:
    return matplotlib.image.imread(path).tobytes()


def is_network(path: Path) -> Any:
    return {name: value.numpy().tobytes() for name, value in nsd.nn.load(path).state_dict().items()}


def is_replacement(path: Path) -> Any:
    torch.manual_seed(0)
    return str(nsd.nn.Replacement.load(path, torch.nn.Linear(6, 2)).certificate)


@dataclass(frozen=True)
class Writer:
    """Something that writes files, and how each is read whole."""

    run: Callable[[], None]
    files: dict[str, Callable[[Path], Any]]


WRITERS = {
    "kernel": Writer(command("kernel X.npy relu -o K.npy --force"), {"K.npy": is_matrix}),
    "match": Writer(command("match relu --save twin.json --force"), {"twin.json": is_json}),
    "spectrum": Writer(command("spectrum relu -p 64 -n 48 --plot law.png --force"), {"law.png": is_picture}),
    "learn": Writer(command("learn relu -p 64 -n 40:80:3 --plot curve.png --force"), {"curve.png": is_picture}),
    "train": Writer(train, {"model.safetensors": is_network}),
    "replacement": Writer(replacement, {"fast.safetensors": is_replacement}),
    "save": Writer(save, {"model.safetensors": is_network}),
    "demo": Writer(command("demo --quick -o demo"), {"demo/demo.png": is_picture}),
    "train_cuda": Writer(lambda: train("cuda"), {"model.safetensors": is_network}),
}
ON_CUDA = ("train_cuda",)  # for tests/fuzz/kills.py, where a device is at hand
LONG = ("spectrum", "learn", "demo", "replacement")  # seconds each: in the slow run alone


SERVER = multiprocessing.get_context("forkserver")
# a server does not look beside the tests for modules; optimisers bring the compiler along
SERVER.set_forkserver_preload(
    ["notsodeep.cli", "notsodeep.estimators", "notsodeep.nn", "matplotlib.pyplot", "pytest", "torch._dynamo"]
)


# ---- running them ----------------------------------------------------------------------------------------------


def begin(name: str, folder: Path, most: int | None = None, user: int | None = None) -> Any:
    process = SERVER.Process(target=_child, args=(name, folder, most, user))
    process.start()
    return process


def _child(name: str, folder: Path, most: int | None, user: int | None) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    with open("said", "wb") as said:
        os.dup2(said.fileno(), 2)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if user is not None:
        os.setuid(user)
    code = CLEAN
    try:
        WRITERS[name].run()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
    except nsd.errors.NotSoDeepError:
        code = FAILED
    os._exit(code)


def finish(process: Any) -> int:
    process.join(300)
    return process.exitcode


def killed_after(process: Any, delay: float, folder: Path, aimed: bool) -> None:
    """SIGKILL after a while; ``aimed``: when from then on a new part is seen, at once or a moment later."""
    deadline, left = time.monotonic() + delay, set(parts(folder))
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0005)
    while aimed and process.is_alive() and left.issuperset(parts(folder)):
        pass
    if aimed:
        time.sleep(random.choice((0.0, random.uniform(0.0, 0.004))))
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def prepare(folder: Path) -> Path:
    folder.mkdir()
    X = np.random.default_rng(0).standard_normal((400, 20)) / 20**0.5
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", (X[:, 0] > 0).astype(int))
    return folder


def parts(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.part"))


def contents(writer: Writer, folder: Path) -> dict[str, Any]:
    """Every file that is there, read whole: a half raises."""
    return {name: read(folder / name) for name, read in writer.files.items() if (folder / name).exists()}


def kill(name: str, times: int, tmp_path: Path, seed: int) -> tuple[int, int]:
    """Kill so many running processes, and return how many were begun for it, and how many were caught writing.

    Each kill is followed by a look at the files, some by a run that is left alone. A process that ended before its
    moment does not count; what is left to do in its folder was less than in an empty one, so the moments draw nearer.
    """
    random.seed(seed)
    writer = WRITERS[name]
    calm = prepare(tmp_path / "calm")
    started = time.monotonic()
    assert finish(begin(name, calm)) == CLEAN, (calm / "said").read_text()
    seconds = within = time.monotonic() - started
    whole = contents(writer, calm)
    assert set(whole) == set(writer.files)
    rough, hits, begun, misses, caught = prepare(tmp_path / "rough"), 0, 0, 0, 0
    while hits < times:
        assert begun <= 10 * times + 20, f"{name} ends before it can be killed"
        left = set(parts(rough))
        started, fresh, process = time.monotonic(), not contents(writer, rough), begin(name, rough)
        begun += 1
        killed_after(process, random.uniform(0.0, within), rough, aimed=hits % 2 == 1)
        hit = process.exitcode == -signal.SIGKILL
        caught += hit and not left.issuperset(parts(rough))
        assert contents(writer, rough).items() <= whole.items()
        if hit:
            hits, misses, within = hits + 1, 0, min(seconds, 1.2 * within)
        else:
            misses, within = misses + 1, 0.6 * within
            seconds = min(seconds, time.monotonic() - started) if fresh else seconds
        if hit and hits % max(10, times // 4) == 0:
            recovers(name, rough, whole)
        if misses == 2:
            shutil.rmtree(rough)  # finished work is not always repeated: begin anew
            rough, within, misses = prepare(tmp_path / "rough"), seconds, 0
    recovers(name, rough, whole)
    return begun, caught


def recovers(name: str, folder: Path, whole: dict[str, Any]) -> None:
    assert finish(begin(name, folder)) == CLEAN, (folder / "said").read_text()
    assert contents(WRITERS[name], folder) == whole


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in LONG + ON_CUDA])
def test_killed_writers_leave_no_halves(name, tmp_path):
    kill(name, 3, tmp_path, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ON_CUDA])
def test_killed_a_hundred_times(name, tmp_path):
    begun, caught = kill(name, 100, tmp_path, seed=1)
    print(f"{name}: 100 of {begun} processes killed while they ran, {caught} while they wrote, 0 halves")


# ---- no space ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of ``size`` bytes, where this system lets us mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    ).returncode
    if mounted:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be taken by root alone")
@pytest.mark.parametrize("name", ["kernel", "match", "save", "train"])
def test_a_folder_that_may_not_be_written_to_is_a_clean_error(name):
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        folder = prepare(Path(made) / "desk")
        assert finish(begin(name, folder)) == CLEAN, (folder / "said").read_text()
        whole = contents(WRITERS[name], folder)
        folder.chmod(0o555)
        assert finish(begin(name, folder, user=NOBODY)) in (FAILED, REFUSED)
        assert "Traceback" not in (folder / "said").read_text()
        assert contents(WRITERS[name], folder) == whole
        assert parts(folder) == []


LARGEST = {
    "kernel": 200_000,
    "match": 1000,
    "spectrum": 2000,
    "train": 4000,
    "save": 4000,
}  # bytes, far too few


@pytest.mark.parametrize("name", LARGEST)
def test_a_file_that_may_not_grow_is_a_clean_error(name, tmp_path):
    writer = WRITERS[name]
    folder = prepare(tmp_path / "desk")
    assert finish(begin(name, folder, most=LARGEST[name])) == FAILED
    assert contents(writer, folder) == {}
    assert finish(begin(name, folder)) == CLEAN, (folder / "said").read_text()
    whole = contents(writer, folder)
    assert set(whole) == set(writer.files)
    if name != "train":  # a finished run is not repeated
        assert finish(begin(name, folder, most=LARGEST[name])) == FAILED
    assert contents(writer, folder) == whole


@pytest.mark.parametrize("name", LARGEST)
def test_a_full_disk_is_a_clean_error(name, tmp_path):
    writer = WRITERS[name]
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        folder = prepare(disk / "desk")
        room = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
        assert finish(begin(name, folder)) == FAILED
        assert contents(writer, folder) == {}
        (disk / "ballast").unlink()
        assert finish(begin(name, folder)) == CLEAN, (folder / "said").read_text()
        assert set(contents(writer, folder)) == set(writer.files)
