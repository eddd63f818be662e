"""Common centring and scaling to mean squared norm one, as the papers prepare real data."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .._arrays import as_rows, like
from ..errors import InvalidInputError


class _FitOnEither:
    """``Standardiser.fit(X)`` on the class makes an instance first; on an instance it is scikit-learn's ``fit``."""

    def __init__(self, method: Callable[..., Standardiser]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Standardiser | None, owner: type[Standardiser]) -> Callable[..., Standardiser]:
        return types.MethodType(self.method, owner() if instance is None else instance)


def _fit(self: Standardiser, X: Any, y: Any = None) -> Standardiser:
    """From rows X of shape (n, p); returns the fitted standardiser."""
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


class Standardiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """x -> (x - mean) / scale, fitted on training data so that the mean is zero and the mean of ||x||^2 is one.

    A scikit-learn transformer; ``Standardiser.fit(X)`` is short for ``Standardiser().fit(X)``.

    >>> import numpy as np
    >>> train, test = np.random.default_rng(0).normal(2.0, 3.0, (2, 40, 5))
    >>> fitted = Standardiser.fit(train)
    >>> round(float((fitted.transform(train) ** 2).sum(1).mean()), 12), fitted.transform(test).shape
    (1.0, (40, 5))
    """

    fit = _FitOnEither(_fit)

    @property
    def mean(self) -> Tensor:
        """The mean of the training rows."""
        return torch.from_numpy(self.mean_)

    @property
    def scale(self) -> float:
        """The root of their mean squared distance from it."""
        return self.scale_

    def transform(self, X: Any) -> Any:
        """The standardised rows, of the type and precision given."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like((rows - self.mean.to(rows.device, rows.dtype)) / self.scale_, X)

    def inverse_transform(self, X: Any) -> Any:
        """Back to the original coordinates."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like(rows * self.scale_ + self.mean.to(rows.device, rows.dtype), X)

    def _rows(self, X: Any, first: bool = False) -> Tensor:
        """Tensors are taken as they are, everything else is checked as scikit-learn does."""
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

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        if not hasattr(self, "scale_"):
            return "Standardiser()"
        return f"Standardiser(features={len(self.mean_)}, scale={self.scale_:.6g})"


def standardise(X: Any, *others: Any) -> Any:
    """X centred and scaled to mean ||x||^2 = 1; further arrays (test data) get the transformation fitted on X.

    >>> import numpy as np
    >>> train, test = standardise(np.eye(4), np.ones((2, 4)))
    >>> float(np.abs(train.mean(0)).max()) < 1e-15, test.shape
    (True, (2, 4))
    """
    fitted = Standardiser.fit(X)
    if not others:
        return fitted.transform(X)
    return tuple(fitted.transform(part) for part in (X, *others))
