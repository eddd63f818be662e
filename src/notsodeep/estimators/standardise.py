"""Centring and scaling to mean squared norm one: with one number, as the papers prepare images, or column by column."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .._arguments import check_settings
from .._arrays import as_numbers, as_rows, like
from ..errors import InvalidInputError

Scale = Literal["auto", "columns", "rows"] | None


class Standardiser(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map x to (x - mean) / scale, so that training data has mean zero and mean squared norm one.

    A scikit-learn transformer, which the estimators of this package also use inside.

    Parameters
    ----------
    scale : "rows", "columns", "auto" or None
        One number divides all rows, or every column is divided by its own deviation (times the root of the number of
        columns that vary). ``"auto"`` is "columns" for fewer than 200 columns, and where less than a tenth of the
        columns have nearly all of the variance, as columns in different units do; else it is "rows", as for images.
        None changes nothing.

    Attributes
    ----------
    mean_ : array of shape (p,)
        Mean of the training rows.
    scale_ : float, or array of shape (p,)
        What is divided by; a column that is constant is divided by 1.
    chosen_ : "rows", "columns" or None
        What was done.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = np.random.default_rng(0).normal(2.0, 3.0, (2, 40, 5))
    >>> fitted = Standardiser().fit(train)
    >>> round(float((fitted.transform(train) ** 2).sum(1).mean()), 12), fitted.transform(test).shape
    (1.0, (40, 5))
    """

    def __init__(self, scale: Scale = "rows") -> None:
        self.scale = scale

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Standardiser:
        """Find mean and scale of the rows X, (n, p), one of weight 2 counting as two; ``y`` is ignored."""
        check_settings(self)
        rows = self._rows(X, first=True)
        weights = _weights(sample_weight, rows)
        if self.scale is None:
            return self._set(np.zeros(rows.shape[1]), 1.0, None)
        total = float(weights.sum())
        # sums in chunks: no second copy of the data, and what is read twice is in a cache
        size = max(1, (1 << 18) // rows.shape[1])
        parts = list(zip(rows.split(size), weights.split(size), strict=True))
        mean = torch.stack([w @ part.to(w) for part, w in parts]).sum(0) / total
        ends = torch.stack([end for part, _ in parts for end in torch.aminmax(part - mean)])
        unit = float(ends.abs().max())  # so that no square over- or underflows
        if not math.isfinite(unit):
            raise InvalidInputError("sums of these numbers are beyond the range of float64; scale the data down")
        squares = (w @ (part - mean).div_(unit or 1.0).square_() for part, w in parts)
        variances = torch.stack(list(squares)).sum(0) / total
        varying = variances > (len(rows) * torch.finfo(torch.float64).eps * mean / (unit or 1.0)) ** 2  # not rounding
        if not bool(varying.any()):
            raise InvalidInputError(
                f"all rows are equal (n_samples = {len(rows)}): the data cannot be scaled to mean squared norm one"
            )
        chosen = _chosen(variances) if self.scale == "auto" else self.scale
        scale: Any = unit * float(variances.sum()) ** 0.5
        if chosen == "columns":
            scale = torch.where(varying, unit * (variances * varying.sum()).sqrt(), 1.0).cpu().numpy()
        return self._set(mean.cpu().numpy(), scale, chosen)

    def _set(self, mean: Any, scale: Any, chosen: Scale) -> Standardiser:
        self.mean_, self.scale_, self.chosen_ = mean, scale, chosen
        return self

    def transform(self, X: Any) -> Any:
        """Standardise rows, (n, p); the result has their type and precision."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like(rows.clone() if self.chosen_ is None else self.scaled(rows), X)

    def scaled(self, rows: Tensor) -> Tensor:
        """Standardise rows that were validated; where nothing is to be changed, they are returned themselves."""
        if self.chosen_ is None:
            return rows
        return (rows - self._as(self.mean_, rows)).div_(self._as(self.scale_, rows))

    def inverse_transform(self, X: Any) -> Any:
        """Return standardised rows, (n, p), to the original coordinates."""
        check_is_fitted(self)
        rows = self._rows(X)
        return like(rows * self._as(self.scale_, rows) + self._as(self.mean_, rows), X)

    @staticmethod
    def _as(value: Any, rows: Tensor) -> Tensor:
        return torch.as_tensor(value, dtype=rows.dtype, device=rows.device)

    def _rows(self, X: Any, first: bool = False) -> Tensor:
        """Take tensors as they are; scikit-learn checks everything else."""
        if not isinstance(X, Tensor):
            refuse_dates(X)
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


def refuse_dates(data: Any) -> None:
    """Refuse dates, of which scikit-learn makes large integers, also of a missing one, and categories in frames."""
    kinds = data.dtypes if hasattr(data, "columns") else [getattr(data, "dtype", None)]
    names = [str(kind).lower() for kind in kinds]
    if "category" in names and hasattr(data, "columns"):
        raise InvalidInputError("X has columns of categories; encode them first, with sklearn's OneHotEncoder")
    if any(name.startswith(("date", "time", "duration")) for name in names):
        raise InvalidInputError("dates and durations are no numbers; give, for instance, the days since a first date")


def _weights(sample_weight: Any, rows: Tensor) -> Tensor:
    if sample_weight is None:
        return torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    weights = as_numbers(sample_weight, "sample_weight").to(rows.device, torch.float64)
    if weights.shape != (len(rows),) or not bool((weights >= 0).all()) or not 0 < float(weights.sum()) < math.inf:
        raise InvalidInputError(f"sample_weight must be {len(rows)} numbers that are not negative and not all zero")
    return weights


def _chosen(variances: Tensor) -> Scale:
    """Return what "auto" means: sum(v)^2 / sum(v^2) is the number of columns that have the variance between them."""
    shares = variances / variances.max()
    few = float(shares.sum() ** 2 / (shares**2).sum()) < 0.1 * len(shares)
    return "columns" if len(variances) < 200 or few else "rows"


def standardise(X: Any, *others: Any) -> Any:
    """Centre X and scale it to mean squared norm one.

    Parameters
    ----------
    X, *others : arrays of shape (n, p) and (m, p)
        Training rows, NumPy or torch, and test rows, which get the transformation fitted on X.

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
    return tuple(fitted.transform(part) for part in (X, *others)) if others else fitted.transform(X)
