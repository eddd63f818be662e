"""``match_uniform``: the data-free twin of a plain (uncentred) DEQ, with a bound over all inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..._arguments import checked, whole
from ...errors import InfeasibleMatchError, InvalidInputError
from ...networks import DEQ
from ..arc import HomogeneousDEQ
from ..certificates import Tried, check_number
from ..names import MatchKernel, check_range, kernel_names
from ..one_layer import match_one_layer
from ..twin import Twin
from . import homogeneous


@checked
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

    One layer is enough (theory, section 13), so ``layers="auto"`` returns the twin of :func:`match_one_layer`. Plain
    leaky-ReLU layers are there for those who want ordinary activations, and for both kernels at once: they reach the
    kernels of homogeneous DEQs to some 1e-5, and no others (docs/uniform.md, section 3).

    Parameters
    ----------
    deq : the DEQ as it is used, with its plain (uncentred) activation
    kernel : ``"ck"``, ``"ntk"`` (all weights trained), ``"ntk_frozen"`` (input weights frozen), ``"both"`` (CK and NTK;
        plain layers of a homogeneous DEQ only)
    norms : range of input norms (:func:`norm_range`); homogeneous activations need none, others default to (0.5, 1.5)
    tol : allowed error relative to sqrt(k(x, x) k(y, y)); certified, not sampled
    layers : ``"auto"``, or a number of plain layers, which is then used whatever it reaches
    check : refuse a DEQ outside its contraction range; the kernel itself exists beyond it (ReLU: sigma_a2 < 2)

    >>> import notsodeep as nsd
    >>> twin = nsd.match_uniform(nsd.DEQ("relu", sigma_a2=0.2))
    >>> twin.depth, twin.bound < 1e-6
    (1, True)
    >>> plain = nsd.match_uniform(nsd.DEQ("relu", sigma_a2=0.2), layers=2)
    >>> plain.network.activations[0].name, plain.bound < 1.2e-4
    ('leaky_relu', True)
    """
    kernel_names(kernel)
    _check_layers(layers)
    if layers == "auto" and kernel != "both":
        return match_one_layer(deq, kernel, norms, tol, units="conditioned", check=check)
    check_range(norms)
    check_number("tol", tol, positive=True)
    _check_plain(deq, kernel)
    if check:
        deq.check_contraction()
    return _plain(deq, kernel, tol, layers)


def _check_plain(deq: DEQ, kernel: MatchKernel) -> None:
    """Plain layers are for homogeneous DEQs without a bias."""
    if deq.homogeneous:
        return
    what = "one network for CK and NTK" if kernel == "both" else "a number of layers"
    advice = "a twin for each kernel" if kernel == "both" else "layers='auto'"
    raise InvalidInputError(
        f"{what} asks for plain layers, which reach homogeneous DEQs (relu, leaky_relu, abs, linear) without a bias "
        f"only, got {deq!r}; take match_one_layer, {advice}"
    )


def _check_layers(layers: Any) -> None:
    if not (isinstance(layers, str) and layers == "auto"):
        whole("layers, if not 'auto',", layers, most=homogeneous.MAX_LAYERS)


def _plain(deq: DEQ, kernel: MatchKernel, tol: float, layers: int | Literal["auto"]) -> Twin:
    """Depths in turn until one is within tolerance; the requested one if there is a request."""
    reduced = HomogeneousDEQ.of(deq)
    if layers != "auto":
        only = homogeneous.certified(reduced, kernel, layers, tol, None)
        return homogeneous.twin(deq, kernel, only, [only])
    tried: list[homogeneous.CertifiedFit] = []
    for depth in range(1, homogeneous.MAX_LAYERS + 1):
        tried.append(homogeneous.certified(reduced, kernel, depth, tol, tried[-1].fit if tried else None))
        if tried[-1].bound <= tol:
            return homogeneous.twin(deq, kernel, tried[-1], tried)
    raise InfeasibleMatchError(_infeasible(deq, kernel, tol, [c.row() for c in tried]), min(c.bound for c in tried))


def _infeasible(deq: DEQ, kernel: MatchKernel, tol: float, rows: Sequence[Tried]) -> str:
    listing = "\n".join(f"  {row}" for row in rows)
    best, names = min(rows, key=lambda row: row.bound), " and the ".join(kernel_names(kernel))
    return (
        f"no network of up to {rows[-1].depth} layers has the {names} of {deq!r} within tol = {tol:.3g} everywhere:\n"
        f"{listing}\nRaise tol to {best.bound:.3g} or more, take layers={best.depth} as it is, "
        "or a twin for each kernel (match_one_layer)"
    )
