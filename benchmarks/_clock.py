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
