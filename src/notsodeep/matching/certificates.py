"""What is proven of a twin, for one mixture, for unit-norm inputs or for all inputs of some norms; and what is seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from .._arguments import shown, whole
from ..equivalents import Coefficients
from ..errors import InvalidInputError, SerialisationError
from ..networks import Network, check_kernel


@dataclass(frozen=True)
class MixtureCertificate:
    """The four numbers that decide in high dimension agree (theory, section 6)."""

    kind: ClassVar[str] = "mixture"
    residual: float
    """The largest relative deviation of the achieved numbers from the target ones."""
    tau0: float
    target: Coefficients
    """The numbers of the centred DEQ."""
    achieved: Coefficients
    """The numbers of the network."""

    def __post_init__(self) -> None:
        check_number("residual", self.residual)
        check_number("tau0", self.tau0, positive=True)
        for record in (self.target, self.achieved):
            check_number("diagonal", record.diagonal)

    @property
    def shift(self) -> float:
        """What centring subtracted from the activation of the DEQ as it was given; 0 if that is only rounding."""
        bias = float(self.target.bias or 0.0)
        return bias if abs(bias) > 1e-12 * math.sqrt(self.target.diagonal) else 0.0

    def lines(self) -> list[str]:
        """The lines that a printed twin shows."""
        names, pairs = ("c1", "c2", "c3", "diagonal"), zip(self.target.four, self.achieved.four, strict=True)
        numbers = [f"{n} {got:.10g} (target {wanted:.10g})" for n, (wanted, got) in zip(names, pairs, strict=True)]
        return [f"{self.target.kernel:<10}" + "  ".join(numbers), f"residual  {self.residual:.1e}"]


@dataclass(frozen=True)
class SphereCertificate:
    """The kernel for inputs of norm one, in every dimension and number (theory, section 7)."""

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
        """The lines that a printed twin shows."""
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
class Tried:
    """A size that was tried: its certified bound and the largest error seen while certifying."""

    kinds: int
    bound: float
    sampled: float
    family: str

    def __post_init__(self) -> None:
        whole("kinds", self.kinds)
        check_number("bound", self.bound)
        check_number("sampled", self.sampled)

    def __str__(self) -> str:
        return f"{self.kinds} kind{'s' if self.kinds > 1 else ' '} of units  bound {self.bound:.3g}  ({self.family})"


@dataclass(frozen=True)
class UniformCertificate:
    """The kernels are close for *every* pair of inputs with norms in ``norms``.

    For all such x, y: |k_deq(x, y) - k_twin(x, y)| <= bound * sqrt(k_deq(x, x) k_deq(y, y)).
    """

    kind: ClassVar[str] = "uniform"
    residual: float
    """The largest error seen; the bound is what is proven."""
    bound: float
    norms: tuple[float, float] | None
    """Smallest and largest norm of an input; ``None``: all norms."""
    at: float
    """Where the largest error was seen: a norm, of equal inputs; where ``norms`` is ``None``, a cosine."""
    table: tuple[Tried, ...]
    """Size against accuracy, for the sizes that were tried."""
    assumes: str = ""
    """What the bound takes for granted; empty for a proof."""

    def __post_init__(self) -> None:
        check_number("residual", self.residual)
        check_number("bound", self.bound)
        check_number("at", self.at, signed=True)
        for norm in self.norms or ():
            check_number("norms", norm)
        if self.norms is not None and not (len(self.norms) == 2 and self.norms[0] <= self.norms[1]):
            raise InvalidInputError(f"norms must be a pair (low, high), got {self.norms!r}")
        if not isinstance(self.assumes, str):
            raise InvalidInputError(f"assumes must be a text, got {self.assumes!r}")

    def lines(self) -> list[str]:
        """The lines that a printed twin shows."""
        span = "all norms" if self.norms is None else f"norms {self.norms[0]:.4g} to {self.norms[1]:.4g}"
        out = [f"valid     {span}, all angles", f"bound     {self.bound:.3g}"]
        out.append(f"seen      {self.residual:.1e} at {'cosine' if self.norms is None else 'norm'} {self.at:.4g}")
        if self.assumes:
            out.append(f"assumes   {self.assumes}")
        return [*out, *(f"tried     {row}" for row in self.table)]


Certificate = MixtureCertificate | SphereCertificate | UniformCertificate


@dataclass(frozen=True)
class Verification:
    """Relative spectral distances ||K_deq - K|| / ||K_deq|| of the exact kernels on given points.

    A plain network often misses the DEQ mostly by one common factor, which a readout learns at no cost. So its distance
    is given twice: as it is, and with its kernel multiplied by the best scalar (theory, section 14).
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

    @property
    def gain_scaled(self) -> float:
        """How many times closer than the plain network with its best scalar the twin is."""
        return self.plain_scaled_distance / max(self.distance, 1e-300)

    def __str__(self) -> str:
        whose = "the DEQ" if self.shift == 0.0 else f"the centred DEQ (activation shifted by {-self.shift:.6g})"
        return (
            f"relative spectral distance to {whose} on {self.points} points: {self.kernel}: twin {self.distance:.3g}, "
            f"plain network {self.plain_distance:.3g}, times its best scalar ({self.scalar:.4g}) "
            f"{self.plain_scaled_distance:.3g}"
        )


def check_number(name: str, value: Any, *, positive: bool = False, signed: bool = False) -> None:
    """Refuse what is no finite number, or below zero unless ``signed``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InvalidInputError(f"{name} must be a finite number, got {shown(value)}")
    if (value < 0 and not signed) or (positive and value == 0):
        raise InvalidInputError(f"{name} must {'be positive' if positive else 'not be negative'}, got {value!r}")


# ---- JSON --------------------------------------------------------------------------------------------------


def certificate_document(certificate: Certificate) -> dict[str, Any]:
    """The JSON document of a certificate, without the networks that coefficients carry."""
    document = {f.name: getattr(certificate, f.name) for f in fields(certificate)}
    for name in ("target", "achieved"):
        if name in document:
            numbers = document[name]
            document[name] = {f.name: getattr(numbers, f.name) for f in fields(numbers) if f.name != "network"}
    if "table" in document:
        document["table"] = [asdict(row) for row in document["table"]]
        document["norms"] = None if document["norms"] is None else list(document["norms"])
    return {"kind": certificate.kind, **document}


def read_certificate(document: Mapping[str, Any], deq: Network, network: Network) -> Certificate:
    """The certificate of a document that :func:`certificate_document` wrote."""
    content = dict(document)
    kind = content.pop("kind")
    if kind == MixtureCertificate.kind:
        numbers = {"target": _numbers(content["target"], deq), "achieved": _numbers(content["achieved"], network)}
        return MixtureCertificate(**{**content, **numbers})
    if kind == SphereCertificate.kind:
        return SphereCertificate(**content)
    if kind == UniformCertificate.kind:
        content["norms"] = None if content["norms"] is None else tuple(content["norms"])
        content["table"] = tuple(Tried(**row) for row in content["table"])
        return UniformCertificate(**content)
    raise SerialisationError(f"the kind of a certificate is 'mixture', 'sphere' or 'uniform', got {kind!r}")


def _numbers(content: Mapping[str, Any], network: Network) -> Coefficients:
    for name, value in content.items():
        if name == "kernel":
            check_kernel(network, value)
        elif value is not None or name not in ("tau_star", "bias"):
            check_number(name, value, signed=True)
    return Coefficients(**content, network=network)
