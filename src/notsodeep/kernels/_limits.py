"""The tuning numbers of this room, each with the reason for its size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes, tolerances and thresholds of the computation of kernels."""

    tolerance: float = 4e-15
    """Relative error of an expectation: twenty units of float64."""
    noise: float = 2e-15
    """Rounding hides anything smaller in Parseval's identity."""
    slow_evaluations: int = 1 << 26
    """Evaluations of an activation that take seconds."""
    nodes_of_a_pair: int = 1 << 24
    """Evaluations for one pair of inputs: more would not fit into the memory that is allowed."""
    direct_pairs: int = 1024
    """Fewer pairs of rows than this are not worth a table."""
    many_pairs: float = 4096.0
    """Pairs for which a table that takes long to build is worth looking for."""
    pairs_at_once: int = 4096
    """Pairs evaluated entry by entry at once: series of 2048 terms for each are 64 megabytes."""
    field_entries: int = 1 << 17
    """Positions times pairs of images that are solved together: their fields fit into the cache of a core."""
    open_entries: int = 1 << 18
    """Entries that wait until they are evaluated one by one."""
    held_numbers: int = 1 << 22
    """Numbers in the norm factors of rows that are stored: 32 megabytes."""
    short_row: float = 1e-6
    """Rows shorter than this share of the longest one are evaluated one by one: they are not worth a wider table."""
    tiny_variance: float = 1e-290
    """Variances below this are their own limit; their squares, and what is divided by them, are still numbers."""
    hermite_terms: int = 2048
    """The longest Hermite series of a pair: longer ones cost more than quadrature."""
    series_terms: int = 1024
    """Hermite coefficients that the quadrature still resolves at one scale each."""
    nodes_at_once: int = 1 << 18
    """Nodes of quadratures held at once: what fits into a cache is twice as fast."""
    arcsine_terms: int = 11
    """Terms of a series that cost as much as the arcsine."""
    spare_orders: int = 2
    """Orders of a grid that must be nothing before it counts as resolved."""
    norm_bend: float = 0.7
    """The norm at which the variable of a table changes from linear to logarithmic: most kernels bend near 1."""
    series_share: float = 0.6
    """Share of a table's tolerance that its Hermite series may lack."""
    rest_share: float = 0.2
    """Share of a table's tolerance for the last step of Newton's method, and for the end of a layer's series."""
    lone_entries: int = 512
    """Entries of a table's grid that may be integrated one by one."""
    steps: int = 40
    """Steps of Newton's method and of contractions: three to ten are usual."""
    conjugate_powers: int = 40
    """Powers of the relative distance of a variance, in bounds on discs of complex norms."""
    series_end: float = 1e-6
    """Share of a sum that the last terms of such a bound may have."""
    gpu_block: tuple[int, int] = (4096, 8192)
    """Rows and columns of a product on a GPU: large enough to keep it busy."""
    gpu_listed: int = 1 << 21
    """Entries that a GPU lists for later: 16 megabytes."""


LIMITS = Limits()
