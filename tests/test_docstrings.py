"""Every public name explains itself in NumPy's style: a summary, its parameters, what it returns, and an example."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import surface

SECTION = r"^{}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)"


def section(doc: str, title: str) -> str | None:
    found = re.search(SECTION.format(title), doc, flags=re.MULTILINE | re.DOTALL)
    return None if found is None else found[1]


def described(doc: str, *titles: str) -> set[str]:
    """The names that stand at the start of a line of these sections, ``a, b : float`` being two of them."""
    texts = [section(doc, title) or "" for title in titles]
    lines = [line for text in texts for line in text.splitlines() if re.match(r"[*\w]", line)]
    return {name.strip(" *") for line in lines for name in line.split(":")[0].split(",")}


def faults(name: str, thing: Any) -> Iterator[str]:
    """What the docstring of a function or of a class lacks; of a method its summary suffices."""
    doc = inspect.cleandoc(thing.__doc__ or "")
    if not re.match(r"[^\n]+\.(\n\n|\Z)", doc):
        yield f"{name}: a summary of one line that ends with a full stop"
    if is_method(name):
        return
    missing = set(surface.parameters(thing)) - described(doc, "Parameters", "Attributes") - explained_fields(thing)
    if missing and not name.startswith("errors."):
        yield f"{name}: Parameters explain {', '.join(sorted(missing))}"
    if needs_returns(thing) and not (section(doc, "Returns") or section(doc, "Yields")):
        yield f"{name}: Returns"
    if not name.startswith("errors.") and ">>> " not in doc:
        yield f"{name}: an example that runs"


def explained_fields(thing: Any) -> set[str]:
    """Fields of a record that have a sentence of their own below them."""
    if not dataclasses.is_dataclass(thing):
        return set()
    (body,) = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(thing))).body]
    pairs = itertools.pairwise(body)
    return {
        field.target.id
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
    }


def is_method(name: str) -> bool:
    return "()." in name


def needs_returns(thing: Any) -> bool:
    returns = getattr(thing, "__annotations__", {}).get("return") not in (None, "None", "NoReturn")
    return inspect.isfunction(thing) and returns


def everything() -> dict[str, Any]:
    """Public names, and the methods of public classes as ``Class().method``; their class shows them in its example."""
    names = surface.public_names()
    classes = {name: thing for name, thing in names.items() if inspect.isclass(thing)}
    methods = {f"{n}().{m}": f for n, cls in classes.items() for m, f in surface.public_methods(cls).items()}
    return names | methods


def test_every_public_name_explains_itself():
    assert [fault for name, thing in everything().items() for fault in faults(name, thing)] == []


def test_a_poor_docstring_is_found():
    def poor(a: int, b: int) -> int:
        """adds

        Parameters
        ----------
        a : int
            The first number.
        """

    assert [fault.split(": ", 1)[1] for fault in faults("poor", poor)] == [
        "a summary of one line that ends with a full stop",
        "Parameters explain b",
        "Returns",
        "an example that runs",
    ]
