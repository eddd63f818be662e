"""A data set in memory: rows and labels for training and for testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arrays import as_rows
from ..errors import DataError, InvalidInputError
from ..mixtures.standardise import Standardiser

__all__ = ["Dataset"]

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test rows, one sample per row, with labels 0 ... K-1.

    >>> import notsodeep as nsd
    >>> nsd.datasets.digits(classes=(6, 8)).standardised()
    Dataset('digits', train=277 x 64, test=78, classes=(6, 8), standardised)
    """

    name: str
    X_train: Rows
    y_train: Labels
    X_test: Rows
    y_test: Labels
    classes: tuple[int, ...]
    """The original names of the classes 0 ... K-1."""
    standardiser: Standardiser | None = None
    """What :meth:`standardised` fitted, on the training rows."""

    def __post_init__(self) -> None:
        for part, X, y in (("training", self.X_train, self.y_train), ("test", self.X_test, self.y_test)):
            try:
                rows = as_rows(X, f"the array of {part} rows", features=self.X_train.shape[-1])
            except InvalidInputError as error:
                raise DataError(f"{self.name}: {error}; fetch the file again") from None
            if y.shape != (len(rows),):
                raise DataError(f"{self.name}: {len(rows)} {part} rows and labels {y.shape} do not belong together")
            if y.min() < 0 or y.max() >= len(self.classes):
                raise DataError(f"{self.name}: the {part} labels are not all in 0 ... {len(self.classes) - 1}")

    @property
    def p(self) -> int:
        """The number of features."""
        return self.X_train.shape[1]

    def subset(self, classes: Sequence[int]) -> Dataset:
        """Only these classes, in this order: they become the labels 0, 1, ..."""
        chosen = tuple(int(c) for c in classes)
        unknown = [c for c in chosen if c not in self.classes]
        if unknown or not chosen or len(set(chosen)) != len(chosen):
            raise InvalidInputError(f"classes must be different ones of {self.classes}, got {tuple(classes)}")
        codes = np.full(len(self.classes), -1, dtype=np.int64)
        codes[[self.classes.index(c) for c in chosen]] = np.arange(len(chosen))
        train, test = codes[self.y_train], codes[self.y_test]
        return replace(
            self,
            X_train=self.X_train[train >= 0],
            y_train=train[train >= 0],
            X_test=self.X_test[test >= 0],
            y_test=test[test >= 0],
            classes=chosen,
        )

    def first(self, train: int) -> Dataset:
        """The first ``train`` training rows; the test rows stay."""
        if not 1 <= train <= len(self.X_train):
            raise InvalidInputError(f"{self.name} has {len(self.X_train)} training rows, {train} were asked for")
        return replace(self, X_train=self.X_train[:train], y_train=self.y_train[:train])

    def standardised(self) -> Dataset:
        """Centred and scaled so that the mean of ||x||^2 is one, by the statistics of the training rows alone."""
        fitted = Standardiser.fit(self.X_train)
        return replace(
            self,
            X_train=fitted.transform(self.X_train),
            X_test=fitted.transform(self.X_test),
            standardiser=fitted,
        )

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X_train, y_train, X_test, y_test for torch."""
        X, y, X_test, y_test = (
            torch.from_numpy(part).to(device) for part in (self.X_train, self.y_train, self.X_test, self.y_test)
        )
        return X, y, X_test, y_test

    def __repr__(self) -> str:
        sizes = f"train={len(self.X_train)} x {self.p}, test={len(self.X_test)}"
        done = ", standardised" if self.standardiser is not None else ""
        return f"Dataset({self.name!r}, {sizes}, classes={self.classes}{done})"
