"""``match_uniform``: the data-free twin of a plain (uncentred) DEQ, with a bound over all inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from ..._arrays import as_rows, squared_norms
from ...errors import InfeasibleMatchError, InvalidInputError
from ...networks import DEQ
from ..certificates import Tried, check_number
from ..names import MatchKernel, kernel_names
from ..twin import Twin
from . import homogeneous, nonhomogeneous
from .arc import HomogeneousDEQ
from .arc_fit import Fit

__all__ = ["match_uniform", "norm_range"]

DEFAULT_NORMS = (0.5, 1.5)


class _Candidate(Protocol):
    @property
    def bound(self) -> float: ...
    def row(self) -> Tried: ...


_C = TypeVar("_C", bound=_Candidate)


def match_uniform(
    deq: DEQ,
    kernel: MatchKernel = "ck",
    norms: tuple[float, float] | None = None,
    tol: float = 1e-3,
    layers: int | Literal["auto"] = "auto",
    *,
    check: bool = True,
) -> Twin:
    """The shallowest explicit network whose kernel is within ``tol`` of the DEQ's for every pair of inputs.

    Parameters
    ----------
    deq : the DEQ as it is used, with its plain (uncentred) activation
    kernel : ``"ck"``, ``"ntk"`` (all weights trained), ``"ntk_frozen"`` (input weights frozen), ``"both"`` (CK and NTK)
    norms : range of input norms (:func:`norm_range`); homogeneous activations need none, others default to (0.5, 1.5)
    tol : allowed error relative to sqrt(k(x, x) k(y, y)); certified, not sampled
    layers : ``"auto"``, or a number of layers, which is then used whatever it reaches
    check : refuse a DEQ outside its contraction range; the kernel itself exists beyond it (ReLU: sigma_a2 < 2)

    >>> import notsodeep as nsd
    >>> twin = nsd.match_uniform(nsd.DEQ("relu", sigma_a2=0.2))
    >>> twin.depth, twin.bound < 1.2e-4
    (2, True)
    """
    if not isinstance(deq, DEQ):
        raise InvalidInputError(f"match_uniform takes a DEQ, got {type(deq).__name__}")
    kernel_names(kernel)
    box = _norms(norms)
    check_number("tol", tol, positive=True)
    _check_layers(layers)
    deq.check_unbiased("match_uniform")
    if check:
        deq.check_contraction()
    if deq.activation.homogeneity == 1.0:
        return _homogeneous(deq, kernel, tol, layers)
    return _boxed(deq, kernel, box or DEFAULT_NORMS, tol, layers)


def _check_layers(layers: Any) -> None:
    if isinstance(layers, str) and layers == "auto":
        return
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= homogeneous.MAX_LAYERS:
        raise InvalidInputError(f"layers must be 'auto' or 1 ... {homogeneous.MAX_LAYERS}, got {layers!r}")


def _homogeneous(deq: DEQ, kernel: MatchKernel, tol: float, layers: int | Literal["auto"]) -> Twin:
    reduced = HomogeneousDEQ.of(deq)
    shallow: Fit | None = None

    def build(depth: int) -> homogeneous.Candidate:
        nonlocal shallow
        found = homogeneous.candidate(reduced, kernel, depth, tol, shallow)
        shallow = found.fit
        return found

    best, tried = _shallowest(deq, kernel, tol, layers, homogeneous.MAX_LAYERS, build)
    return homogeneous.twin(deq, kernel, best, tried)


def _boxed(
    deq: DEQ, kernel: MatchKernel, norms: tuple[float, float], tol: float, layers: int | Literal["auto"]
) -> Twin:
    shallow: Sequence[float] | None = None

    def build(depth: int) -> nonhomogeneous.Candidate:
        nonlocal shallow
        found = nonhomogeneous.candidate(deq, kernel, norms, depth, tol, shallow)
        shallow = found.solution.parameters.tolist()
        return found

    best, tried = _shallowest(deq, kernel, tol, layers, nonhomogeneous.MAX_LAYERS, build)
    return nonhomogeneous.twin(deq, kernel, norms, best, tried)


def _shallowest(
    deq: DEQ, kernel: MatchKernel, tol: float, layers: int | Literal["auto"], most: int, build: Callable[[int], _C]
) -> tuple[_C, list[_C]]:
    """Depths in turn until one is within tolerance; the requested one if there is a request."""
    if layers != "auto":
        only = build(layers)
        return only, [only]
    tried: list[_C] = []
    for depth in range(1, most + 1):
        tried.append(build(depth))
        if tried[-1].bound <= tol:
            return tried[-1], tried
    raise InfeasibleMatchError(_infeasible(deq, kernel, tol, [c.row() for c in tried]), min(c.bound for c in tried))


def _infeasible(deq: DEQ, kernel: MatchKernel, tol: float, rows: Sequence[Tried]) -> str:
    listing = "\n".join(f"  {row}" for row in rows)
    best = min(rows, key=lambda row: row.bound)
    return (
        f"no network of up to {rows[-1].depth} layers has the {kernel} of {deq!r} within tol = {tol:.3g} everywhere:\n"
        f"{listing}\nRaise tol to {best.bound:.3g} or more, narrow the range of norms if there is one, "
        f"or take layers={best.depth} as it is"
    )


def _norms(norms: Any) -> tuple[float, float] | None:
    if norms is None:
        return None
    try:
        low, high = (float(x) for x in norms)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(
            f"norms must be a pair (low, high), got {norms!r}; norm_range(X) makes one from data"
        ) from None
    if not (0.0 < low <= high and math.isfinite(high)):
        raise InvalidInputError(f"norms must satisfy 0 < low <= high, got {norms!r}")
    return low, high


def norm_range(X: Any, coverage: float = 1.0) -> tuple[float, float]:
    """The range that holds the given share of the row norms of X, for ``match_uniform(..., norms=...)``.

    >>> norm_range([[3.0, 4.0], [0.0, 1.0]])
    (1.0, 5.0)
    """
    norms = squared_norms(as_rows(X)).sqrt().cpu().numpy()
    if not 0.0 < coverage <= 1.0:
        raise InvalidInputError(f"coverage must lie in (0, 1], got {coverage!r}")
    tail = 0.5 * (1.0 - coverage)
    low, high = np.quantile(norms, [tail, 1.0 - tail])
    if not low > 0:
        raise InvalidInputError(
            "a row of X has norm zero, at which no relative bound is possible; drop it or lower coverage"
        )
    return float(low), float(high)
