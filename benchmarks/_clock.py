"""The clock of every benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["elapsed"]


def elapsed(work: Callable[[], Any], device: torch.device | str = "cpu") -> float:
    """Wall time of one call in seconds; on a GPU with all that it has set going."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_bytes(function: Callable[[], Any], device: torch.device) -> int:
    """The most bytes of tensors alive at one time during a call, beyond those alive before it.

    CUDA counts for itself. On the CPU the allocations are replayed from torch's profiler.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.kineto_results.events()
    changes = sorted(((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda c: c[0])
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak
