"""What can be matched, and what a twin trains."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import InvalidInputError
from ..networks import Kernel

__all__ = ["MatchKernel", "Trains", "kernel_names"]

MatchKernel = Literal["ck", "ntk", "ntk_frozen", "both"]
Trains = Literal["all", "readout"]

_KERNELS: dict[str, tuple[Kernel, ...]] = {
    "ck": ("ck",),
    "ntk": ("ntk",),
    "ntk_frozen": ("ntk_frozen",),
    "both": ("ck", "ntk"),
}


def kernel_names(kernel: Any) -> tuple[Kernel, ...]:
    """The kernels that a request speaks of: ``"both"`` means the CK and the NTK of all weights."""
    if not isinstance(kernel, str) or kernel not in _KERNELS:
        raise InvalidInputError(f"kernel must be one of {sorted(_KERNELS)}, got {kernel!r}")
    return _KERNELS[kernel]
