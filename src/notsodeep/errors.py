"""Every failure the library reports: what was given, what is allowed, what to do."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = [
    "ActivationError",
    "CertificationError",
    "CheckpointError",
    "ClusterError",
    "ConcentrationWarning",
    "ContractionError",
    "ConvergenceError",
    "ConvergenceWarning",
    "DataError",
    "InfeasibleMatchError",
    "InvalidInputError",
    "MissingExtraError",
    "NotSoDeepError",
    "NotSoDeepWarning",
    "SerialisationError",
]


class NotSoDeepError(Exception):
    """Base of all errors raised by notsodeep."""


class InvalidInputError(NotSoDeepError, ValueError):
    """An argument has the wrong shape, type or range."""


class ActivationError(InvalidInputError):
    """An activation is unknown, or a callable cannot be used as one."""


class ContractionError(InvalidInputError):
    """``sigma_a2`` lies outside the range in which a unique equilibrium is guaranteed."""


class ConvergenceError(NotSoDeepError, RuntimeError):
    """An iteration or a quadrature did not reach its tolerance."""


class InfeasibleMatchError(NotSoDeepError, ValueError):
    """No network of the requested family has the kernel asked for.

    ``residual`` holds the best relative residual that was found, or ``None``.
    """

    def __init__(self, message: str, residual: float | None = None) -> None:
        super().__init__(message)
        self.residual = residual


class SerialisationError(NotSoDeepError, ValueError):
    """An object cannot be written as JSON, or a document does not describe one."""


class DataError(NotSoDeepError, ValueError):
    """A data file is missing, damaged or of an unexpected format."""


class CheckpointError(NotSoDeepError, ValueError):
    """A checkpoint or saved model is damaged or does not belong to this model."""


class CertificationError(NotSoDeepError, RuntimeError):
    """A replacement's promise cannot be kept with these rows, or by this student.

    ``rows`` is the number of rows that would suffice (None if more rows do not help), ``disagreement`` is what can be
    certified, and ``coverage`` is the share of rows that the student would then answer.
    """

    def __init__(
        self,
        message: str,
        rows: int | None = None,
        disagreement: float | None = None,
        coverage: float | None = None,
    ) -> None:
        super().__init__(message)
        self.rows, self.disagreement, self.coverage = rows, disagreement, coverage


class ClusterError(NotSoDeepError, RuntimeError):
    """A cluster does not answer, has lost its workers, or runs other versions than its client."""


class MissingExtraError(NotSoDeepError, ImportError):
    """An optional dependency is not installed; the arguments are its name and the extra that brings it."""

    def __str__(self) -> str:
        package, extra = self.args
        return f"{package} is not installed; run: pip install 'notsodeep[{extra}]'"


class NotSoDeepWarning(UserWarning):
    """Base of all warnings issued by notsodeep."""


class ConvergenceWarning(NotSoDeepWarning):
    """A finite-width equilibrium was not reached; the message gives the residual."""


class ConcentrationWarning(NotSoDeepWarning):
    """A prediction for data of low effective rank, where the theory does not hold; the message gives the number."""


log = logging.getLogger("notsodeep")
"""What the library decides: tables, ways round what is missing, solvers. It is silent until a user adds a handler."""
log.addHandler(logging.NullHandler())

_BETWEEN = {"notsodeep", "contextlib", "distributed", "sklearn", "torch"}  # packages that stand between a user and us


_SAID: ContextVar[set[str] | None] = ContextVar("said", default=None)


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Give each warning once, however many parts of a computation lead to it."""
    outer = _SAID.get()
    token = _SAID.set(set() if outer is None else outer)
    try:
        yield
    finally:
        _SAID.reset(token)


def warn(message: str, category: type[Warning] = NotSoDeepWarning) -> None:
    """Warn of the user's line that led here, however many of ours and of these packages lie between."""
    said = _SAID.get()
    if said is not None:
        if message in said:
            return
        said.add(message)
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
