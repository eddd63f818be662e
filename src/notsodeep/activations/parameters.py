"""Parameters of activations: finite Python floats, hashable, comparable and fit for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .._arguments import shown
from ..errors import ActivationError

__all__ = ["numbers", "sequences"]

LONGEST = 10_000
"""Entries of a sequence of parameters: far beyond any use, and short enough that reading one cannot fill the memory."""


def numbers(owner: Any, *names: str) -> None:
    """Store the fields ``names`` as finite Python floats."""
    for name in names:
        object.__setattr__(owner, name, number(type(owner).__name__, name, getattr(owner, name)))


def sequences(owner: Any, *names: str) -> None:
    """Store the fields ``names`` as tuples of finite Python floats."""
    kind = type(owner).__name__
    for name in names:
        given = getattr(owner, name)
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise ActivationError(f"{kind}: {name} must be a sequence of numbers, got {shown(given)}")
        listed = list(given)
        if len(listed) > LONGEST:
            raise ActivationError(f"{kind}: {name} holds {len(listed)} numbers; at most {LONGEST} are allowed")
        values = tuple(number(kind, f"{name}[{i}]", value) for i, value in enumerate(listed))
        object.__setattr__(owner, name, values)


def number(owner: str, name: str, value: Any) -> float:
    """``value`` as a finite float, or a refusal that names the owner and the parameter."""
    try:
        result = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise ActivationError(f"{owner}: {name} must be a finite number, got {shown(value)}")
    return result
