"""What stands between a kernel and the machine: programs that do not run, and the number of threads."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import ConvergenceError, NotSoDeepWarning
from notsodeep.kernels import device, tabulate


def raising(error: Exception) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(device, "_refused", set())
    return SimpleNamespace(table=object(), short=None)


def test_short_memory_is_told_and_tried_again(points: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_run", raising(torch.OutOfMemoryError("CUDA out of memory")))
    for _ in range(2):
        with pytest.warns(NotSoDeepWarning, match="no memory left"):
            assert not device.fill_fused(points, {})
    assert not device._refused
    monkeypatch.setattr(device, "_run", lambda *_: True)
    assert device.fill_fused(points, {})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("Failed to find C compiler. Please specify via CC environment variable."), "install gcc"),
        (FileNotFoundError(2, "No such file", "cc"), "install gcc"),
        (subprocess.CalledProcessError(1, ["gcc"]), "install gcc"),
        (RuntimeError("PTX was compiled with an unsupported toolchain"), "unsupported toolchain"),
        (ValueError("fp64 dot is not supported"), "does not support them"),
    ],
)
def test_programs_that_do_not_run_are_told_once(
    points: Any, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_run", raising(error))
    with pytest.warns(NotSoDeepWarning, match=words):
        assert not device.fill_fused(points, {})
    assert device.program("matrix", "ck") is None  # nothing more is started
    assert not device.fill_fused(points, {})  # a second warning would be an error here


def test_an_error_of_the_kernel_is_no_error_of_the_program(points: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_run", raising(ConvergenceError("the NTK diverges")))
    with pytest.raises(ConvergenceError):
        device.fill_fused(points, {})
    assert not device._refused
    assert device.program("matrix", "ck") is nsd.ck


def threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_the_number_of_threads_of_others_stays() -> None:
    """Work in one thread once left its number, 1, to every thread that torch saw for the first time meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with tabulate.one_thread():
            assert torch.get_num_threads() == 1
            assert threads_of_a_new_thread() == 3
            with tabulate.one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
        X = torch.randn(1500, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        others: list[int] = []
        stop = threading.Event()
        watcher = threading.Thread(
            target=lambda: [others.append(threads_of_a_new_thread()) for _ in iter(stop.is_set, True)]
        )
        watcher.start()
        nsd.ck(nsd.DEQ("relu", 0.2), X)
        stop.set()
        watcher.join()
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
    finally:
        torch.set_num_threads(before)
