"""``match_uniform``: the data-free twin of a plain (uncentred) DEQ, with a bound over all inputs.

Beside the one layer that is enough there are plain ones for homogeneous DEQs: ReLU, Leaky-ReLU, absolute value.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np

from .._arguments import checked, whole
from ..errors import InfeasibleMatchError, InvalidInputError
from ..networks import DEQ, Kernel, first_trained, is_tangent
from .arc import Array, HomogeneousDEQ, layers
from .arc_bound import certify
from .arc_fit import BendFit, Problem, fit, fit_depth
from .certificates import Location, Proof, Tried, UniformCertificate, check_number
from .names import MatchKernel, check_range, kernel_names
from .one_layer import match_one_layer
from .twin import Twin

MAX_LAYERS = 6
_FAMILY = "leaky_relu"
_QUICK_CELLS = {"ck": 2048}  # its slack has a closed form, so a fine grid is cheap
_TABLE_LOSS = 1.15  # a proposal this much worse than its neighbours straddles a kink of the map: polish it


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
    if layers != "auto":
        whole("layers, if not 'auto',", layers, most=MAX_LAYERS)
    elif kernel != "both":
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


def _plain(deq: DEQ, kernel: MatchKernel, tol: float, layers: int | Literal["auto"]) -> Twin:
    """Depths in turn until one is within tolerance; the requested one if there is a request."""
    reduced = HomogeneousDEQ.of(deq)
    if layers != "auto":
        only = certified(reduced, kernel, layers, tol, None)
        return _twin(deq, kernel, only, [only])
    tried: list[CertifiedFit] = []
    for depth in range(1, MAX_LAYERS + 1):
        tried.append(certified(reduced, kernel, depth, tol, tried[-1].fit if tried else None))
        if tried[-1].bound <= tol:
            return _twin(deq, kernel, tried[-1], tried)
    best, names = min(tried, key=lambda c: c.bound).row, " and the ".join(kernel_names(kernel))
    listing = "\n".join(f"  {c.row}" for c in tried)
    raise InfeasibleMatchError(
        f"no network of up to {MAX_LAYERS} layers has the {names} of {deq!r} within tol = {tol:.3g} everywhere:\n"
        f"{listing}\nRaise tol to {best.bound:.3g} or more, take layers={best.depth} as it is, "
        "or a twin for each kernel (match_one_layer)",
        best.bound,
    )


# ---- plain layers with their certificates ------------------------------------------------------------------


@dataclass(frozen=True)
class CertifiedFit:
    """A fit with its certificates, one per kernel."""

    fit: BendFit
    proofs: tuple[Proof, ...]

    @property
    def worst(self) -> int:
        """The kernel that decides."""
        return max(range(len(self.proofs)), key=lambda i: self.proofs[i].bound)

    @property
    def bound(self) -> float:
        return self.proofs[self.worst].bound

    @property
    def sampled(self) -> float:
        return max(s.sampled for s in self.proofs)

    @property
    def row(self) -> Tried:
        return Tried(len(self.fit.bends), self.bound, self.sampled, _FAMILY)


def certified(
    reduced: HomogeneousDEQ, kernel: MatchKernel, depth: int, tol: float, shallow: BendFit | None, precise: bool = False
) -> CertifiedFit:
    """The best network of a depth, from the table where it reaches and by fitting where not.

    Unless ``precise``, certificates are only as fine as the comparison with ``tol`` needs.
    """
    kinds = kernel_names(kernel)
    branch = branch_for(reduced, kernel, depth)
    if branch is None:
        found = fit_depth(Problem(reduced, kinds), depth, shallow)
        return CertifiedFit(found, _certificates(reduced, kinds, found, tol, quick=False))
    found = branch.at(reduced.feedback)
    quick = CertifiedFit(found, _certificates(reduced, kinds, found, tol, quick=not precise))
    if quick.sampled <= _TABLE_LOSS * found.error + 1e-12:
        return quick
    found = fit(Problem(reduced, kinds), branch.beside(reduced.feedback))
    return CertifiedFit(found, _certificates(reduced, kinds, found, tol, quick=False))


def _certificates(
    reduced: HomogeneousDEQ, kinds: tuple[Kernel, ...], found: BendFit, tol: float, quick: bool
) -> tuple[Proof, ...]:
    """Coarse certificates first: they are enough unless they leave open whether the tolerance is met."""
    out = []
    for kind, weights in zip(kinds, found.weights, strict=True):
        if quick:
            # a depth that cannot meet the tolerance is only reported, so a coarse certificate will do
            cells = 256 if found.error > tol else _QUICK_CELLS.get(kind, 512)
            once = certify(reduced, found.bends, weights, kind, cells=cells, relative=1.0)
            if once.bound <= tol or once.sampled > tol:
                out.append(once)
                continue
        out.append(certify(reduced, found.bends, weights, kind))
    return tuple(out)


def _twin(deq: DEQ, kernel: MatchKernel, best: CertifiedFit, tried: list[CertifiedFit]) -> Twin:
    """The record for the chosen candidate."""
    reduced = HomogeneousDEQ.of(deq)
    kinds = kernel_names(kernel)
    where = best.proofs[best.worst]
    proof = UniformCertificate(
        residual=best.sampled,
        bound=best.bound,
        norms=None,
        location=Location(1.0, 1.0, where.at, kinds[best.worst]),
        table=tuple(c.row for c in tried),
        diagonals=tuple((kind, reduced.diagonal(kind)) for kind in kinds),
    )
    return Twin(
        deq=deq,
        network=layers(best.fit.bends, _gain(reduced, kinds, best.fit)),
        kernel=kernel,
        family=_FAMILY,
        certificate=proof,
        learning_rates=_rates(reduced, kinds, best.fit),
        reason="homogeneous: one function of the angle decides, fitted in the maximum norm",
    )


def _gain(reduced: HomogeneousDEQ, kinds: tuple[Kernel, ...], found: BendFit) -> float:
    """The network's own CK at norm one: fitted if the CK is asked for, else the DEQ's, the rates doing the rest."""
    return reduced.gain * (float(found.weights[kinds.index("ck")][0]) if "ck" in kinds else 1.0)


def _rates(reduced: HomogeneousDEQ, kinds: tuple[Kernel, ...], found: BendFit) -> tuple[float, ...] | None:
    """Learning-rate multipliers W_1 ... W_L, readout: the NTK's weights in units of the network's gain."""
    for kind, weights in zip(kinds, found.weights, strict=True):
        if is_tangent(kind):
            unit = reduced.diagonal(kind) / _gain(reduced, kinds, found)
            values = [float(w) * unit for w in weights]
            return tuple([0.0] * first_trained(kind, len(found.bends)) + values)
    return None


# ---- the table of ReLU twins -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """Optimal ReLU twins of one depth and kernel over nodes of the feedback: bends, and weights per kernel.

    The table only *proposes* parameters; the certificate is computed for the very network that is returned, so an
    interpolation error can cost accuracy but never validity.
    """

    nodes: Array
    bends: Array
    weights: tuple[Array, ...]
    error: Array

    def at(self, feedback: float) -> BendFit:
        """Cubic interpolation through the four nearest nodes."""
        stencil, coefficients = _lagrange(self.nodes, feedback)
        bends = np.clip(self.bends[:, stencil] @ coefficients, 0.0, 2.0)
        weights = tuple(np.maximum(w[:, stencil] @ coefficients, 0.0) for w in self.weights)
        return BendFit(bends, weights, float(self.error[stencil] @ coefficients))

    def beside(self, feedback: float) -> list[list[float]]:
        """The bends at the two nearest nodes, from which a fit can start where interpolation straddles a kink."""
        i = min(max(int(np.searchsorted(self.nodes, feedback)), 1), len(self.nodes) - 1)
        return [self.bends[:, k].tolist() for k in (i - 1, i)]


def _lagrange(nodes: Array, x: float) -> tuple[slice, Array]:
    first = min(max(int(np.searchsorted(nodes, x)) - 2, 0), len(nodes) - 4)
    near = nodes[first : first + 4]
    coefficients = np.array([np.prod((x - np.delete(near, i)) / (near[i] - np.delete(near, i))) for i in range(4)])
    return slice(first, first + 4), coefficients


@functools.cache
def load() -> dict[tuple[str, int], Branch]:
    """The shipped branches by (kernel, depth)."""
    text = resources.files(__package__).joinpath("tables", "relu.json").read_text(encoding="utf-8")
    document = json.loads(text)
    nodes = np.array(document["feedback"])
    branches = {}
    for row in document["branches"]:
        weights = tuple(np.array(w) for w in row["weights"])
        branches[row["kernel"], row["depth"]] = Branch(nodes, np.array(row["bends"]), weights, np.array(row["error"]))
    return branches


def branch_for(deq: HomogeneousDEQ, kernel: str, depth: int) -> Branch | None:
    """The part of the table that holds this DEQ's twins, or ``None`` where it does not reach."""
    if abs(deq.bend - 1.0) > 1e-14:
        return None
    branch = load().get((kernel, depth))
    return None if branch is None or deq.feedback > branch.nodes[-1] else branch
