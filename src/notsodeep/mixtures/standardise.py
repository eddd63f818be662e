"""Common centring and scaling to mean squared norm one, as the papers prepare real data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .._arrays import as_rows, like
from ..errors import InvalidInputError


class Standardiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map x to (x - mean) / scale, so that training data has mean zero and mean squared norm one.

    A scikit-learn transformer.

    Attributes
    ----------
    mean_ : array of shape (p,)
        Mean of the training rows.
    scale_ : float
        Root of their mean squared distance from it.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = np.random.default_rng(0).normal(2.0, 3.0, (2, 40, 5))
    >>> fitted = Standardiser().fit(train)
    >>> round(float((fitted.transform(train) ** 2).sum(1).mean()), 12), fitted.transform(test).shape
    (1.0, (40, 5))
    """

    def fit(self, X: Any, y: Any = None) -> Standardiser:
        """Find the mean and the scale of the rows X, (n, p); ``y`` is ignored."""
        rows = self._rows(X, first=True)
        mean = rows.to(torch.float64).mean(0)
        # ||x - m||^2 summed in chunks: no second copy of the data
        total = sum(float(((part - mean) ** 2).sum()) for part in rows.split(4096))
        if total == 0.0:
            raise InvalidInputError(
                f"all rows are equal (n_samples = {len(rows)}): the data cannot be scaled to mean squared norm one"
            )
        self.mean_, self.scale_ = mean.cpu().numpy(), (total / len(rows)) ** 0.5
        return self

    def transform(self, X: Any) -> Any:
        """Standardise rows, (n, p); the result has their type and precision."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like((rows - self._mean(rows)) / self.scale_, X)

    def inverse_transform(self, X: Any) -> Any:
        """Return standardised rows, (n, p), to the original coordinates."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like(rows * self.scale_ + self._mean(rows), X)

    def _mean(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.mean_).to(rows.device, rows.dtype)

    def _rows(self, X: Any, first: bool = False) -> Tensor:
        """Take tensors as they are; scikit-learn checks everything else."""
        if not isinstance(X, Tensor):
            try:
                return as_rows(validate_data(self, X, dtype=[np.float64, np.float32], reset=first))
            except (ValueError, OverflowError) as error:
                raise InvalidInputError(str(error)) from None
        rows = as_rows(X, features=None if first else self.n_features_in_)
        self.n_features_in_: int = rows.shape[1]
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def standardise(X: Any, *others: Any) -> Any:
    """Centre X and scale it to mean squared norm one.

    Parameters
    ----------
    X : array of shape (n, p)
        Training rows, NumPy or torch.
    *others : arrays of shape (m, p)
        Test rows, which get the transformation fitted on X.

    Returns
    -------
    array or tuple of arrays
        The rows of X, with all others in a tuple if there are any.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = standardise(np.eye(4), np.ones((2, 4)))
    >>> float(np.abs(train.mean(0)).max()) < 1e-15, test.shape
    (True, (2, 4))
    """
    fitted = Standardiser().fit(X)
    if not others:
        return fitted.transform(X)
    return tuple(fitted.transform(part) for part in (X, *others))
