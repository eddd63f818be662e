"""What a machine has learned to look at: the diagonal of its M, or its main directions as images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .._arguments import checked, positive_int
from ..errors import InvalidInputError
from .spectrum import Display


class FeaturesDisplay(Display):
    """Show learned features. Build it with :meth:`from_estimator`.

    Parameters
    ----------
    matrix : array of shape (p, p)
        M, the mean outer product of gradients.
    names : sequence of str
        Of the p columns.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> model = nsd.DEQRegressor("relu", features="diagonal").fit(X, X[:, 1] ** 2)
    >>> nsd.plots.FeaturesDisplay.from_estimator(model).plot().ax_.get_yticklabels()[-1].get_text()
    'column 1'
    """

    def __init__(self, matrix: NDArray[Any], names: Sequence[str]) -> None:
        self.matrix, self.names = matrix, tuple(names)

    @classmethod
    def from_estimator(cls, estimator: Any) -> FeaturesDisplay:
        """Build the display from a fitted machine or process that has learned features."""
        M = getattr(estimator, "features_", None)
        if M is None:
            raise InvalidInputError("there are no learned features: fit with features='diagonal' or features='full'")
        names = getattr(estimator, "feature_names_in_", [f"column {i}" for i in range(len(M))])
        return cls(M, [str(name) for name in names])

    @checked
    def plot(self, ax: Axes | None = None, *, top: int = 20, image: Sequence[int] | None = None) -> FeaturesDisplay:
        """Draw the largest diagonal entries as bars, the first on top; with the shape of an ``image``, main directions.

        For rows that are images of this shape, the main directions of M stand side by side.
        """
        positive_int("top", top)
        if image is not None:
            return self._directions(self._axes(ax, 8.0, 2.4), tuple(image), min(top, 6))
        ax = self._axes(ax, 5.0, 0.9 + 0.22 * min(top, len(self.names)))
        shares = np.diag(self.matrix) / np.trace(self.matrix)
        order = np.argsort(shares)[-top:]
        ax.barh([self.names[i] for i in order], 100.0 * shares[order], color="#b3262e")
        ax.set(xlabel="share of the mean squared gradient (%)")
        return self

    def _directions(self, ax: Axes, image: tuple[int, ...], count: int) -> FeaturesDisplay:
        if len(image) != 2 or image[0] * image[1] != len(self.names):
            raise InvalidInputError(f"image must be the (height, width) of {len(self.names)} columns, got {image}")
        vectors = np.linalg.eigh(self.matrix)[1][:, ::-1][:, :count]
        gap = np.full((image[0], 1), np.nan)
        parts = [part for v in vectors.T for part in (v.reshape(image) / np.abs(v).max(), gap)][:-1]
        ax.imshow(np.hstack(parts), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        ax.set(xticks=[], yticks=[], xlabel="main directions of M, the first on the left")
        return self
