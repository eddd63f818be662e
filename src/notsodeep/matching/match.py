"""``match``: the shallow network of the papers, and the choice of its family."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from .._arguments import checked
from ..errors import InfeasibleMatchError, InvalidInputError
from ..mixtures import MixtureStatistics
from ..networks import DEQ, Kernel
from ._limits import LIMITS
from .certificates import TwinCertificate
from .families import FAMILIES
from .solver import Draft, missed
from .target import Target, make_target
from .twin import Twin


@checked
def match(deq: DEQ, statistics: MixtureStatistics | float, kernel: Kernel = "ck", family: str = "auto") -> Twin:
    """Find a shallow network whose kernel approaches the DEQ's on high-dimensional mixtures (theory, section 6).

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
        ``"auto"`` takes the shallowest network and, among those, the cheapest activation whose kernel also matches the
        next orders of the DEQ's, or else the closest one. ``twin.verify(X)`` compares it with a plain network.

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
    draft = _choose(target) if family == "auto" else FAMILIES[family](target)
    # by quadrature of the finished network's activations
    got = target.achieved(draft.network, draft.rates)
    residual = target.residual(got)
    if not residual <= LIMITS.accepted:
        raise missed(target, f"network of the family {draft.family!r}", residual)
    proof = TwinCertificate("mixture", residual, None, target.tau0, target.numbers, got)
    return Twin(target.deq, draft.network, target.kernel, draft.family, proof, draft.rates, draft.reason)


def _choose(target: Target) -> Draft:
    """Return the first draft of the list with near next orders, else the nearest; the cheapest come first."""
    drafts: dict[str, tuple[float, Draft]] = {}
    refused: list[InfeasibleMatchError] = []
    for family in ("hard_tanh", "skip", "hermite") if target.odd else ("leaky_relu", "hermite"):
        try:
            draft = FAMILIES[family](target)
        except InfeasibleMatchError as error:
            refused.append(error)
            continue
        cost = target.cost(target.jet_of(draft.network, draft.rates))
        drafts[draft.family] = float(cost), draft
        if cost <= LIMITS.near_next_order:
            break
    if not drafts:
        raise refused[-1]
    least, best = min(drafts.values(), key=lambda pair: pair[0])
    cheaper = itertools.takewhile(lambda family: family != best.family, drafts)
    farther = {family: math.sqrt(drafts[family][0] / max(least, 1e-300)) for family in cheaper}
    remarks = [
        f"{family} has the numbers too, but is about {by:.2g} times farther off" for family, by in farther.items()
    ]
    return replace(
        best, reason="; ".join([best.reason, *(remarks or [str(error).partition(". ")[0] for error in refused[:1]])])
    )
