"""From a mixture, or the statistics of data, to what the solvers need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._arguments import positive_int
from ..errors import InvalidInputError
from ..mixtures import Covariance, GaussianMixture, MixtureStatistics
from ..mixtures.statistics import shrunk_covariances
from .population import LIMITS, Array, Blocks, Commuting, Population


@dataclass(frozen=True, eq=False)
class Source:
    """Covariances, means and the statistics of theory section 3, for n points."""

    population: Population
    counts: Array
    p: int
    tau0: float
    t: Array
    T: Array
    norms: Array  # E||x||^2 by class: tr C_a/p + ||mu_a||^2/p
    mean_gram: Array  # mu_a . mu_b.
    mean_covariance: Array  # mu_a' C_b mu_a
    rank: int  # Directions that carry noise

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def shares(self) -> Array:
        """The class shares n_a/n."""
        return self.counts / self.counts.sum()

    @property
    def norm_spread(self) -> Array:
        """Var ||x||^2 by class."""
        return 2.0 * np.diag(self.T) / self.p + 4.0 * np.diag(self.mean_covariance) / self.p**2

    @property
    def dot_spread(self) -> Array:
        """Var x . y by pair of classes."""
        return self.T / self.p + (self.mean_covariance + self.mean_covariance.T) / self.p**2


def source_of(data: GaussianMixture | MixtureStatistics, n: int | None) -> Source:
    """Read a mixture, or the statistics of data, for n points."""
    if isinstance(data, MixtureStatistics):
        return _from_statistics(data, None if n is None else positive_int("n", n))
    if n is None:
        raise InvalidInputError("the number of points matters: give n")
    return _from_mixture(data, data.counts(positive_int("n", n)))


def _from_mixture(mix: GaussianMixture, counts: Array) -> Source:
    if counts.min() < 1:
        raise InvalidInputError(f"every class needs a point: n = {counts.sum()} gives class sizes {counts.tolist()}")
    covariances = mix.covariances
    traces = np.array([c.trace() for c in covariances]) / mix.p
    if traces.min() <= 0:
        raise InvalidInputError(f"class {int(traces.argmin())} has zero covariance; the law needs noise in every class")
    shares = counts / counts.sum()
    population = _population(covariances, mix.means, counts / mix.p)
    lengths = (mix.means**2).sum(axis=1) / mix.p
    return Source(
        population=population,
        counts=counts,
        p=mix.p,
        # E||x||^2 with the means: at finite p nearer to the exact kernel than tr C0/p (theory section 3)
        tau0=math.sqrt(float(shares @ (traces + lengths))),
        t=math.sqrt(mix.p) * (traces - shares @ traces),
        T=np.array([[a.inner(b) for b in covariances] for a in covariances]) / mix.p,
        norms=traces + lengths,
        mean_gram=mix.means @ mix.means.T,
        mean_covariance=np.stack([(c.multiply(mix.means) * mix.means).sum(axis=1) for c in covariances], axis=1),
        rank=_rank(population, mix.p),
    )


def _from_statistics(stats: MixtureStatistics, n: int | None) -> Source:
    """Read the mixture of the estimated means and the shrunk class covariances of the rows."""
    if stats.p > LIMITS.matrix_side:
        raise InvalidInputError(f"sample covariances are formed for p <= {LIMITS.matrix_side}, got p = {stats.p}")
    covariances = shrunk_covariances(stats)
    mixture = GaussianMixture(stats.means, covariances, weights=stats.counts)
    source = _from_mixture(mixture, stats.counts if n is None else mixture.counts(n))
    return replace(source, tau0=stats.tau0, t=stats.t, T=stats.T)


def _rank(population: Population, p: int) -> int:
    if isinstance(population, Blocks):
        return population.covariances.shape[-1] + _rank(population.outside, p)
    live = population.values.max(axis=1) > LIMITS.rounding * population.scale
    return round(p * float(population.weights[live].sum()))


def _population(covariances: Sequence[Covariance], means: Array, ratios: Array) -> Population:
    if all(c.diagonal for c in covariances):
        return _commuting(ratios, np.stack([c.entries for c in covariances], axis=1), means)
    p = means.shape[1]
    if p > LIMITS.matrix_side:
        raise InvalidInputError(
            f"p = {p} is too large for p x p matrices (limit {LIMITS.matrix_side}); covariances that are all numbers "
            "or vectors have no such limit"
        )
    return _dense(np.stack([c.dense() for c in covariances]), means, ratios)


def _commuting(ratios: Array, values: Array, means: Array) -> Commuting:
    """Merge equal rows of joint eigenvalues (p, K), in the basis in which the means (L, p) are given."""
    rows, inverse, repeats = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    grams = np.zeros((len(rows), len(means), len(means)))
    used = np.flatnonzero(np.abs(means).any(axis=0))
    np.add.at(grams, inverse.ravel()[used], np.einsum("ai,bi->iab", means[:, used], means[:, used]))
    return Commuting(ratios, rows, repeats / len(values), grams)


def _dense(covariances: Array, means: Array, ratios: Array) -> Population:
    """Find joint eigenvalues if the matrices (K, p, p) commute, else matrices on the directions that carry noise."""
    p = means.shape[1]
    mixed = np.tensordot(np.random.default_rng(0).uniform(1.0, 2.0, len(covariances)), covariances, axes=1)
    values, vectors = np.linalg.eigh(mixed)
    turned = np.stack([vectors.T @ c @ vectors for c in covariances])
    diagonals = np.einsum("aii->ia", turned)
    crossed = turned - np.stack([np.diag(d) for d in diagonals.T])
    rotated = means @ vectors
    if np.abs(crossed).max() < 10.0 * LIMITS.rounding * float(diagonals.max()):
        grams = np.einsum("ai,bi->iab", rotated, rotated)
        return Commuting(ratios, np.clip(diagonals, 0.0, None), np.full(p, 1.0 / p), grams)
    live = values > LIMITS.rounding * values[-1]
    lost = rotated[:, ~live]
    null = Commuting(ratios, np.zeros((1, len(ratios))), np.array([lost.shape[1] / p]), (lost @ lost.T)[None])
    kept = np.ascontiguousarray(turned[:, live][:, :, live])
    return Blocks(ratios, kept[:, None], np.full(1, 1.0 / p), rotated[:, live].T[None, None], null)
