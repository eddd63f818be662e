"""The boundary of public functions: arguments are checked once against their annotations, and settings kept out.

beartype knows types; this module knows numbers and sentences.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from beartype.door import is_bearable
from torch import Tensor

from .errors import ActivationError, InvalidInputError, once

P = ParamSpec("P")
R = TypeVar("R")
Test = Callable[[Any], bool]


class Kind(NamedTuple):
    """What an argument may be: the test, its words in a refusal, and the conversion of what passes the test."""

    test: Test
    words: str
    convert: Callable[[Any], Any] = lambda value: value


def checked(
    function: Callable[P, R], *, settings: Callable[[], contextlib.AbstractContextManager[None]] | None = None
) -> Callable[P, R]:
    """Return the function with a check of its arguments, which converts numbers and flags to Python's own.

    It runs apart from the caller's settings of torch (:func:`isolation`), or within the ``settings`` given.
    """
    refusal = ActivationError if ".activations" in function.__module__ else InvalidInputError
    order = function.__code__.co_varnames[: function.__code__.co_argcount]
    unpacks = any(str(note).startswith("Unpack[") for note in function.__annotations__.values())

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = _parameter_kinds(function)
        if unpacks:
            _refuse_unknown("arguments", kwargs, kinds)
        plain = [_plain(name, value, kinds.get(name, ()), refusal) for name, value in zip(order, args, strict=False)]
        named = {name: _plain(name, value, kinds.get(name, ()), refusal) for name, value in kwargs.items()}
        errors = np.errstate(divide="warn", over="warn", invalid="warn", under="ignore")  # whatever the caller has set
        with once(), errors, (settings or isolation)():
            return function(*plain, *args[len(order) :], **named)  # type: ignore[arg-type]

    return inside


@contextlib.contextmanager
def on_processor() -> Iterator[None]:
    """Compute on the processor unless a tensor says otherwise, with tensors that may have gradients."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if torch.empty(0).device.type != "cpu":  # quicker than torch.get_default_device()
            stack.enter_context(torch.device("cpu"))
        yield


@contextlib.contextmanager
def isolation() -> Iterator[None]:
    """Compute without autocast, too; ``@isolation()`` is a decorator."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(on_processor())
        yield


@contextlib.contextmanager
def _with_gradients() -> Iterator[None]:
    with on_processor(), torch.enable_grad():
        yield


ambient = functools.partial(checked, settings=contextlib.nullcontext)
"""Check the arguments of a function that follows the caller's settings, as modules of torch do."""
trains = functools.partial(checked, settings=_with_gradients)
"""Check the arguments of a function that trains, under the caller's autocast but wherever it is called."""


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as one that ``torch.compile`` calls and does not look into."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # asked for only then: the compiler takes two seconds to load
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return inside


def check_settings(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object that its constructor has as parameters, as plain values, or refuse them."""
    kinds = _parameter_kinds(type(owner).__init__)
    return {name: _plain(name, getattr(owner, name), kind, InvalidInputError) for name, kind in kinds.items()}


def check_fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document by a schema of annotations; one that is missing must be allowed to be None."""
    _refuse_unknown("fields", document, schema)
    kinds = {name: _kinds(note, {}) for name, note in schema.items()}
    return {name: _plain(name, document.get(name), kind, InvalidInputError) for name, kind in kinds.items()}


def _refuse_unknown(what: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := given.keys() - set(known):
        raise InvalidInputError(f"unknown {what} {shown(sorted(unknown))}; there are {', '.join(known)}")


def _plain(name: str, value: Any, kinds: Sequence[Kind], refusal: type[InvalidInputError]) -> Any:
    for kind in kinds:
        if kind.test(value):
            return kind.convert(value)
    if kinds:
        raise refusal(f"{name} must be {' or '.join(kind.words for kind in kinds)}, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Return what was given as text of at most 200 characters; Python refuses to print very long integers."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---- numbers that are more than their annotation ---------------------------------------------------------


def positive_int(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number of this range, as sizes and counts are, or refuse it."""
    if not _is_whole(value) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidInputError(f"{name} must be a whole number {allowed}, got {shown(value)}")
    return int(value)


def whole_seed(seed: Any, name: str = "seed") -> int:
    """Return a seed as generators take it: a whole number of 64 bits."""
    return int(_plain(name, seed, (KINDS[int],), InvalidInputError))


def flag(name: str, value: Any) -> bool:
    """Return True or False, or refuse anything else."""
    return bool(_plain(name, value, (KINDS[bool],), InvalidInputError))


def not_negative(name: str, value: Any) -> float:
    """Return a finite number that is zero or more, or refuse it."""
    if not _is_finite(value) or value < 0:
        raise InvalidInputError(f"{name} must be a finite number and not negative, got {shown(value)}")
    return as_float(value)


def finite(
    name: str, value: Any, depth: int = 0, refusal: type[InvalidInputError] = InvalidInputError, most: float = math.inf
) -> Any:
    """Return a finite Python float of size at most ``most``, or tuples of such numbers nested ``depth`` levels deep."""
    if depth:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise refusal(f"{name} must be a sequence of numbers, got {shown(value)}")
        return tuple(finite(f"{name}[{i}]", entry, depth - 1, refusal, most) for i, entry in enumerate(value))
    if not _is_finite(value) or abs(as_float(value)) > most:
        size = "" if most == math.inf else f" of size at most {most:.0e}"
        raise refusal(f"{name} must be a finite number{size}, got {shown(value)}")
    return as_float(value)


def as_float(value: Any) -> float:
    """Return what is known to be a number as Python's own; torch warns if that is a tensor with gradients."""
    return float(value.item() if isinstance(value, Tensor) else value)


# ---- what annotations mean -------------------------------------------------------------------------------


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not _is_flag(value) and -(2**63) <= int(value) < 2**64


def _is_number(value: Any) -> bool:
    if (_is_dense(value) or isinstance(value, np.ndarray)) and value.ndim == 0:  # one number, as averages are
        value = value.item()
    if not isinstance(value, Real) or _is_flag(value):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _is_finite(value: Any) -> bool:
    return _is_number(value) and abs(value) < math.inf


def _is_dense(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_complex() or value.is_nested or value.is_quantized:
        return False
    return value.layout == torch.strided and value.device.type != "meta"


def _is_path(value: Any) -> bool:
    try:
        return isinstance(value, str | os.PathLike) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _all(test: Test, length: int | None = None) -> Test:
    """Return a test of lists, tuples, ranges and one-dimensional arrays, every entry of which must pass."""

    def holds(value: Any) -> bool:
        if (_is_dense(value) or isinstance(value, np.ndarray)) and value.ndim == 1:
            value = value.tolist()
        listed = isinstance(value, list | tuple | range)
        return listed and length in (None, len(value)) and all(map(test, value))

    return holds


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


KINDS: dict[Any, Kind] = {
    bool: Kind(_is_flag, "True or False", bool),
    int: Kind(_is_whole, "a whole number of at most 64 bits", int),
    float: Kind(_is_number, "a number", as_float),
    Sequence[float]: Kind(_all(_is_finite), "a sequence of finite numbers", _floats),
    Sequence[int]: Kind(_all(_is_whole), "a sequence of whole numbers", lambda value: tuple(map(int, value))),
    tuple[float, float]: Kind(_all(_is_number, 2), "a pair of numbers", _floats),
    str: Kind(lambda value: isinstance(value, str), "text"),
    Path: Kind(_is_path, "a path"),
    NoneType: Kind(lambda value: value is None, "None"),
    Tensor: Kind(_is_dense, "a dense tensor of real numbers"),
}
_WORDS: dict[Any, str] = {Callable: "a function", Mapping: "a dictionary", Sequence: "a sequence"}
_MADE_BY = {"MixtureStatistics": " (MixtureStatistics.estimate(X, y) makes them)"}  # data are the usual mistake


@functools.cache  # annotations are read at the first call, when every module is there
def _parameter_kinds(function: Callable[..., Any]) -> dict[str, tuple[Kind, ...]]:
    """Return what each parameter may be, read from the annotations; an empty tuple stands for anything."""
    notes, names = dict(function.__annotations__), function.__globals__
    for name, note in function.__annotations__.items():
        if str(note).startswith("Unpack["):  # **name: Unpack[a typed dictionary]
            notes = {k: v for k, v in notes.items() if k != name} | get_type_hints(*get_args(eval(note, names)))
    return {name: _kinds(note, names) for name, note in notes.items() if name != "return"}


def _kinds(note: Any, names: dict[str, Any]) -> tuple[Kind, ...]:
    try:
        types = _union(eval(note, names) if isinstance(note, str) else note)
    except (NameError, AttributeError):  # imported for type checkers alone
        return ()
    kinds = [_kind(hint) for hint in types if hint is not str or Path not in types]
    return tuple(kind for kind in kinds if kind) if all(kinds) else ()


def _union(hint: Any) -> list[Any]:
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return [inner for each in types for inner in _union(each)] if types else [hint]


def _kind(hint: Any) -> Kind | None:
    """Return what one type of a union means; None for arrays and Any, which the function itself reads."""
    if hint in KINDS:
        return KINDS[hint]
    origin: Any = get_origin(hint) or hint
    if origin is Literal:
        words = f"one of {', '.join(map(repr, get_args(hint)))}"
    elif isinstance(origin, type) and origin not in (Any, np.ndarray):
        words = _WORDS.get(origin) or f"a {_public_name(origin)}{_MADE_BY.get(origin.__name__, '')}"
    else:
        return None
    return Kind(functools.partial(is_bearable, hint=hint), words)


def _public_name(cls: type) -> str:
    """Return the name by which a user knows a class."""
    rooms = cls.__module__.split(".")
    if rooms[0] != "notsodeep":
        return cls.__name__
    return f"notsodeep.nn.{cls.__name__}" if rooms[1] == "nn" else f"notsodeep.{cls.__name__}"
