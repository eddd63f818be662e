"""The tuning numbers of this room, each with the reason for its size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes, tolerances and thresholds of the computation of kernels."""

    tolerance: float = 4e-15  # relative error of an expectation: twenty units of float64
    noise: float = 2e-15  # rounding hides anything smaller in Parseval's identity
    slow_evaluations: int = 1 << 26  # evaluations of an activation that take seconds
    nodes_of_a_pair: int = 1 << 24  # evaluations for one pair of inputs: more would not fit into memory
    direct_pairs: int = 1024  # fewer pairs of rows than this are not worth a table
    direct_slopes: int = 128  # the same for slopes, which take ten times as long one by one
    pairs_of_a_scale: int = 4  # pairs for which Hermite coefficients are worth their time beside closed forms
    steep_cosine: float = 1.0 - 1e-4  # beyond it the derivative of an arcsine amplifies the rounding of a table
    mixed_variance: float = 0.1  # above it Hermite series are longer than a double sum of closed forms
    blurred_scale: float = 20.0  # scales beyond which the rounding of a covariance is seen in nearly parallel points
    steep_scale: float = 20.0  # scales of inputs from which smooth kernels need angles from the rows themselves
    long_bias: float = 1e8  # a variance of the bias beside that of the inputs, which hides their angles
    far_square: float = 60.0  # squared scales of inputs beyond which series do not reach equal points any more
    many_norms: int = 64  # norms at which a function of them is worth a series
    cap_angles: int = 18  # nodes of an interval of angles that doubles
    panel_share: int = 32  # entries of a tile, for each of those that are cheaper one by one than the whole tile
    far_intervals: int = 6  # more of them for kinks off zero, which unequal norms tell apart at small angles
    cap_error: float = 2e-12  # what they may be wrong between their nodes, beside the diagonal
    hidden: float = 5e-10  # times the squared scale: 1 - |r| of which a rounded covariance leaves an error of 5e-12
    blurred_lack: float = 1e-8  # 1 - |rho| below which the rounding of E[phi phi] is seen in slopes of kinked functions
    many_pairs: float = 1024.0  # pairs for which a table that takes long to build is worth looking for
    pairs_of_a_grid: int = 1 << 14  # pairs from which the largest grid of a table is worth its time in any network
    points_of_a_pair: float = 400.0  # points of a grid of several layers that cost as much as one pair
    pairs_at_once: int = 1 << 14  # pairs evaluated entry by entry at once: they share what is known of their norms
    terms_at_once: int = 1 << 23  # terms of the series of pairs held at once: 64 megabytes
    few_pairs: int = 256  # nearly parallel pairs that closed forms serve sooner than series
    few_slow_pairs: int = 64  # those that integrals serve sooner
    even_slopes: float = (
        1e-3  # E[phi'^2] of the faintest positions of images, beside the largest, that a table may have
    )
    field_entries: int = 1 << 17  # positions times pairs of images solved together: their fields fit a core's cache
    file_block: int = 1 << 22  # positions of pairs computed before a file is written: about a second
    open_entries: int = 1 << 18  # entries that wait until they are evaluated one by one
    held_numbers: int = 1 << 22  # numbers in the norm factors of rows that are stored: 32 megabytes
    short_row: float = 1e-9  # shorter rows, beside the longest, are evaluated one by one, without a wider table
    widest_band: float = 256.0  # the largest ratio of norms in a table: wider ones are parted into bands
    narrow_band: float = 16.0  # the ratio from which a band is parted where it has no table
    band_gap: float = 2.0  # octaves without a norm at which bands are parted first
    block_rows: int = 1024  # rows of a band that are computed at once, or half of all: blocks need memory of their own
    linear_product: float = 1024.0  # product of scales beyond which closed forms of linear pieces lose 1e-12
    square_product: float = 128.0  # the same for parabolas
    tiny_variance: float = 1e-290  # smaller variances are their own limit; quotients by this one are still numbers
    hermite_terms: int = 2048  # the longest Hermite series of a pair: longer ones cost more than quadrature
    series_terms: int = 1024  # Hermite coefficients that the quadrature still resolves at one scale each
    panels_of_a_grid: int = 1024  # panels of a function whose expectations are computed for all pairs of scales at once
    part_steps: int = 8  # into how many parts half of a table's range of angles is divided for its polynomials
    nodes_at_once: int = 1 << 18  # nodes of quadratures held at once: what fits into a cache is twice as fast
    panels_at_once: int = 4096  # panels of quadratures of pairs held at once
    arcsine_terms: int = 11  # terms of a series that cost as much as the arcsine
    spare_orders: int = 2  # orders of a grid that must be nothing before it counts as resolved
    norm_bend: float = 0.7  # where a table's norm turns from linear to logarithmic: most kernels bend near 1
    series_share: float = 0.6  # share of a table's tolerance that its Hermite series may lack
    rest_share: float = 0.2  # share of it for the last step of Newton's method, and for the end of a layer's series
    steps: int = 40  # steps of Newton's method and of contractions: three to ten are usual
    conjugate_powers: int = 40  # powers of the relative distance of a variance, in bounds on discs of complex norms
    series_end: float = 1e-6  # share of a sum that the last terms of such a bound may have
    gpu_block: tuple[int, int] = (4096, 8192)  # rows and columns of a product on a GPU: large enough to keep it busy
    gpu_listed: int = 1 << 16  # entries that a GPU may list for later, or a share of all: one megabyte
    gpu_share: int = 16  # entries of a matrix on a GPU, for each of those that may be listed
    gpu_sample: int = 1024  # rows and columns of a product that say which series of nearly parallel entries it needs
    gpu_series: int = 256  # entries of a matrix on a GPU, for each of those from which on such a series joins the pass
    gpu_open: int = 1 << 22  # entries evaluated at once of those that were listed: a few hundred launches for all
    gpu_numbers: int = 1 << 25  # numbers held at once for single entries: 256 megabytes


LIMITS = Limits()
