"""The public names of the package: what a user may call, with the signature that a docstring must explain."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import notsodeep as nsd

ROOMS = ("activations", "errors", "estimators", "nn", "plots", "solve")


def public_names() -> dict[str, Any]:
    """Functions and classes of the top level and of the public rooms, by the name that a user writes after ``nsd.``."""
    found = {name: getattr(nsd, name) for name in nsd.__all__}
    for room in ROOMS:
        module = getattr(nsd, room)
        found |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    return {name: thing for name, thing in _once(found) if inspect.isfunction(thing) or inspect.isclass(thing)}


def public_methods(cls: type) -> dict[str, Any]:
    """Functions of this package that users of a class call; a method that overrides another one keeps its contract."""
    above = {name for base in cls.__mro__[1:] for name in vars(base)}
    found = {name: getattr(member, "__func__", member) for name, member in vars(cls).items() if name not in above}
    return {name: f for name, f in found.items() if not name.startswith("_") and inspect.isfunction(f)}


def parameters(thing: Any) -> list[str]:
    """What a call takes, without ``self`` and without what is private."""
    try:
        taken = inspect.signature(thing).parameters
    except ValueError:  # a class of Python's own, as an exception is
        return []
    return [name for name in taken if name not in ("self", "cls") and not name.startswith("_")]


def _once(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A thing that has several names, under the first of them."""
    seen: set[int] = set()
    for name, thing in found.items():
        if id(thing) not in seen:
            seen.add(id(thing))
            yield name, thing
