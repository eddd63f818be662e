"""What is known of a twin, for one mixture, for unit-norm inputs or for all inputs of some norms; and what is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple

from .._arguments import check_settings, finite, not_negative, positive_int
from ..equivalents import Coefficients
from ..errors import InvalidInputError
from ..networks import Network, check_kernel


class Supremum(NamedTuple):
    """A supremum: ``bound`` holds everywhere, ``sampled`` was seen at the cosine, or the norm, ``at``."""

    bound: float
    sampled: float
    at: float
    assumes: str = ""


@dataclass(frozen=True)
class Tried:
    """A size that was tried, with its certified bound."""

    kinds: int
    bound: float
    family: str

    def __post_init__(self) -> None:
        positive_int("kinds", self.kinds)
        not_negative("bound", self.bound)

    def __str__(self) -> str:
        return f"{self.kinds} kind{'s' if self.kinds > 1 else ' '} of units  bound {self.bound:.3g}  ({self.family})"


@dataclass(frozen=True)
class TwinCertificate:
    """What is known about a twin; fields that its kind does not have keep their defaults.

    ``"mixture"``: the four numbers that decide in high dimension agree (theory, section 6). ``"sphere"``: the kernel
    for inputs of norm one, no entry of which is off by more than ``bound`` (section 7). ``"uniform"``: for *every* pair
    of inputs |k_deq(x, y) - k_twin(x, y)| <= bound * sqrt(k_deq(x, x) k_deq(y, y)) (section 13).
    """

    kind: Literal["mixture", "sphere", "uniform"]
    residual: float
    """The largest relative deviation of the four numbers, or the largest error seen; 0 for a closed form."""
    bound: float | None = None
    """On every entry; ``None`` for a mixture: its numbers decide in high dimension."""
    tau0: float | None = None
    """The scale of the inputs of a mixture."""
    target: Coefficients | None = None
    """The numbers of the centred DEQ (mixture)."""
    achieved: Coefficients | None = None
    """The numbers of the network (mixture)."""
    norms: tuple[float, float] | None = None
    """Smallest and largest norm of an input, outside of which nothing is bounded (uniform); ``None``: all norms."""
    at: float = 0.0
    """Where the largest error was seen (uniform): a norm, of equal inputs; for twins of all norms, a cosine."""
    table: tuple[Tried, ...] = ()
    """Size against accuracy, for the sizes that were tried (uniform)."""
    assumes: str = ""
    """What the bound takes for granted (uniform); empty for a proof."""

    def __post_init__(self) -> None:
        check_settings(self)
        numbers, mixture = (self.tau0, self.target, self.achieved, self.bound), self.kind == "mixture"
        if [number is not None for number in numbers] != [mixture, mixture, mixture, not mixture]:
            raise InvalidInputError(f"a certificate of the kind {self.kind!r} does not have these fields: {self!r}")
        not_negative("residual", self.residual)
        not_negative("bound", self.bound or 0.0)
        finite("at", self.at)
        if self.tau0 is not None and not 0.0 < self.tau0 < math.inf:
            raise InvalidInputError(f"tau0 must be a positive, finite number, got {self.tau0!r}")
        if self.norms is not None and not 0.0 <= self.norms[0] <= self.norms[1] < math.inf:
            raise InvalidInputError(f"norms must be a pair (low, high), got {self.norms!r}")

    @property
    def shift(self) -> float:
        """What centring subtracted from the activation of the DEQ as it was given; 0 if that is only rounding."""
        if self.target is None:
            return 0.0
        bias = float(self.target.bias or 0.0)
        return bias if abs(bias) > 1e-12 * math.sqrt(self.target.diagonal) else 0.0

    def lines(self) -> list[str]:
        """Return the lines that a printed twin shows."""
        seen = f"residual  {self.residual:.1e}"
        if self.target is not None and self.achieved is not None:
            rows = zip(("c1", "c2", "c3", "diagonal"), self.target.four, self.achieved.four, strict=True)
            numbers = [f"{name} {got:.10g} (target {wanted:.10g})" for name, wanted, got in rows]
            return [f"{self.target.kernel:<10}" + "  ".join(numbers), seen]
        if self.kind == "sphere":
            return ["valid     inputs of norm one", seen, f"bound     {self.bound:.3g} on every entry"]
        span = "all norms" if self.norms is None else "norms {:.4g} to {:.4g}".format(*self.norms)
        beyond = ["beyond    nothing is bounded at other norms"] if self.norms else []
        seen = f"seen      {self.residual:.1e} at {'cosine' if self.norms is None else 'norm'} {self.at:.4g}"
        assumes = [f"assumes   {self.assumes}"] if self.assumes else []
        tried = [f"tried     {row}" for row in self.table]
        return [
            f"valid     {span}, all angles",
            f"bound     {self.bound:.3g} on every entry, relative to the diagonal",
            *beyond,
            seen,
            *assumes,
            *tried,
        ]

    @staticmethod
    def from_dict(document: Mapping[str, Any], deq: Network, network: Network) -> TwinCertificate:
        """Return the certificate of a twin of these networks, from what :func:`document_of` made of it."""
        content = dict(document)
        content |= {"target": _numbers(content["target"], deq), "achieved": _numbers(content["achieved"], network)}
        content["norms"] = None if content["norms"] is None else tuple(content["norms"])
        content["table"] = tuple(Tried(**row) for row in content["table"])
        return TwinCertificate(**content)


def document_of(value: Any) -> Any:
    """Return a record as JSON has it, without the networks that the four numbers carry: a certificate has them."""
    if is_dataclass(value):
        kept = [f.name for f in fields(value) if not (f.name == "network" and isinstance(value, Coefficients))]
        return {name: document_of(getattr(value, name)) for name in kept}
    return [document_of(entry) for entry in value] if isinstance(value, tuple) else value


def _numbers(content: Mapping[str, Any] | None, network: Network) -> Coefficients | None:
    if content is None:
        return None
    check_kernel(network, content["kernel"])
    for name, value in content.items():
        if name != "kernel" and (value is not None or name not in ("tau_star", "bias")):
            finite(name, value)
    return Coefficients(**content, network=network)


@dataclass(frozen=True)
class Verification:
    """Relative spectral distances ||K_deq - K|| / ||K_deq|| of the exact kernels on given points.

    That of a plain network is given twice, as it is and with its kernel times the best scalar (theory, section 14).
    """

    points: int
    kernel: str
    distance: float
    """Distance of the twin."""
    plain_distance: float
    """Distance of a plain network of the twin's depth with the DEQ's own activation."""
    plain_scaled_distance: float
    """Distance of that plain kernel times its best scalar."""
    scalar: float
    """The best scalar."""
    shift: float = 0.0
    """What was subtracted from the DEQ's activation to centre it: the distances speak of the centred DEQ."""

    @property
    def gain(self) -> float:
        """How many times closer than the plain network the twin is."""
        return self.plain_distance / max(self.distance, 1e-300)

    def __str__(self) -> str:
        whose = "the DEQ" if self.shift == 0.0 else f"the centred DEQ (activation shifted by {-self.shift:.6g})"
        return (
            f"relative spectral distance to {whose} on {self.points} points: {self.kernel}: twin {self.distance:.3g}, "
            f"plain network {self.plain_distance:.3g}, times its best scalar ({self.scalar:.4g}) "
            f"{self.plain_scaled_distance:.3g}"
        )
