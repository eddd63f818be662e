"""Arguments are what their annotations say they are: the one check of flags, numbers, names, paths and functions."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from .errors import ActivationError, InvalidInputError

P = ParamSpec("P")
R = TypeVar("R")
Test = Callable[[Any], bool]
_LONGEST = 10_000  # numbers in a row: far beyond any use, and too few to fill the memory


class Kind(NamedTuple):
    """What an argument may be, in words, and how it is handed on."""

    test: Test
    words: str
    plain: Callable[[Any], Any] = lambda value: value


Kinds = tuple[Kind, ...]  # one of these


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse what is not of the kind that the annotations of a function name.

    Annotations that speak of anything but flags, numbers, names, paths, functions, dense tensors and classes, of arrays
    above all, are left to those who read them.

    >>> def draw(times: int, bright: bool = True): ...
    >>> checked(draw)(3, bright="yes")
    Traceback (most recent call last):
    notsodeep.errors.InvalidInputError: bright must be True or False, got 'yes'
    """
    refusal = ActivationError if ".activations" in function.__module__ else InvalidInputError
    order = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        tests = _tests(function)  # not before a call, when all names are there
        plain = (_plain(name, value, tests.get(name, ()), refusal) for name, value in zip(order, args, strict=False))
        named = {name: _plain(name, value, tests.get(name, ()), refusal) for name, value in kwargs.items()}
        return function(*plain, *args[len(order) :], **named)  # type: ignore[arg-type]

    return inside


def check_settings(owner: Any) -> None:
    """Refuse attributes that are not of the kind that the constructor's parameters of the same name are."""
    for name, kinds in _tests(type(owner).__init__).items():
        _plain(name, getattr(owner, name), kinds)


def _plain(name: str, value: Any, kinds: Kinds, refusal: type[InvalidInputError] = InvalidInputError) -> Any:
    """A value of one of these kinds, numbers and flags as Python's own."""
    for kind in kinds:
        if kind.test(value):
            return kind.plain(value)
    if kinds:
        raise refusal(f"{name} must be {' or '.join(kind.words for kind in kinds)}, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """What was given, cut short; an integer of thousands of digits has no quick text at all."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---- numbers that are more than their annotation ---------------------------------------------------------


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number of this range, as sizes and counts are; everything else is refused."""
    if not _is_whole(value) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidInputError(f"{name} must be a whole number {allowed}, got {shown(value)}")
    return int(value)


def whole_seed(seed: Any, name: str = "seed") -> int:
    """What generators take: a whole number of 64 bits."""
    return int(_plain(name, seed, (_KINDS["int"],)))


def not_negative(name: str, value: Any) -> float:
    """A finite number that is zero or more."""
    if not _is_number(value) or not 0 <= value < math.inf:
        raise InvalidInputError(f"{name} must be a finite number and not negative, got {shown(value)}")
    return float(value)


def finite(name: str, value: Any, depth: int = 0, refusal: type[InvalidInputError] = InvalidInputError) -> Any:
    """A finite Python float, or tuples of them in tuples, so many levels deep: hashable, and fit for JSON."""
    if depth:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise refusal(f"{name} must be a sequence of numbers, got {shown(value)}")
        listed = list(value)
        if len(listed) > _LONGEST:
            raise refusal(f"{name} holds {len(listed)} numbers; at most {_LONGEST} are allowed")
        return tuple(finite(f"{name}[{i}]", entry, depth - 1, refusal) for i, entry in enumerate(listed))
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise refusal(f"{name} must be a finite number, got {shown(value)}")
    return number


def a_path(name: str, value: Any) -> Path:
    """A name that a file may have."""
    return Path(_plain(name, value, (_KINDS["str | Path"],)))


# ---- what annotations mean -------------------------------------------------------------------------------


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not _is_flag(value) and -(2**63) <= int(value) < 2**64


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.ndim == 0:  # one number, as averages and file readers give it
        value = value[()]
    if not isinstance(value, Real) or _is_flag(value):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.device.type != "meta"
        and not value.is_complex()
    )


def _is_path(value: Any) -> bool:
    """Text that may name a file, long or not."""
    try:
        return isinstance(value, str | os.PathLike) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _all(test: Test, least: int = 0, most: float = math.inf) -> Test:
    """Of lists and the like, so many entries that pass."""

    def holds(value: Any) -> bool:
        listed = isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)
        if _is_dense(value) and value.ndim == 1:
            listed, value = True, value.tolist()
        return listed and least <= len(value) <= most and all(map(test, value))

    return holds


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


_KINDS = {
    "bool": Kind(_is_flag, "True or False", bool),
    "int": Kind(_is_whole, "a whole number of at most 64 bits", int),
    "float": Kind(_is_number, "a number", float),
    "tuple[str, ...]": Kind(_all(lambda one: isinstance(one, str)), "a tuple of names"),
    "Sequence[float]": Kind(
        _all(lambda one: _is_number(one) and abs(one) < math.inf), "a sequence of finite numbers", _numbers
    ),
    "Sequence[int]": Kind(_all(_is_whole), "a sequence of whole numbers", lambda value: tuple(map(int, value))),
    "tuple[float, float]": Kind(_all(_is_number, 2, 2), "a pair of numbers", _numbers),
    "Axes": Kind(lambda value: hasattr(value, "transAxes"), "axes of matplotlib"),
    "Sequence[Axes]": Kind(_all(lambda value: hasattr(value, "transAxes")), "a sequence of axes of matplotlib"),
    "Mapping": Kind(lambda value: isinstance(value, Mapping), "a dictionary"),
    "str": Kind(lambda value: isinstance(value, str), "text"),
    "str | Path": Kind(_is_path, "a path"),
    "None": Kind(lambda value: value is None, "None"),
    "Callable": Kind(callable, "a function"),
    "Tensor": Kind(_is_dense, "a dense tensor of real numbers"),
}


@functools.cache
def _tests(function: Callable[..., Any]) -> dict[str, Kinds]:
    return {
        name: _kinds(str(note), function.__globals__)
        for name, note in function.__annotations__.items()
        if name != "return"
    }


def _kinds(note: str, names: dict[str, Any]) -> Kinds:
    """The checks of an annotation, one of which must hold; none if it speaks of anything else."""
    parts = ["str | Path", *note.split(" | ")[2:]] if note.startswith("str | Path") else note.split(" | ")
    found = [_KINDS.get(part) or _KINDS.get(part.split("[")[0]) or _named(part, names) for part in parts]
    return tuple(kind for kind in found if kind) if all(found) else ()


def _named(part: str, names: dict[str, Any]) -> Kind | None:
    """Of a class, of several, or of literal text, where this is what the name stands for."""
    try:
        meant = eval(part, names)
    except (NameError, SyntaxError, AttributeError):  # for the reader of types alone, or a part of something larger
        return None
    literal = get_args(meant)
    if get_origin(meant) is Literal:
        return Kind(
            lambda value: isinstance(value, str) and value in literal, f"one of {', '.join(map(repr, literal))}"
        )
    if isinstance(meant, UnionType) and all(isinstance(one, type) for one in literal):
        return Kind(lambda value: isinstance(value, meant), " or ".join(map(_class, literal)))
    if get_origin(meant) is Callable:
        return _KINDS["Callable"]
    if not isinstance(meant, type) or meant is Any:
        return None
    if getattr(meant, "_is_protocol", False):
        wanted = [name for name in (*vars(meant), *meant.__annotations__) if not name.startswith("_")]
        return Kind(lambda value: all(hasattr(value, name) for name in wanted), _class(meant))
    return Kind(lambda value: isinstance(value, meant), _class(meant))


def _class(meant: type) -> str:
    """A class by the name that a user knows, and how to get one where data are the usual mistake."""
    if meant.__name__ == "MixtureStatistics":
        return "notsodeep.MixtureStatistics (MixtureStatistics.estimate(X, y) makes them)"
    room = meant.__module__.split(".")[:2] if meant.__module__.startswith("notsodeep.nn") else ["notsodeep"]
    return f"a {'.'.join(room)}.{meant.__name__}" if meant.__module__.startswith("notsodeep") else f"a {meant.__name__}"
