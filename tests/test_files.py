"""The one writer: whole or not at all, with the permissions, links and names that were there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest

from notsodeep._files import atomic, check_name, write_matrix, write_text


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_replaced_file_keeps_its_permissions(mode, tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(mode)
    write_text(tmp_path / "old", "new")
    assert (tmp_path / "old").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_points_to_is_written(there, tmp_path):
    (tmp_path / "far").mkdir()
    if there:
        (tmp_path / "far" / "target").write_text("old")
    (tmp_path / "link").symlink_to(Path("far") / "target")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "target").read_text() == "new"
    assert names(tmp_path) == ["far", "link"]
    assert names(tmp_path / "far") == ["target"]


@pytest.mark.parametrize("name", ["x" * 245, "x" * 255, "é" * 127, "a"])
def test_every_legal_name_can_be_written(name, tmp_path):
    for text in ("old", "new"):
        write_text(tmp_path / name, text)
    assert (tmp_path / name).read_text() == "new"
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_a_writer_that_breaks_off_leaves_what_was_there(error, tmp_path):
    def breaks_off():
        with atomic(tmp_path / "file") as part:
            part.write_text("half")
            raise error

    write_text(tmp_path / "file", "old")
    with pytest.raises(type(error)):
        breaks_off()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_space_is_reserved_before_the_work(tmp_path):
    (tmp_path / "K.npy").write_text("old")
    with pytest.raises(OSError, match="bytes needed"):
        write_matrix(tmp_path / "K.npy", (1 << 20, 1 << 20), np.float64, lambda out: 1 / 0)
    assert (tmp_path / "K.npy").read_text() == "old"
    assert names(tmp_path) == ["K.npy"]


def test_devices_and_folders_are_not_replaced(tmp_path):
    with pytest.raises(OSError, match="Not a regular file"):
        write_text(Path(os.devnull), "text")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "text")


def test_a_matrix_is_filled_on_the_disk(tmp_path):
    write_matrix(tmp_path / "K.npy", (3, 2), np.float32, lambda out: out.__setitem__(slice(None), 7.0))
    assert np.array_equal(np.load(tmp_path / "K.npy"), np.full((3, 2), 7.0, dtype=np.float32))
    with pytest.raises(ZeroDivisionError):
        write_matrix(tmp_path / "K.npy", (3, 2), np.float32, lambda out: 1 / 0)
    assert names(tmp_path) == ["K.npy"]


def test_a_system_that_reserves_no_space_writes_all_the_same(tmp_path, monkeypatch):
    """Windows and macOS have no posix_fallocate."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    write_matrix(tmp_path / "K.npy", (3, 2), np.float64, lambda out: out.fill(1.0))
    assert names(tmp_path) == ["K.npy"]
    assert np.load(tmp_path / "K.npy").sum() == 6.0


def test_parts_of_killed_writers_are_removed_by_the_next_one_and_nothing_else_is(tmp_path):
    """A part is removed a day after the last write to it; a user's own files have other names."""
    long_ago = time.time() - 100_000
    left = tmp_path / f".K.npy.{'0' * 16}.part"
    kept = [tmp_path / name for name in (".K.npy.download.part", f".L.npy.{'0' * 16}.part", f"K.npy.{'0' * 16}.part")]
    kept += [tmp_path / f".K.npy.{'0' * 15}.part", tmp_path / f".K.npy.{'g' * 16}.part"]
    fresh = tmp_path / f".K.npy.{'1' * 16}.part"
    for path in (left, fresh, *kept):
        path.write_text("part")
    for path in (left, *kept):
        os.utime(path, (long_ago, long_ago))
    with atomic(tmp_path / "K.npy") as slow:
        slow.write_text("slow")
        write_text(tmp_path / "K.npy", "quick")  # another writer of the same file meanwhile
        assert slow.exists()
    assert (tmp_path / "K.npy").read_text() == "slow"
    assert sorted(names(tmp_path)) == sorted(["K.npy", fresh.name, *(path.name for path in kept)])


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="processes are known by number on Linux alone")
def test_parts_of_writers_killed_on_this_machine_are_removed_at_once(tmp_path):
    code = (
        "import sys, pathlib, notsodeep._files as files\n"
        "with files.atomic(pathlib.Path(sys.argv[1])) as part:\n"
        "    part.write_text('half'); print('ready', flush=True); sys.stdin.read()"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "K.npy")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"ready\n"
    write_text(tmp_path / "K.npy", "whole")
    assert len(names(tmp_path)) == 2  # it lives, and its part with it
    writer.kill()
    writer.communicate()
    write_text(tmp_path / "K.npy", "whole")
    assert list(names(tmp_path)) == ["K.npy"]


WINDOWS_HAS_NOT = [
    "NUL",
    "con.npy",
    "COM1",
    "lpt9.txt",
    "aux .npy",
    "K.npy.",
    "K ",
    "ab:c",
    "K?.npy",
    "a\x01",
    "C:\\x\\nul\\K.npy",
]
WINDOWS_HAS = [
    "C:\\Users\\me\\K.npy",
    "..\\K.npy",
    ".\\null.npy",
    "\\\\host\\share\\K.npy",
    "C:K.npy",
    "communes.npy",
    "é.npy",
]


@pytest.mark.parametrize("name", WINDOWS_HAS_NOT)
def test_names_that_windows_does_not_have_are_refused_there(name):
    with pytest.raises(OSError, match="Windows has no file or folder of the name"):
        check_name(PureWindowsPath(name), windows=True)
    check_name(PurePosixPath(name), windows=False)


@pytest.mark.parametrize("name", WINDOWS_HAS)
def test_other_names_are_taken_there(name):
    check_name(PureWindowsPath(name), windows=True)


LIKE_WINDOWS = """
import os, signal, sys
import numpy as np, sklearn.utils, torch  # which have ways of their own
for name in ("posix_fallocate", "getuid", "geteuid", "fork", "kill", "link", "sysconf", "fchmod", "chown"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGPROF", "SIGHUP", "alarm", "setitimer", "pthread_sigmask"):
    delattr(signal, name)
sys.modules |= dict.fromkeys(["fcntl", "pwd", "grp", "termios"])

def is_open(path):
    path = os.path.realpath(path)
    return path in open("/proc/self/maps").read() or any(
        os.path.realpath(f"/proc/self/fd/{number}") == path for number in os.listdir("/proc/self/fd")
    )

def replace(part, target, real=os.replace):
    if is_open(part) or is_open(target):
        raise PermissionError(13, "The process cannot access the file because it is being used")
    real(part, target)

os.replace = replace
import notsodeep as nsd
from notsodeep.cli import app
X = np.random.default_rng(0).standard_normal((30, 4))
np.save("X.npy", X)
for _ in range(2):
    K = nsd.ck(nsd.DEQ("relu", 0.2), X, out="K.npy")
    nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh"]), 4, 8, 2), "network.safetensors")
    nsd.nn.load("network.safetensors")
    data = torch.from_numpy(X).float(), torch.arange(30) % 2
    nsd.nn.fit(nsd.nn.ENN(nsd.ENN(["tanh"]), 4, 8, 2), data, epochs=2, checkpoint="run.safetensors", progress=False)
    for line in ("kernel X.npy relu -o L.npy --force", "match relu --save twin.json --force"):
        app(line.split(), standalone_mode=False)
nsd.DEQClassifier(solver=nsd.solve.CG(), ridge=0.1).fit(X, X[:, 0] > 0)
print(*sorted(os.listdir(".")))
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="open files are known on Linux alone")
def test_all_is_written_without_the_functions_of_unix_and_never_over_an_open_file(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIKE_WINDOWS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-6:] == names(tmp_path)
    assert set(names(tmp_path)) == {"K.npy", "L.npy", "X.npy", "network.safetensors", "run.safetensors", "twin.json"}


def test_a_file_that_another_writer_has_made_stays_where_there_are_no_links(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "link")
    with atomic(tmp_path / "K.npy", first=True) as part:
        part.write_text("late")
        (tmp_path / "K.npy").write_text("early")
    assert (tmp_path / "K.npy").read_text() == "early"
    with atomic(tmp_path / "L.npy", first=True) as part:
        part.write_text("alone")
    assert (tmp_path / "L.npy").read_text() == "alone"
    assert names(tmp_path) == ["K.npy", "L.npy"]
