"""The twin: a shallow explicit network with the kernel of a DEQ, and the certificate that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .. import kernels as _kernels
from ..equivalents import Coefficients, KernelName, relative_spectral_error
from ..errors import InvalidInputError, SerialisationError
from ..networks import DEQ, ENN

__all__ = ["MatchKernel", "Twin", "Verification", "kernel_names", "relative_distance"]

MatchKernel = Literal["ck", "ntk", "ntk_frozen", "both"]
_DENSE = 1500
_KERNELS: dict[str, tuple[KernelName, ...]] = {
    "ck": ("ck",),
    "ntk": ("ntk",),
    "ntk_frozen": ("ntk_frozen",),
    "both": ("ck", "ntk"),
}


def kernel_names(kernel: str) -> tuple[KernelName, ...]:
    """The kernels that a request speaks of: ``"both"`` means the CK and the NTK of all weights."""
    if kernel not in _KERNELS:
        raise InvalidInputError(f"kernel must be one of {sorted(_KERNELS)}, got {kernel!r}")
    return _KERNELS[kernel]


@dataclass(frozen=True)
class Verification:
    """Relative spectral distances ||K_deq - K|| / ||K_deq|| of the exact kernels on given points."""

    points: int
    twin: dict[str, float]
    """Kernel name -> distance of the twin."""
    plain: dict[str, float]
    """Kernel name -> distance of a plain network of the twin's depth with the DEQ's own activation."""

    @property
    def distance(self) -> float:
        """The largest distance of the twin over its kernels."""
        return max(self.twin.values())

    @property
    def plain_distance(self) -> float:
        """The largest distance of the plain network over the same kernels."""
        return max(self.plain.values())

    @property
    def gain(self) -> float:
        """How many times closer than the plain network the twin is, for its worst kernel."""
        return min(self.plain[k] / max(self.twin[k], 1e-300) for k in self.twin)

    def __str__(self) -> str:
        rows = [f"{k}: twin {self.twin[k]:.3g}, plain network {self.plain[k]:.3g}" for k in self.twin]
        return f"relative spectral distance to the DEQ on {self.points} points: " + "; ".join(rows)


@dataclass(frozen=True)
class Twin:
    """An explicit network matched to a DEQ, with its certificate.

    ``residual`` is the largest relative deviation of the achieved numbers from the target ones;
    ``learning_rates`` holds one multiplier per weight matrix (W_1 ... W_L, readout), or ``None`` where all are 1.
    A twin that is tied to no mixture (sphere, uniform) has ``tau0 = None``, no coefficients, and a ``bound``.
    """

    deq: DEQ
    """The DEQ it matches; centred at ``tau0`` where there is one."""
    network: ENN
    kernel: str
    """``"ck"``, ``"ntk"``, ``"ntk_frozen"`` or ``"both"`` (CK and NTK of all weights)."""
    family: str
    residual: float
    tau0: float | None = None
    targets: tuple[Coefficients, ...] = ()
    """The DEQ's numbers, one record per matched kernel."""
    achieved: tuple[Coefficients, ...] = ()
    """The network's numbers, in the same order."""
    learning_rates: tuple[float, ...] | None = None
    conditioning: float | None = None
    """Condition number of the matching equations at the solution; large means a fragile design."""
    reason: str = ""
    """Why this family and depth."""
    bound: float | None = None
    """Proven bound on the kernel error, for twins that have one (the unit says which)."""
    normalise: bool = False
    """True if inputs must be divided by their norm first."""

    def __post_init__(self) -> None:
        kernel_names(self.kernel)
        rates = self.learning_rates
        if rates is not None and len(rates) != self.network.depth + 1:
            raise InvalidInputError(
                f"a network of {self.depth} hidden layers takes {self.depth + 1} learning rates, got {len(rates)}"
            )

    @property
    def target(self) -> Coefficients | None:
        """The DEQ's numbers (for ``"both"``: those of the CK)."""
        return self.targets[0] if self.targets else None

    @property
    def coefficients(self) -> Coefficients | None:
        """The numbers the network achieves (for ``"both"``: those of the CK)."""
        return self.achieved[0] if self.achieved else None

    @property
    def depth(self) -> int:
        """Hidden layers of the network."""
        return self.network.depth

    @property
    def plain(self) -> ENN:
        """The plain network to compare with: the DEQ's own activation in every layer, the twin's depth."""
        network = ENN([self.deq.activation] * self.depth)
        return network if self.tau0 is None else network.centred(self.tau0)

    def verify(self, X: Any) -> Verification:
        """Distances of the exact kernels of DEQ and twin on the rows of X, beside those of the plain network."""
        points = _rows(X)
        if self.normalise:
            points = points / points.norm(dim=1, keepdim=True)
        names = kernel_names(self.kernel)
        truth = _kernels.kernels_of(self.deq, points, kinds=names, check=False)
        twin = _kernels.kernels_of(self.network, points, kinds=names, learning_rates=self.learning_rates)
        plain = _kernels.kernels_of(self.plain, points, kinds=names)
        return Verification(
            len(points),
            {k: relative_distance(truth[k], twin[k]) for k in names},
            {k: relative_distance(truth[k], plain[k]) for k in names},
        )

    def __str__(self) -> str:
        lines = [
            f"Twin of {self.deq!r}",
            f"  kernel    {self.kernel}" + ("" if self.tau0 is None else f" at tau0 = {self.tau0:.6g}"),
            f"  family    {self.family}, {self.depth} hidden layer{'s' if self.depth > 1 else ''}",
        ]
        lines += [f"  layer {i}   {a!r}" for i, a in enumerate(self.network.activations, 1)]
        if self.learning_rates is not None:
            lines.append("  rates     " + ", ".join(f"{r:.6g}" for r in self.learning_rates))
        for wanted, got in zip(self.targets, self.achieved, strict=True):
            lines.append(f"  {wanted.kernel:<10}" + "  ".join(_pairs(wanted, got)))
        lines.append(f"  residual  {self.residual:.1e}")
        lines += [] if self.conditioning is None else [f"  condition {self.conditioning:.3g}"]
        lines += [] if self.bound is None else [f"  bound     {self.bound:.3g}"]
        lines += [f"  reason    {self.reason}"] if self.reason else []
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= {"deq": self.deq.to_dict(), "network": self.network.to_dict()}
        plain |= {name: [_numbers(c) for c in getattr(self, name)] for name in ("targets", "achieved")}
        rates = self.learning_rates
        return {"twin": 1, **plain, "learning_rates": None if rates is None else list(rates)}

    @staticmethod
    def from_dict(document: Mapping[str, Any] | str) -> Twin:
        """A twin from what :meth:`to_dict` wrote, or from its JSON text."""
        try:
            content = dict(json.loads(document) if isinstance(document, str) else document)
        except (json.JSONDecodeError, TypeError, ValueError) as error:
            raise SerialisationError(f"not a JSON document of a twin: {error}") from None
        if content.pop("twin", None) != 1:
            raise SerialisationError("expected a JSON object with the key 'twin' equal to 1")
        try:
            deq, network = DEQ.from_dict(content.pop("deq")), ENN.from_dict(content.pop("network"))
            targets = tuple(Coefficients(**c, network=deq) for c in content.pop("targets"))
            achieved = tuple(Coefficients(**c, network=network) for c in content.pop("achieved"))
            rates = content.pop("learning_rates")
            twin = Twin(deq, network, targets=targets, achieved=achieved, **content)
        except (KeyError, TypeError) as error:
            raise SerialisationError(f"the description of this twin is incomplete: {error!r}") from None
        return replace(twin, learning_rates=None if rates is None else tuple(rates))


def relative_distance(truth: Tensor, other: Tensor) -> float:
    """||truth - other|| / ||truth|| in spectral norm, for symmetric matrices.

    All eigenvalues where that is cheap: a difference that is mostly rounding has no top that Lanczos could find.
    """
    if len(truth) > _DENSE:
        return relative_spectral_error(truth, other)
    return float(torch.linalg.eigvalsh(truth - other).abs().max() / torch.linalg.eigvalsh(truth).abs().max())


def _rows(X: Any) -> Tensor:
    points = X if isinstance(X, Tensor) else torch.as_tensor(np.asarray(X, dtype=np.float64))
    if points.ndim != 2 or len(points) < 2 or not bool(torch.isfinite(points).all()):
        raise InvalidInputError(f"verify takes finite points, an array (n >= 2, p); got shape {tuple(points.shape)}")
    return points.to(torch.float64)


def _pairs(wanted: Coefficients, got: Coefficients) -> list[str]:
    names = ("c1", "c2", "c3", "diagonal")
    return [f"{n} {g:.10g} (target {w:.10g})" for n, w, g in zip(names, wanted.four, got.four, strict=True)]


def _numbers(c: Coefficients) -> dict[str, Any]:
    return {f.name: getattr(c, f.name) for f in fields(c) if f.name != "network"}
