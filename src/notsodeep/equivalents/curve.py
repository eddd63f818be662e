"""How the error of an equivalent falls with the number of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ErrorCurve"]


@dataclass(frozen=True)
class ErrorCurve:
    """Errors of one equivalent over growing n, one row per size and one column per seed."""

    label: str
    n: tuple[int, ...]
    errors: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> tuple[float, ...]:
        """The error averaged over seeds."""
        return tuple(sum(row) / len(row) for row in self.errors)

    @property
    def slope(self) -> float:
        """Slope of log(mean error) against log(n)."""
        return float(np.polyfit(np.log(self.n), np.log(self.mean), 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """A JSON document."""
        return {"label": self.label, "n": self.n, "errors": self.errors, "slope": self.slope}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> ErrorCurve:
        """What :meth:`to_dict` wrote."""
        return ErrorCurve(document["label"], tuple(document["n"]), tuple(tuple(row) for row in document["errors"]))
