"""nsd.match: the entry, and the certificate."""

from __future__ import annotations

import sys
from typing import Literal

from .._arguments import checked
from ..mixtures import MixtureStatistics
from ..networks import DEQ
from .auto import choose
from .certificates import MixtureCertificate
from .families import FAMILIES, Draft, Family, FamilyName, Refusal, solve_family
from .names import MatchKernel
from .target import ACCEPTED, Target, achieved, make_target, residual_of
from .twin import Twin


@checked
def match(
    deq: DEQ,
    statistics: MixtureStatistics | float,
    kernel: MatchKernel = "ck",
    family: FamilyName | Literal["auto"] | Family = "auto",
    *,
    with_rates: bool | None = None,
    learning_rates: bool | None = None,
) -> Twin:
    """The shallow explicit network whose kernel equals the DEQ's on high-dimensional mixtures (theory, section 6).

    Parameters
    ----------
    deq : the DEQ; it is matched in its centred form, ``twin.deq``, which differs from the DEQ as given unless its
        activation is odd (``print(twin)`` says by how much; :func:`match_uniform` takes the DEQ as it is)
    statistics : :class:`MixtureStatistics`, or the scale tau0 alone (root mean square norm of the inputs)
    kernel : ``"ck"``, ``"ntk"`` (all weights), ``"ntk_frozen"`` (input weights frozen) or ``"both"`` (CK and NTK)
    family : ``"auto"`` takes the shallowest network that matches and, of those, the cheapest activation whose kernel
        is ten times closer than that of the plain network times its best scalar; where there is none it takes the
        closest, and ``twin.reason`` says how little is gained (theory, section 14);
        ``"hard_tanh"``, ``"skip"`` (the DEQ's own activation with a linear term, for odd ones), ``"leaky_relu"``,
        ``"quadratic"``, ``"hermite"``, or a :class:`Family` of your own
    with_rates : may the twin carry per-layer learning rates to reach an NTK? ``None``: only where activations alone
        do not reach it, or only with a poor next order; ``False``: never; ``True``: always, for the NTKs of two layers.
        The CK's twin changes smoothly with the DEQ; an NTK's does once this choice is made, ``True`` or ``False``
    learning_rates : the older name of ``with_rates``

    >>> import notsodeep as nsd
    >>> twin = nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0, family="hard_tanh")
    >>> layer = twin.network.activations[0]
    >>> round(layer.a, 6), round(layer.c, 6), twin.residual < 1e-14
    (0.764297, 1.196485, True)
    """
    with_rates = learning_rates if with_rates is None else with_rates
    target = make_target(deq, statistics, kernel)
    found = _design(target, family, with_rates)
    proven = found if isinstance(found, Refusal) else _certify(target, found)
    if isinstance(proven, Refusal):
        raise proven.error()
    return proven


def _design(target: Target, family: str | Family, with_rates: bool | None) -> Draft | Refusal:
    if isinstance(family, Family):
        return solve_family(target, family)
    return choose(target, with_rates) if family == "auto" else FAMILIES[family](target, with_rates)


def _certify(target: Target, draft: Draft) -> Twin | Refusal:
    """The numbers of the finished network, by quadrature of its own activations."""
    got = achieved(target, draft.network, draft.rates)
    residual = residual_of(target, got)
    if not residual <= ACCEPTED:
        return Refusal(
            f"the best network of the family {draft.family!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * residual:.3g} %",
            "Use family='auto' or 'hermite'",
            residual,
        )
    proof = MixtureCertificate(residual, target.tau0, target.numbers, got, min(draft.conditioning, sys.float_info.max))
    return Twin(target.deq, draft.network, target.kernel, draft.family, proof, draft.rates, draft.reason)
