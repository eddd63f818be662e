"""The one cache of the package: results of pure functions, cleared all together by :func:`clear_caches`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_CLEAR: list[Callable[[], None]] = []


def cached(size: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that stores the results of the last ``size`` different calls."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        # tensors among the results are ordinary ones, even if the first call comes from inference mode
        stored = functools.lru_cache(maxsize=size)(torch.inference_mode(False)(function))
        _CLEAR.append(stored.cache_clear)
        return stored  # type: ignore[return-value]

    return decorate


def clear_caches() -> None:
    """Forget every table, rule and coefficient that was stored for later calls.

    Results do not change, since caches hold only what would be computed again.

    Returns
    -------
    None

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.clear_caches()
    """
    for clear in _CLEAR:
        clear()
