"""Distances of exact kernels: the twin's, and those of the plain network it is held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor

from ..equivalents import relative_spectral_error

_DENSE = 1500
_STEPS = 40
_CLOSE = 1e-9
_ROUGH = 1e-3


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


def relative_distance(truth: Tensor, other: Tensor) -> float:
    """||truth - other|| / ||truth|| in spectral norm, for symmetric matrices.

    All eigenvalues where that is cheap: a difference that is mostly rounding has no top that Lanczos could find.
    """
    if len(truth) > _DENSE:
        return relative_spectral_error(truth, other)
    return float(torch.linalg.eigvalsh(truth - other).abs().max() / torch.linalg.eigvalsh(truth).abs().max())


@dataclass(frozen=True)
class Scaled:
    """The scalar with which a kernel comes nearest to another, and the relative distance that is left."""

    scalar: float
    distance: float


def best_scalar(truth: Tensor, other: Tensor, *, rough: float | None = None) -> Scaled:
    """The minimum over s of ||truth - s other|| / ||truth||, both positive semi-definite.

    ``rough``: to a thousandth, and the rough norm of ``truth``.

    The largest and the smallest eigenvalue of truth - s other fall with s; the spectral norm is least where they are
    opposite. Their sum is a decreasing function whose slope the two eigenvectors give: Newton within a bracket.
    """
    size = max(abs(value) for value, _ in _ends(truth)) if rough is None else rough
    s = float((truth * other).sum() / (other * other).sum().clamp_min(torch.finfo(other.dtype).tiny))
    low, high, best, near = 0.0, float("inf"), Scaled(0.0, 1.0), None
    for _ in range(_STEPS):
        (top, up), (bottom, down) = _ends(truth - s * other, rough is not None, near)
        near = up + down  # those of the next matrix will not be far
        found = Scaled(s, max(top, -bottom) / size)
        best = found if found.distance < best.distance else best
        excess = top + bottom
        low, high = (s, high) if excess > 0 else (low, s)
        steep = float(up @ other @ up + down @ other @ down)
        following = s + excess / max(steep, 1e-300)
        if not low < following < high:
            following = 0.5 * (low + high) if high < float("inf") else 2.0 * s
        if abs(following - s) <= (_CLOSE if rough is None else _ROUGH * best.distance) * s:
            break
        s = following
    return best


def rough_norm(matrix: Tensor) -> float:
    """Of a symmetric matrix, to a thousandth."""
    return max(abs(value) for value, _ in _ends(matrix, rough=True))


def _ends(
    matrix: Tensor, rough: bool = False, near: Tensor | None = None
) -> tuple[tuple[float, Tensor], tuple[float, Tensor]]:
    """The largest and the smallest eigenvalue of a symmetric matrix, with their eigenvectors; ``near`` their sum."""
    found = _lanczos(matrix, _ROUGH if rough else 0.0, near) if rough or len(matrix) > _DENSE else None
    values, vectors = torch.linalg.eigh(matrix) if found is None else found
    return (float(values[-1]), vectors[:, -1]), (float(values[0]), vectors[:, 0])


def _lanczos(matrix: Tensor, tol: float, near: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Both ends of the spectrum, or nothing where the iteration finds none (a matrix of rounding errors)."""
    start = np.random.default_rng(0).standard_normal(len(matrix))
    if near is not None:
        start = near.cpu().numpy() + 1e-3 / len(matrix) ** 0.5 * start
    # a rough answer needs half the digits of each entry, and is found in half the time
    unit = float(matrix.abs().max()) or 1.0
    given = (matrix / unit).cpu().to(torch.float32 if tol else matrix.dtype).numpy()
    try:
        values, vectors = eigsh(given, k=2, which="BE", v0=start.astype(given.dtype), tol=tol)
    except ArpackError:
        return None
    return unit * torch.from_numpy(values).to(matrix), torch.from_numpy(vectors).to(matrix)
