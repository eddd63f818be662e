"""``match_one_layer``: one hidden layer with the kernel of a DEQ, for every input."""

from __future__ import annotations

from typing import Literal

import torch

from ..._arguments import checked
from ...errors import InfeasibleMatchError, InvalidInputError
from ...kernels import diagonal
from ...networks import DEQ, ENN, Kernel, Network, check_kernels
from ..certificates import Location, UniformCertificate, check_number
from ..names import MatchKernel, Trains, check_range
from ..twin import Twin
from . import homogeneous, ranged
from .certificate import LayerDesign
from .ranged import MOST

__all__ = ["match_one_layer"]


@checked
def match_one_layer(
    deq: Network,
    kernel: MatchKernel = "ck",
    norms: tuple[float, float] | None = None,
    tol: float = 1e-4,
    kinds: int | Literal["auto"] = "auto",
    units: Literal["auto", "conditioned", "thresholds"] = "auto",
    *,
    trains: Trains | Literal["auto"] = "auto",
    check: bool = True,
) -> Twin:
    """One hidden layer whose kernel is within ``tol`` of a network's for every pair of inputs (theory, section 13).

    The units see the norm of the input: psi(w.x/|x|; |x|), in ``kinds`` kinds. ``twin.bound`` is certified for all
    inputs of all dimensions with norms in the range, relative to sqrt(k(x, x) k(y, y)).

    Parameters
    ----------
    deq : a DEQ as it is used, centred or not, with or without a bias; an explicit network of any depth is one layer by
        the same theorem
    kernel : ``"ck"``, ``"ntk"`` (all weights of the DEQ trained) or ``"ntk_frozen"`` (its input weights frozen)
    norms : range of input norms, from zero upwards if need be; homogeneous activations need none, others default to
        (0.5, 1.5). :func:`norm_range` reads one off data
    kinds : the fewest within ``tol`` (``"auto"``), or a number, which is then used whatever it reaches
    units : ``"conditioned"``, elementary functions of w.x/|x| whose coefficients depend on |x|; ``"thresholds"``, for
        homogeneous DEQs, ordinary units relu(w.x - t |x|), which cost less and reach about 1e-5 for the CK and the
        frozen NTK, 2e-4 for the NTK. ``"auto"``: thresholds where the readout trains and they are within ``tol``;
        ``twin.reason`` says so
    trains : what the twin trains. ``"readout"``: its CK is the DEQ's kernel, a convex problem; ``"all"``: its NTK is.
        ``"auto"``: all weights for the NTK of a homogeneous DEQ, the readout otherwise
    check : refuse a DEQ outside its contraction range

    >>> import notsodeep as nsd
    >>> twin = nsd.match_one_layer(nsd.DEQ("tanh", sigma_a2=0.2))
    >>> twin.depth, twin.kinds, twin.bound < 2.5e-5
    (1, 2, True)
    """
    if kernel == "both":
        raise InvalidInputError(
            "one layer matches one kernel, got kernel='both': take a twin for each, or match_uniform, whose plain "
            "layers have CK and NTK of a homogeneous DEQ at once"
        )
    _check(deq, tol, kinds, units)
    check_kernels(deq, (kernel,))
    if isinstance(deq, DEQ):
        deq.check_driven()
    if check and isinstance(deq, DEQ):
        deq.check_contraction()
    rule, box = _rule(deq, kernel, trains), check_range(norms)
    if not deq.homogeneous:
        return _twin(deq, kernel, ranged.design(deq, kernel, box, tol, kinds, rule), box, rule)
    if kinds not in ("auto", 1):
        raise InvalidInputError(f"a homogeneous network needs one kind of units, got kinds={kinds}")
    twin = _twin(deq, kernel, homogeneous.design(deq, kernel, tol, units, rule), None, rule)
    return _accepted(twin, tol) if kinds == "auto" else twin


# ---- arguments -------------------------------------------------------------------------------------------


def _check(network: Network, tol: float, kinds: int | str, units: str) -> None:
    if not all(phi.elementwise for phi in network.activations):
        raise InvalidInputError(f"match_one_layer takes networks of elementwise activations, got {network!r}")
    check_number("tol", tol, positive=True)
    if isinstance(kinds, int) and not 1 <= kinds <= MOST:
        raise InvalidInputError(f"kinds must be 'auto' or 1 ... {MOST}, got {kinds!r}")
    if units == "thresholds" and not (isinstance(network, DEQ) and network.homogeneous):
        raise InvalidInputError(f"units='thresholds' needs a homogeneous DEQ, got {network!r}; use units='conditioned'")


def _rule(deq: Network, kernel: Kernel, trains: Trains | Literal["auto"]) -> Trains:
    if trains == "all" and kernel != "ntk":
        raise InvalidInputError(
            f"one layer that trains all its weights has an NTK; for {kernel!r} only the readout trains"
        )
    if trains != "auto":
        return trains
    return "all" if kernel == "ntk" and deq.homogeneous else "readout"


# ---- the record ------------------------------------------------------------------------------------------


def _twin(
    network: Network, kernel: Kernel, made: LayerDesign, norms: tuple[float, float] | None, trains: Trains
) -> Twin:
    at, proof, own = made.proof.at, made.proof, made.rows[-1]
    where = Location(1.0, 1.0, at, kernel) if norms is None else Location(at, at, 1.0, kernel)
    high = torch.tensor([1.0 if norms is None else norms[1] ** 2], dtype=torch.float64)
    largest = float(diagonal(network, high, (kernel,), check=False)[kernel])
    certificate = UniformCertificate(
        proof.sampled, proof.bound, norms, where, made.rows, ((kernel, largest),), proof.assumes
    )
    rates = None if made.rate is None else (made.rate, 1.0)
    return Twin(network, ENN([made.layer]), kernel, own.family, certificate, rates, made.reason, trains, own.kinds)


def _accepted(twin: Twin, tol: float) -> Twin:
    reached = twin.table[-1].bound
    if reached > tol:
        raise InfeasibleMatchError(
            f"one layer of {twin.family} units reaches {reached:.3g} for the {twin.kernel} of {twin.deq!r}, asked "
            f"for tol = {tol:.3g}. Raise tol to {reached:.3g} or more"
            + (", or take units='conditioned'" if twin.family == "thresholds" else ""),
            reached,
        )
    return twin
