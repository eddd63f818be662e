"""JSON documents that come from outside, before anything is made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import SerialisationError

__all__ = ["parsed"]

_DEEPEST = 40  # levels of a document; an activation in an affine one in an affine one takes two each
_LONGEST = 10_000_000  # characters of a document, entries of it when it comes as a dictionary


def parsed(document: Any, what: str) -> dict[str, Any]:
    """The content of a document or of its text, neither too deep nor too long to be read; ``what`` it describes."""
    if isinstance(document, str):
        if len(document) > _LONGEST:
            raise SerialisationError(f"{what} is not {len(document)} characters long; at most {_LONGEST} are read")
        try:
            document = json.loads(document)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
            raise SerialisationError(f"not the JSON document of {what}: {error}") from None
    if not isinstance(document, Mapping):
        raise SerialisationError(f"expected a JSON object that describes {what}, got {type(document).__name__}")
    _check_size(document, what)
    return dict(document)


def _check_size(document: Mapping[str, Any], what: str) -> None:
    """Level by level, so that no document can exhaust the stack."""
    level: list[Any] = [document]
    entries = 0
    for _ in range(_DEEPEST):
        following: list[Any] = []
        for part in level:
            if isinstance(part, Mapping):
                following.extend(part.values())
            elif isinstance(part, list | tuple):
                following.extend(part)
        entries += len(following)
        if not following:
            return
        if entries > _LONGEST:
            break
        level = following
    raise SerialisationError(f"{what} is not nested {_DEEPEST} levels deep, nor has it {_LONGEST} entries")
