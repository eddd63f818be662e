"""The uniform twin, its certificate, and what the certificate means for kernel matrices and predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import InvalidInputError, SerialisationError
from ...networks import DEQ, ENN
from ..twin import Twin

__all__ = ["DepthRow", "Implications", "Location", "UniformTwin"]


@dataclass(frozen=True)
class Location:
    """A pair of inputs at which the largest error was seen: its norms and the cosine of its angle."""

    norm_x: float
    norm_y: float
    rho: float
    kernel: str


class Certified:
    """What any fit with a certificate per kernel can say of itself."""

    suprema: tuple[Any, ...]
    """One certified supremum per kernel, each with ``bound`` and ``sampled``."""

    @property
    def worst(self) -> int:
        """The kernel that decides."""
        return max(range(len(self.suprema)), key=lambda i: self.suprema[i].bound)

    @property
    def bound(self) -> float:
        return self.suprema[self.worst].bound

    @property
    def sampled(self) -> float:
        return max(s.sampled for s in self.suprema)


@dataclass(frozen=True)
class DepthRow:
    """What a depth reaches: the certified bound and the largest error seen while certifying."""

    depth: int
    bound: float
    sampled: float
    family: str

    def __str__(self) -> str:
        return f"{self.depth} layer{'s' if self.depth > 1 else ' '}  bound {self.bound:.3g}  ({self.family})"


@dataclass(frozen=True)
class Implications:
    """Consequences of an entrywise bound for n points whose kernel's diagonal is at most ``diagonal``.

    All are worst cases over the data, the targets of norm ``targets`` and the test point (docs/uniform.md, "What it
    means").
    """

    n: int
    diagonal: float
    ridge: float
    time: float
    targets: float
    entry: float
    """|K_ij - K'_ij|"""
    spectral: float
    """||K - K'|| in spectral and in Frobenius norm: eps tr K"""
    regression: float
    """|f(x) - f'(x)| of kernel ridge regression, K + ridge I"""
    training: float
    """|f_t(x) - f'_t(x)| of gradient flow on half the sum of squares up to ``time``, infinite width (NTK)"""


@dataclass(frozen=True)
class UniformTwin(Twin):
    """A twin of the uncentred DEQ whose kernel is close for *every* pair of inputs, not for one mixture.

    For each matched kernel k and all x, y with norms in ``norms`` (``None``: all norms)

        |k_deq(x, y) - k_twin(x, y)| <= bound * sqrt(k_deq(x, x) k_deq(y, y)).
    """

    norms: tuple[float, float] | None = None
    location: Location | None = None
    table: tuple[DepthRow, ...] = ()
    """Depth against accuracy, for the depths that were tried."""
    diagonals: tuple[tuple[str, float], ...] = field(default=())
    """Kernel name -> largest k_deq(x, x) at the largest norm (``norms is None``: at norm one)."""

    def implications(
        self,
        n: int,
        ridge: float,
        *,
        time: float | None = None,
        targets: float | None = None,
        largest_norm: float = 1.0,
        kernel: str | None = None,
    ) -> Implications:
        """Bounds that follow for any n points, kernel ridge regression and lazy training (``time`` is 1 / ridge if
        not given).

        ``targets`` is the Euclidean norm of the training targets, sqrt(n) if not given; ``largest_norm`` the largest
        norm of an input, which only a twin for all norms needs to be told.
        """
        if n < 1 or not ridge > 0 or not largest_norm > 0:
            raise InvalidInputError(
                f"implications takes n >= 1, ridge > 0 and largest_norm > 0, got {n}, {ridge}, {largest_norm}"
            )
        known = dict(self.diagonals)
        name = kernel or next(iter(known))
        if name not in known:
            raise InvalidInputError(f"kernel must be one of {sorted(known)}, got {name!r}")
        scale = largest_norm**2 if self.norms is None else 1.0
        diagonal, size = known[name] * scale, math.sqrt(n) if targets is None else targets
        eps, until = float(self.bound or 0.0), 1.0 / ridge if time is None else time
        trace = n * diagonal
        regression = eps * math.sqrt(diagonal) * size / ridge * (math.sqrt(trace) + trace / (2.0 * math.sqrt(ridge)))
        growth = until * math.sqrt(trace) + math.sqrt(2.0 / math.e) * (2.0 / 3.0) * until**1.5 * trace
        training = eps * math.sqrt(diagonal) * size * growth
        return Implications(n, diagonal, ridge, until, size, eps * diagonal, eps * trace, regression, training)

    def __str__(self) -> str:
        span = "all norms" if self.norms is None else f"norms {self.norms[0]:.4g} to {self.norms[1]:.4g}"
        lines = [super().__str__().replace("Twin of", "Uniform twin of", 1), f"  valid     {span}, all angles"]
        if self.location is not None:
            at = self.location
            lines.append(f"  worst     {at.kernel} at norms {at.norm_x:.4g}, {at.norm_y:.4g}, cosine {at.rho:.4f}")
        return "\n".join([*lines, *(f"  tried     {row}" for row in self.table)])

    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        content = super().to_dict()
        content.pop("twin")
        content["norms"] = None if self.norms is None else list(self.norms)
        content["location"] = None if self.location is None else vars(self.location).copy()
        content["table"] = [vars(row).copy() for row in self.table]
        content["diagonals"] = [list(pair) for pair in self.diagonals]
        return {"uniform_twin": 1, **content}

    @staticmethod
    def from_dict(document: Mapping[str, Any] | str) -> UniformTwin:
        """A twin from what :meth:`to_dict` wrote, or from its JSON text."""
        try:
            content = dict(json.loads(document) if isinstance(document, str) else document)
        except (json.JSONDecodeError, TypeError, ValueError) as error:
            raise SerialisationError(f"not a JSON document of a uniform twin: {error}") from None
        if content.pop("uniform_twin", None) != 1:
            raise SerialisationError("expected a JSON object with the key 'uniform_twin' equal to 1")
        try:
            content["deq"], content["network"] = DEQ.from_dict(content["deq"]), ENN.from_dict(content["network"])
            content["norms"] = None if content["norms"] is None else tuple(content["norms"])
            content["location"] = None if content["location"] is None else Location(**content["location"])
            content["table"] = tuple(DepthRow(**row) for row in content["table"])
            content["diagonals"] = tuple((name, value) for name, value in content["diagonals"])
            rates = content["learning_rates"]
            content["learning_rates"] = None if rates is None else tuple(rates)
            content["targets"] = content["achieved"] = ()  # a uniform twin matches no four numbers
            unknown = set(content) - {f.name for f in fields(UniformTwin)}
            if unknown:
                raise KeyError(*sorted(unknown))
            return UniformTwin(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise SerialisationError(f"the description of this uniform twin is incomplete: {error!r}") from None
