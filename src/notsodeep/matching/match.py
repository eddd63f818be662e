"""``match``: the shallow network of the papers, and the choice of its family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from .._arguments import checked
from .._caches import cached
from ..equivalents import best_scalar
from ..errors import InvalidInputError
from ..kernels.jets import DEGREE, monomials
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import DEQ, ENN, Kernel
from ._limits import LIMITS
from .certificates import MixtureCertificate
from .families import FAMILIES
from .families.skip import without_and_with_rates
from .solver import Draft, Refusal
from .target import Target, make_target
from .twin import Twin

Array = NDArray[Any]


@checked
def match(deq: DEQ, statistics: MixtureStatistics | float, kernel: Kernel = "ck", family: str = "auto") -> Twin:
    """Find the shallow explicit network whose kernel equals the DEQ's on high-dimensional mixtures (theory, section 6).

    Parameters
    ----------
    deq : DEQ
        The network to match. It is matched in its centred form, ``twin.deq``, which differs from the DEQ as given
        unless its activation is odd; :func:`match_one_layer` takes the DEQ as it is.
    statistics : MixtureStatistics or float
        Statistics of the data, or their scale tau0 alone: the root mean square norm of the inputs.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel to match: readout trained, all weights trained, all but the input weights trained.
    family : {"auto", "hard_tanh", "leaky_relu", "quadratic", "hermite", "skip"}
        The activations of the twin. ``"skip"`` is the DEQ's own activation with a linear term, for odd ones.
        ``"auto"`` takes the shallowest network and, of those, the cheapest activation whose kernel is ten times closer
        than that of the plain network times its best scalar, or else the closest (theory, section 14).

    Returns
    -------
    Twin
        The network with its certificate. Where an NTK needs one learning rate per weight matrix, or gains much by
        them, they are ``twin.learning_rates``.

    Raises
    ------
    InfeasibleMatchError
        If the family has no network with the numbers of the DEQ; the text says which inequality fails.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> twin = nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0, family="hard_tanh")
    >>> layer = twin.network.activations[0]
    >>> round(layer.a, 6), round(layer.c, 6), twin.residual < 1e-14
    (0.764297, 1.196485, True)
    """
    if family != "auto" and family not in FAMILIES:
        raise InvalidInputError(f"family must be one of {['auto', *FAMILIES]}, got {family!r}")
    target = make_target(deq, statistics, kernel)
    found = _choose(replace(target, deq=target.deq.detached())) if family == "auto" else FAMILIES[family](target)
    proven = found if isinstance(found, Refusal) else _certify(target, found)
    if isinstance(proven, Refusal):
        raise proven.error()
    return proven


def _certify(target: Target, draft: Draft) -> Twin | Refusal:
    """The twin with the numbers of its finished network, by quadrature of its own activations."""
    got = target.achieved(draft.network, draft.rates)
    residual = target.residual(got)
    if not residual <= LIMITS.accepted:
        return Refusal(
            f"the best network of the family {draft.family!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * residual:.3g} %",
            "Use family='auto' or 'hermite'",
            residual,
        )
    proof = MixtureCertificate(residual, target.tau0, target.numbers, got)
    return Twin(target.deq, draft.network, target.kernel, draft.family, proof, draft.rates, draft.reason)


# ---- family="auto" -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    draft: Draft
    distance: float
    gain: float


@cached(64)
def _choose(target: Target) -> Draft | Refusal:
    """The first candidate that is ten times closer than the plain network with its best scalar, else the closest."""
    judged: list[_Judged] = []
    refused: list[Refusal] = []
    for found in _candidates(target):
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        judged.append(_Judged(found, *judge(target, found)))
        if judged[-1].gain >= LIMITS.clear_gain:
            break
    if not judged:
        return refused[-1]
    best = min(judged, key=lambda j: j.distance)
    return replace(best.draft, reason="; ".join([best.draft.reason, *_remarks(best, judged, refused)]))


def _candidates(target: Target) -> Iterator[Draft | Refusal]:
    """The cheapest first: Hard-Tanh or Leaky-ReLU before the DEQ's own activation before a polynomial."""
    if target.odd:
        yield FAMILIES["hard_tanh"](target)
        yield from without_and_with_rates(target)
    else:
        yield FAMILIES["leaky_relu"](target)
    yield FAMILIES["hermite"](target)


def _remarks(best: _Judged, judged: list[_Judged], refused: list[Refusal]) -> list[str]:
    """Why nothing cheaper was taken, and how much is gained where that is little."""
    passed = {j.draft.family: j for j in judged if j.draft.family != best.draft.family}
    unit = max(best.distance, 1e-300)
    out = [
        f"{family} has the numbers too, but is {j.distance / unit:.2g} times farther off"
        for family, j in passed.items()
    ]
    if not out and refused:
        out.append(refused[0].why)
    if best.gain < LIMITS.clear_gain:
        few = "not ten times closer than the plain network times its best scalar, but about"
        out.append(f"{few} {best.gain:.2g} times: little is gained here")
    return out


def judge(target: Target, draft: Draft) -> tuple[float, float]:
    """The relative distance of a draft, and how many times closer it is than the plain network with its best scalar.

    No kernel is computed. On points of nearly typical norm and nearly orthogonal, a kernel is its jet up to the third
    order. Summed on the mixture of the papers (p = 1000), and seen in the few directions in which such sums are large,
    jets give distances within 15 % of those of the exact kernels.
    """
    plain = ENN([target.deq.activation] * draft.network.depth).centred(target.tau0)
    jets = (target.jet, target.jet_of(draft.network, draft.rates), target.jet_of(plain))
    truth, own, other = (np.tensordot(jet.c, _forms(), 1) for jet in jets)
    if not np.isfinite(own).all():
        return math.inf, 0.0
    distance = float(np.linalg.norm(truth - own, 2) / np.linalg.norm(truth, 2))
    if distance <= 1e-12 or not np.isfinite(other).all():  # rounding
        return distance, math.inf
    return distance, best_scalar(truth, other).distance / distance


@cached(1)
def _forms() -> Array:
    """Every monomial of a jet off the diagonal of a sample, then every power on it, in the directions that count.

    The shape is (forms, directions, directions).
    """
    X, _ = GaussianMixture.two_class(1000).sample(400, seed=0)
    cosines = X @ X.T
    cosines /= cosines.diagonal().mean()
    norms = np.vander(cosines.diagonal() - 1.0, DEGREE + 1, increasing=True)
    directions = _directions(cosines, norms)
    sides = [directions * power[:, None] for power in norms.T]
    np.fill_diagonal(cosines, 0.0)
    apart = [cosines**k for k in range(DEGREE + 1)]
    np.fill_diagonal(apart[0], 0.0)
    return np.array([sides[i].T @ apart[k] @ sides[j] for i, j, k in monomials()] + [sides[0].T @ s for s in sides])


def _directions(cosines: Array, norms: Array) -> Array:
    """The directions in which sums over the sample are large.

    They are the powers of the norm, with either end of the spectrum as well, and the points of the outermost norms.
    Within 4 % they have the distances of all points, for every design tried.
    """
    _, ends = eigsh(cosines, k=5, which="BE", v0=np.ones(len(cosines)), tol=1e-3)
    spread = [ends * power[:, None] for power in norms.T[:DEGREE]]
    outermost = np.eye(len(norms))[:, [norms[:, 1].argmin(), norms[:, 1].argmax()]]
    found = np.concatenate([norms, *spread, outermost], axis=1)
    return np.linalg.qr(found / np.linalg.norm(found, axis=0))[0]
