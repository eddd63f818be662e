"""Equilibrium solvers: each one turns the last iterate z and its image f(z) into the next iterate.

A solver lives for one solve and treats every row by itself; ``keep`` restricts its memory to some rows.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InvalidInputError
from .anderson import Anderson
from .auto import Auto
from .base import Solver
from .broyden import Broyden
from .picard import Picard

__all__ = ["Anderson", "Auto", "Broyden", "Picard", "Solver", "new_solver", "solver_names"]

_SOLVERS: dict[str, Callable[[], Solver]] = {"auto": Auto, "picard": Picard, "anderson": Anderson, "broyden": Broyden}


def solver_names() -> list[str]:
    """The names that ``solver=`` takes."""
    return list(_SOLVERS)


def new_solver(name: str) -> Solver:
    """A fresh solver by name.

    >>> new_solver("picard")
    Picard()
    """
    if name not in _SOLVERS:
        raise InvalidInputError(f"unknown equilibrium solver {name!r}; known: {', '.join(_SOLVERS)}")
    return _SOLVERS[name]()
