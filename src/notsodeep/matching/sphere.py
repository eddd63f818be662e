"""The exact one-layer twin on the unit sphere (theory, section 7).

There every kernel of a DEQ is k(rho) = sum_k k_k rho^k with k_k >= 0. One hidden layer sigma = sum_k s_k h_k has the CK
sum s_k^2 rho^k and the NTK sum (1 + k) s_k^2 rho^k; so s_k = +-sqrt(k_k), or +-sqrt(k_k / (1 + k)), has exactly the
DEQ's kernel, for every n and every dimension, centred or not. What a truncation leaves out is at most the tail sum.
"""

from __future__ import annotations

import numpy as np

from .._arguments import checked, positive_int
from ..activations import Hermite
from ..errors import InfeasibleMatchError
from ..kernels import power_series, sphere_diagonal
from ..networks import DEQ, ENN, Kernel, check_kernel
from .certificates import TwinCertificate
from .one_layer.units import signs
from .twin import Twin


@checked
def match_sphere(deq: DEQ, kernel: Kernel = "ck", terms: int = 60) -> Twin:
    """Find the one-layer twin for inputs of norm 1, whose kernel is exact up to a bound on every entry.

    Parameters
    ----------
    deq : DEQ
        The network to match, as it is: centred or not.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel to match; with frozen input weights a one-layer twin has its CK alone.
    terms : int
        How many orders of the power series are used; the rest sums up to ``twin.bound``.

    Returns
    -------
    Twin
        ``twin.bound`` bounds the error of every entry of the kernel. The signs of the coefficients are free: they are
        those of phi's own and, where phi has none, they alternate as those of |u| do.

    Raises
    ------
    InfeasibleMatchError
        If the kernel is zero on the sphere.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> twin = nsd.match_sphere(nsd.DEQ("silu", sigma_a2=0.2))
    >>> twin.depth, twin.bound < 1e-10
    (1, True)
    """
    check_kernel(deq, kernel)
    deq = deq.detached()
    deq.check_driven()
    positive_int("terms", terms, 2)
    total = float(sphere_diagonal(deq, kernel))
    if not total > 0.0:
        raise InfeasibleMatchError(f"the kernel of {deq!r} is zero on the whole sphere: there is nothing to match")
    series = np.asarray(power_series(deq, terms, kernel), dtype=float)
    if float(series.min()) < -1e-13 * total:
        raise InfeasibleMatchError(f"the power series of {deq!r} has a negative coefficient {series.min():.3g}")
    sizes = np.sqrt(np.maximum(series, 0.0) / (1.0 + np.arange(terms) if kernel == "ntk" else np.ones(terms)))
    # the tail, and what rounding can add to a sum of this many terms
    bound = max(total - float(series.sum()), 0.0) + 1e-15 * terms * total
    return Twin(
        deq,
        ENN([Hermite(tuple((sizes * signs(deq, 1.0, sizes)).tolist()))]),
        kernel,
        "hermite",
        TwinCertificate("sphere", bound / total, bound),
        reason=f"unit-norm inputs: one layer with the square roots of the kernel's power series, {terms} terms",
    )
