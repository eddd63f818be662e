"""The matrix whose law is computed: noise and what is of low rank, in the limit of the theorems or at finite p."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..equivalents import Coefficients
from ..errors import InvalidInputError
from ..kernels.averages import PairAverages
from ..networks import Network
from .linearised import Linearised, by_classes, in_the_limit
from .population import LIMITS, Array, Commuting, Population, Sloped
from .products import Concentration, concentration, is_steep, with_products
from .sources import Source
from .spikes import LowRankPart

Form = tuple[Population, LowRankPart, Concentration]


def limit_form(source: Source, c: Coefficients) -> Form:
    """Build the matrix of theory section 8, that of the centred network."""
    form = in_the_limit(source, c)
    _check_seen(form, c.network, c)
    test = concentration(source, form, c.c3, float(form.offsets.mean()))
    return source.population.scaled(form.factors), _low_rank(source, form, form.offsets), test


def finite_form(source: Source, network: Network, c: Coefficients) -> Form:
    """Build the matrix with slopes and diagonals by class, of the network as it is given.

    With more points than directions of noise, products of two features fill what would be an atom.
    """
    norms, dots = source.norms, source.mean_gram / source.p
    # slopes are those at the typical pair, the constants are averages over all pairs of two classes
    k = PairAverages(network, c.kernel, norms, dots)
    over_pairs = PairAverages(network, c.kernel, norms, dots, source.norm_spread, source.dot_spread)
    form = by_classes(source, k, over_pairs.mean, products=not _slopes_by_pair(source))
    _check_seen(form, network, c)
    held, products = float(form.offsets.mean()), None
    of_products: Array = np.zeros(len(norms))
    if source.n >= source.rank:
        grown, products = with_products(source, k, form, over_pairs.mean)
        of_products = of_products if products is None else products.weights @ products.values
        form, products = (grown, products) if of_products.max() > LIMITS.rounding * form.unit else (form, None)
    width = float(source.shares @ (np.sqrt(source.norm_spread) * np.abs(over_pairs.by_norm[1])))
    low_rank = replace(_low_rank(source, form, form.offsets - of_products), width=width)
    noise = _noise(source, form, products, form.offsets - of_products - low_rank.shift)
    curvature, steep = 0.5 * float(source.shares @ k.curvature @ source.shares), products is not None
    steep = steep and is_steep(source)
    held -= steep * float(of_products.mean())
    return noise, low_rank, concentration(source, form, curvature, held, steep=steep)


def _check_seen(form: Linearised, network: Network, c: Coefficients) -> None:
    if float(np.diag(form.slopes).max()) <= LIMITS.rounding * form.unit:
        raise InvalidInputError(
            f"the {c.kernel} of {network!r} does not see inner products (c1 = {c.c1:.3g}), so it has no bulk; its "
            "equivalent has few eigenvalues: nsd.equivalent(network, statistics).eigenvalues()"
        )


def _low_rank(source: Source, form: Linearised, offsets: Array) -> LowRankPart:
    return LowRankPart(float(source.shares @ offsets), source.counts / source.p, form)


def _slopes_by_pair(source: Source) -> bool:
    """Say whether every pair of classes has its of_products slope.

    Not with p x p matrices, and not with more points than directions of noise: there the shifted zero stays one atom.
    """
    base = source.population
    if not isinstance(base, Commuting) or source.n >= source.rank:
        return False
    rows, classes = base.values.shape
    return rows * classes**3 <= LIMITS.block_work


def _noise(source: Source, form: Linearised, products: Commuting | None, offsets: Array) -> Population:
    """Scale the blocks by class; slopes l_a l_b only rescale the covariances."""
    base, slopes, factors = source.population, form.slopes, form.factors
    if products is not None:
        return base.scaled(factors, offsets).plus(products)
    if source.n >= source.rank:
        offsets = 0.0 * offsets
    if not np.allclose(slopes, np.outer(factors, factors), rtol=1e-12, atol=1e-15 * float(np.diag(slopes).max())):
        assert isinstance(base, Commuting)
        return Sloped(base.ratios, replace(base, offsets=offsets), slopes)
    return base.scaled(factors, offsets)
