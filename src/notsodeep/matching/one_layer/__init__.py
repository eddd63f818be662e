"""``match_one_layer``: one hidden layer with the kernel of a DEQ, for every input (theory, section 13)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from ..._arguments import checked, shown
from ..._arrays import as_rows, squared_norms
from ...errors import InfeasibleMatchError, InvalidInputError
from ...kernels import sphere_diagonal
from ...networks import ENN, Kernel, Network, check_kernels
from .._limits import LIMITS
from ..certificates import TwinCertificate
from ..twin import Trains, Twin
from . import everywhere, homogeneous, ranged
from .bound import LayerDesign


@checked
def match_one_layer(
    deq: Network,
    kernel: Kernel = "ck",
    norms: tuple[float, float] | None = None,
    tol: float = 1e-4,
    kinds: int | Literal["auto"] = "auto",
    units: Literal["auto", "conditioned", "thresholds"] = "auto",
    *,
    trains: Trains | Literal["auto"] = "auto",
    check: bool = True,
) -> Twin:
    """Find one hidden layer whose kernel is within ``tol`` of a network's for every pair of inputs.

    The units see the norm of the input: psi(w.x/|x|; |x|), in ``kinds`` kinds (theory, section 13).

    Parameters
    ----------
    deq : DEQ or ENN
        The network, centred or not, with or without a bias. An ENN may have any depth.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel to match: readout trained, all weights of the DEQ trained, all but its input weights trained.
    norms : tuple of float, optional
        The range (low, high) of input norms; ``matching.norm_range`` reads one off data. Homogeneous activations need
        none, others default to (0.5, 1.5). (0, inf): all norms, for a DEQ. Its CK is met within about
        1e-2, and its NTK within a few 1e-2, by a layer that trains all weights, at ``twin.learning_rates``.
    tol : float
        The allowed error relative to sqrt(k(x, x) k(y, y)).
    kinds : int or "auto"
        The number of kinds. ``"auto"`` takes the fewest within ``tol``; a given number is used whatever bound it
        reaches.
    units : {"auto", "conditioned", "thresholds"}
        ``"conditioned"``: elementary functions of w.x/|x| whose coefficients depend on |x|. ``"thresholds"``: for the
        CK of homogeneous DEQs, ordinary units relu(w.x - t |x|), which cost less and reach about 1e-5. ``"auto"``:
        thresholds where they are within ``tol``.
    trains : {"auto", "readout", "all"}
        What the twin trains. ``"readout"``: its CK is the DEQ's kernel, a convex problem. ``"all"``: its NTK is.
        ``"auto"``: all weights for the NTK of a homogeneous DEQ, the readout otherwise.
    check : bool
        Whether to raise an error for a DEQ outside its contraction range.

    Returns
    -------
    Twin
        ``twin.bound`` holds for all inputs with norms in the range, in every dimension; ``twin.certificate.assumes``
        lists what is not proven.

    Raises
    ------
    InfeasibleMatchError
        If ``kinds="auto"`` and nothing is within ``tol``; ``error.residual`` is what is reached.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> twin = nsd.match_one_layer(nsd.DEQ("tanh", sigma_a2=0.2))
    >>> twin.depth, twin.kinds, twin.bound < 2.5e-5
    (1, 2, True)
    """
    check_kernels(deq, (kernel,))
    deq = deq.detached()
    _check(deq, kernel, tol, kinds, units)
    deq.check_driven()
    if check:
        deq.check_contraction()
    if not sphere_diagonal(deq, kernel) > 0.0:
        raise InfeasibleMatchError(f"the kernel of {deq!r} is zero for every input: there is nothing to match")
    box = _check_range(norms)
    unbounded = box[1] == math.inf
    rule = _rule(deq, kernel, trains, unbounded)
    if not (deq.homogeneous or unbounded):
        return _twin(deq, kernel, ranged.design(deq, kernel, box, tol, kinds, rule), box, rule)
    if kinds not in ("auto", 1):
        raise InvalidInputError(f"one kind of units serves all norms, got kinds={kinds}")
    if deq.homogeneous:
        made = homogeneous.design(deq, kernel, tol, units, rule)
        instead = ", or take units='conditioned'" if units == "thresholds" else ""
    else:
        made = everywhere.design(deq, kernel)
        instead = ", take it as it is (kinds=1), or give a range of norms that ends"
    if kinds == "auto" and made.proof.bound > tol:
        reached = made.proof.bound
        raise InfeasibleMatchError(
            f"one layer reaches {reached:.3g} for the {kernel} of {deq!r}, asked for tol = {tol:.3g}. "
            f"Raise tol to {reached:.3g} or more{instead}",
            reached,
        )
    return _twin(deq, kernel, made, None, rule)


@checked
def norm_range(X: Any, coverage: float = 1.0) -> tuple[float, float]:
    """Return a range of norms for rows like those of X, for ``match_one_layer(..., norms=...)``.

    Parameters
    ----------
    X : array of shape (n, p)
        The data.
    coverage : float
        1 covers all rows, with a margin for fresh ones: the ratio between an end and the extreme row equals that
        between the extreme row and the outer tenth of the rows. Less covers this share of the rows, with equal tails
        and no margin.

    Returns
    -------
    tuple of float
        (low, high).

    Examples
    --------
    >>> norm_range([[3.0, 4.0], [0.0, 1.0]], coverage=0.5)
    (2.0, 4.0)
    """
    norms = squared_norms(as_rows(X)).sqrt().cpu().numpy()
    if not 0.0 < coverage <= 1.0:
        raise InvalidInputError(f"coverage must lie in (0, 1], got {coverage!r}")
    tail = 0.5 * (1.0 - coverage)
    low, inner, outer, high = np.quantile(norms, [tail, 0.1, 0.9, 1.0 - tail])
    if not high > 0:
        raise InvalidInputError("all rows of X are zero; there is no range of norms to speak of")
    if coverage == 1.0 and inner > 0.0:
        # a tail that falls by a factor of n / 10 up to the extreme of n rows falls by as much again within the margin
        low, high = low * (low / inner), high * (high / outer)
    return float(low), float(high)


# ---- arguments -------------------------------------------------------------------------------------------


def _check_range(norms: tuple[float, float] | None) -> tuple[float, float]:
    low, high = (0.5, 1.5) if norms is None else norms
    if (low, high) != (0.0, math.inf) and not (0.0 <= low <= high < math.inf and high > 0.0):
        raise InvalidInputError(
            f"norms must satisfy 0 <= low <= high, high positive and finite, or be (0, inf), got {shown(norms)}"
        )
    return low, high


def _check(network: Any, kernel: Kernel, tol: float, kinds: int | str, units: str) -> None:
    if not 0.0 < tol < math.inf:
        raise InvalidInputError(f"tol must be a positive, finite number, got {tol!r}")
    if isinstance(kinds, int) and not 1 <= kinds <= LIMITS.most_kinds:
        raise InvalidInputError(f"kinds must be 'auto' or 1 ... {LIMITS.most_kinds}, got {kinds!r}")
    if units == "thresholds" and not (kernel == "ck" and network.plain and network.homogeneous):
        raise InvalidInputError(
            f"units='thresholds' is for the CK of a homogeneous DEQ, got the {kernel} of {network!r}; use "
            "units='conditioned'"
        )


def _rule(network: Network, kernel: Kernel, trains: Trains | Literal["auto"], unbounded: bool) -> Trains:
    everywhere = unbounded and not network.homogeneous
    if trains == "all" and kernel != "ntk":
        raise InvalidInputError(
            f"one layer that trains all its weights has an NTK; for {kernel!r} only the readout trains"
        )
    if trains == "readout" and kernel == "ntk" and everywhere:
        raise InvalidInputError(
            "for all norms a layer has the NTK if all its weights train; leave trains, or end norms"
        )
    if trains != "auto":
        return trains
    return "all" if kernel == "ntk" and (everywhere or network.homogeneous) else "readout"


# ---- the record ------------------------------------------------------------------------------------------


def _twin(
    network: Network, kernel: Kernel, made: LayerDesign, norms: tuple[float, float] | None, trains: Trains
) -> Twin:
    proof, taken = made.proof, made.rows[-1]
    certificate = TwinCertificate(
        "uniform", proof.sampled, proof.bound, norms=norms, at=proof.at, table=made.rows, assumes=proof.assumes
    )
    return Twin(
        network, ENN([made.layer]), kernel, taken.family, certificate, made.rates, made.reason, trains, taken.kinds
    )
