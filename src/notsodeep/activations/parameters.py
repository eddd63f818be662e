"""Parameters of activations: finite Python floats, hashable, comparable and fit for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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
            raise ActivationError(f"{kind}: {name} must be a sequence of numbers, got {_shown(given)}")
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
        raise ActivationError(f"{owner}: {name} must be a finite number, got {_shown(value)}")
    return result


def _shown(value: Any) -> str:
    """What was given, cut short; an integer of thousands of digits has no quick text at all."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
