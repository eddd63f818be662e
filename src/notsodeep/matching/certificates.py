"""What is proven of a twin, for one mixture, for unit-norm inputs or for all inputs of some norms; and what is seen."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from .._arguments import shown, whole
from ..equivalents import Coefficients
from ..errors import InvalidInputError

_ROUNDING = 1e-12


@dataclass(frozen=True)
class MixtureCertificate:
    """The four numbers per kernel that decide in high dimension agree (theory, section 6)."""

    kind: ClassVar[str] = "mixture"
    residual: float
    """The largest relative deviation of the achieved numbers from the target ones."""
    tau0: float
    targets: tuple[Coefficients, ...]
    """The numbers of the centred DEQ, one record per matched kernel."""
    achieved: tuple[Coefficients, ...]
    """The network's numbers, in the same order."""
    conditioning: float
    """Condition number of the matching equations at the solution; large means a fragile design."""

    def __post_init__(self) -> None:
        check_number("residual", self.residual)
        check_number("tau0", self.tau0, positive=True)
        check_number("conditioning", self.conditioning)
        for record in (*self.targets, *self.achieved):
            check_number("diagonal", record.diagonal)
        if not self.targets or len(self.targets) != len(self.achieved):
            raise InvalidInputError(
                f"targets and achieved hold one record per kernel, got {len(self.targets)} and {len(self.achieved)}"
            )

    @property
    def shift(self) -> float:
        """What centring subtracted from the activation of the DEQ as it was given; 0 if that is only rounding."""
        first = self.targets[0]
        bias = float(first.bias or 0.0)
        return bias if abs(bias) > _ROUNDING * math.sqrt(first.diagonal) else 0.0

    def lines(self) -> list[str]:
        """For printing."""
        pairs = zip(self.targets, self.achieved, strict=True)
        numbers = [f"{wanted.kernel:<10}" + "  ".join(_beside(wanted, got)) for wanted, got in pairs]
        return [*numbers, f"residual  {self.residual:.1e}", f"condition {self.conditioning:.3g}"]


@dataclass(frozen=True)
class SphereCertificate:
    """For inputs of norm one, in every dimension and number (theory, section 7)."""

    kind: ClassVar[str] = "sphere"
    residual: float
    """The error relative to the diagonal; for the quadratic twin that of its three numbers."""
    bound: float | None = None
    """No entry of the kernel's error is larger; ``None`` for the quadratic twin, which holds in high dimension only."""
    normalise: bool = False
    """True if inputs must be divided by their norm first."""

    def __post_init__(self) -> None:
        check_number("residual", self.residual)
        if self.bound is not None:
            check_number("bound", self.bound)
        if not isinstance(self.normalise, bool):
            raise InvalidInputError(f"normalise must be True or False, got {self.normalise!r}")

    def lines(self) -> list[str]:
        """For printing."""
        proven = [] if self.bound is None else [f"bound     {self.bound:.3g} on every entry"]
        divided = ", divided by their norm first" if self.normalise else ""
        return [f"valid     inputs of norm one{divided}", f"residual  {self.residual:.1e}", *proven]


@dataclass(frozen=True)
class Proof:
    """A supremum: ``bound`` holds everywhere, ``sampled`` was seen at the cosine, or the norm, ``at``."""

    bound: float
    sampled: float
    at: float
    assumes: str = ""
    """What the bound takes for granted; empty for a proof."""


@dataclass(frozen=True)
class Location:
    """A pair of inputs at which the largest error was seen: its norms and the cosine of its angle."""

    norm_x: float
    norm_y: float
    rho: float
    kernel: str

    def __post_init__(self) -> None:
        for name in ("norm_x", "norm_y", "rho"):
            check_number(name, getattr(self, name), signed=True)
        if not isinstance(self.kernel, str):
            raise InvalidInputError(f"a location names its kernel, got {self.kernel!r}")


@dataclass(frozen=True)
class Tried:
    """A size that was tried and what it reaches: the certified bound and the largest error seen while certifying."""

    depth: int
    bound: float
    sampled: float
    family: str
    kinds: int | None = None
    """Kinds of units, for one layer that has several."""

    def __post_init__(self) -> None:
        for name in ("bound", "sampled"):
            check_number(name, getattr(self, name))
        for name, count in (("depth", self.depth), ("kinds", 1 if self.kinds is None else self.kinds)):
            whole(name, count)

    def __str__(self) -> str:
        size = f"{self.depth} layer{'s' if self.depth > 1 else ' '}"
        if self.kinds is not None:
            size = f"{self.kinds} kind{'s' if self.kinds > 1 else ' '} of units"
        return f"{size}  bound {self.bound:.3g}  ({self.family})"


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
class UniformCertificate:
    """Close for *every* pair of inputs. For each matched kernel k and all x, y with norms in ``norms``

    |k_deq(x, y) - k_twin(x, y)| <= bound * sqrt(k_deq(x, x) k_deq(y, y)).
    """

    kind: ClassVar[str] = "uniform"
    residual: float
    """The largest error seen; the bound is what is proven."""
    bound: float
    norms: tuple[float, float] | None
    """Smallest and largest norm of an input; ``None``: all norms."""
    location: Location | None
    table: tuple[Tried, ...]
    """Size against accuracy, for the sizes that were tried."""
    diagonals: tuple[tuple[str, float], ...]
    """Kernel name -> largest k_deq(x, x) at the largest norm (``norms is None``: at norm one)."""
    assumes: str = ""
    """What the bound takes for granted; empty for a proof."""

    def __post_init__(self) -> None:
        check_number("residual", self.residual)
        check_number("bound", self.bound)
        for norm in self.norms or ():
            check_number("norms", norm)
        if self.norms is not None and not (len(self.norms) == 2 and self.norms[0] <= self.norms[1]):
            raise InvalidInputError(f"norms must be a pair (low, high), got {self.norms!r}")
        if not isinstance(self.assumes, str):
            raise InvalidInputError(f"assumes must be a text, got {self.assumes!r}")
        for name, value in self.diagonals:
            check_number(f"the diagonal of {name!r}", value)

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
        """Bounds for any n points, kernel ridge regression and lazy training (``time`` is 1 / ridge if not given).

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
        eps, until = self.bound, 1.0 / ridge if time is None else time
        trace = n * diagonal
        regression = eps * math.sqrt(diagonal) * size / ridge * (math.sqrt(trace) + trace / (2.0 * math.sqrt(ridge)))
        growth = until * math.sqrt(trace) + math.sqrt(2.0 / math.e) * (2.0 / 3.0) * until**1.5 * trace
        training = eps * math.sqrt(diagonal) * size * growth
        return Implications(n, diagonal, ridge, until, size, eps * diagonal, eps * trace, regression, training)

    def lines(self) -> list[str]:
        """For printing."""
        span = "all norms" if self.norms is None else f"norms {self.norms[0]:.4g} to {self.norms[1]:.4g}"
        out = [f"valid     {span}, all angles", f"bound     {self.bound:.3g}", f"seen      {self.residual:.1e}"]
        if self.assumes:
            out.append(f"assumes   {self.assumes}")
        if self.location is not None:
            at = self.location
            out.append(f"worst     {at.kernel} at norms {at.norm_x:.4g}, {at.norm_y:.4g}, cosine {at.rho:.4f}")
        return [*out, *(f"tried     {row}" for row in self.table)]


Certificate = MixtureCertificate | SphereCertificate | UniformCertificate


@dataclass(frozen=True)
class Verification:
    """Relative spectral distances ||K_deq - K|| / ||K_deq|| of the exact kernels on given points.

    A plain network often misses the DEQ mostly by one common factor, which a readout learns at no cost. So its distance
    is given twice: as it is, and with its kernel multiplied by the best scalar (theory, section 14).
    """

    points: int
    twin: dict[str, float]
    """Kernel name -> distance of the twin."""
    plain: dict[str, float]
    """Kernel name -> distance of a plain network of the twin's depth with the DEQ's own activation."""
    plain_scaled: dict[str, float]
    """Kernel name -> distance of the same plain kernel times its best scalar."""
    scalar: dict[str, float]
    """Kernel name -> that scalar."""
    shift: float = 0.0
    """What was subtracted from the DEQ's activation to centre it: the distances speak of the centred DEQ."""

    @property
    def distance(self) -> float:
        """The largest distance of the twin over its kernels."""
        return max(self.twin.values())

    @property
    def plain_distance(self) -> float:
        """The largest distance of the plain network over the same kernels."""
        return max(self.plain.values())

    @property
    def plain_scaled_distance(self) -> float:
        """The largest distance of the plain network with its best scalar over the same kernels."""
        return max(self.plain_scaled.values())

    @property
    def gain(self) -> float:
        """How many times closer than the plain network the twin is, for its worst kernel."""
        return min(self.plain[k] / max(self.twin[k], 1e-300) for k in self.twin)

    @property
    def gain_scaled(self) -> float:
        """How many times closer than the plain network with its best scalar the twin is, for its worst kernel."""
        return min(self.plain_scaled[k] / max(self.twin[k], 1e-300) for k in self.twin)

    def __str__(self) -> str:
        rows = [
            f"{k}: twin {self.twin[k]:.3g}, plain network {self.plain[k]:.3g}, "
            f"times its best scalar ({self.scalar[k]:.4g}) {self.plain_scaled[k]:.3g}"
            for k in self.twin
        ]
        whose = "the DEQ" if self.shift == 0.0 else f"the centred DEQ (activation shifted by {-self.shift:.6g})"
        return f"relative spectral distance to {whose} on {self.points} points: " + "; ".join(rows)


def check_number(name: str, value: Any, *, positive: bool = False, signed: bool = False) -> None:
    """Refuse what is no finite number, or below zero unless ``signed``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidInputError(f"{name} must be a finite number, got {shown(value)}")
    if (value < 0 and not signed) or (positive and value == 0):
        raise InvalidInputError(f"{name} must {'be positive' if positive else 'not be negative'}, got {value!r}")


def _beside(wanted: Coefficients, got: Coefficients) -> list[str]:
    names = ("c1", "c2", "c3", "diagonal")
    return [f"{n} {g:.10g} (target {w:.10g})" for n, w, g in zip(names, wanted.four, got.four, strict=True)]
