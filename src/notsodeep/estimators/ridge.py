"""Ridge regression and classification with the exact kernels of deep equilibrium models.

The classes validate and store; :func:`fit_machine` computes.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from .._arguments import check_settings
from ..errors import InvalidInputError
from ..mixtures.standardise import Scale
from ..networks import Kernel
from ..solve import NetworkKernel
from ..solve.iterative import Solver
from ._limits import LIMITS
from .machine import Problem, fit_machine
from .specification import (
    FLOATS,
    Array,
    WithClient,
    all_or_nothing,
    as_tensor,
    network_of,
    scaler_of,
    validated,
    weights_of,
)


@dataclass(eq=False, repr=False)
class KernelMachine(WithClient, BaseEstimator):
    """Ridge regression in the space of a network's kernel: the common part of regressor and classifier."""

    activation: Any = "relu"
    _: KW_ONLY
    sigma_a2: float = 0.2
    sigma_b2: float | None = None
    sigma_c2: float = 0.0
    kernel: Kernel = "ntk"
    ridge: float | Literal["loo"] = 1e-3
    scale: Scale = "auto"
    fit_intercept: bool = True
    solver: Solver = "auto"
    network: Any = None
    device: Any = None
    client: Any = None
    progress: bool | None = None

    def _fit(self, X: Array, T: Array, weights: Array, flat: bool) -> None:
        """Fit to targets T, (n, k); a row of weight zero takes no part, and its prediction is its leave-one-out."""
        check_settings(self)
        if self.ridge != "loo" and not 0 < self.ridge < math.inf:
            raise InvalidInputError(
                f"ridge must be positive and finite, relative to the mean diagonal, got {self.ridge!r}"
            )
        self._check_client(self.device)
        weighted = weights > 0
        if not weighted.any():
            raise InvalidInputError("all sample weights are zero: there is nothing to fit")
        kernel, ridge = NetworkKernel(network_of(self), self.kernel), None if self.ridge == "loo" else float(self.ridge)
        rows, targets, w = (as_tensor(part[weighted], self.device).double() for part in (X, T, weights))
        self._scaler = scaler_of(self.scale, kernel.network).fit(rows, sample_weight=w)
        problem = Problem.of(self._scaler.transform(rows), targets, w, self.fit_intercept)
        self._machine = fit_machine(kernel, problem, ridge, self.solver, self.client, self.progress)
        self._flat = flat
        self._loo: Array | None = None
        if self._machine.leave_one_out is not None:
            self._loo = np.empty_like(T)
            self._loo[weighted] = self._machine.leave_one_out.cpu().numpy()
            if not weighted.all():
                self._loo[~weighted] = self._machine.predict(self._rows(X[~weighted])).cpu().numpy()

    def _rows(self, X: Array) -> Tensor:
        """Return rows on the device of the estimator, scaled as those of the fit."""
        scaled: Tensor = self._scaler.transform(as_tensor(X, self.device).double())
        return scaled

    @property
    def ridge_(self) -> float:
        """The ridge in use, relative to the mean diagonal."""
        return self._machine.ridge

    @property
    def absolute_ridge_(self) -> float:
        """The ridge in use, times the mean diagonal."""
        return self._machine.absolute_ridge

    @property
    def record_(self) -> dict[str, Any]:
        """How the system was solved: solver, steps, residual."""
        return self._machine.record

    @property
    def loo_(self) -> Array:
        """The prediction of each training row from all others, in closed form, of shape (n,) or (n, k)."""
        if not hasattr(self, "_machine"):
            raise AttributeError("loo_ is there after fit")
        if self._loo is None:
            raise AttributeError(
                f"leave-one-out predictions come from a factorisation; this fit has none ({self.record_}). Use "
                "solver='cholesky'"
            )
        return self._flattened(self._loo)

    def _outputs(self, X: Any) -> Array:
        """Return the k outputs at each row of X, (m, k)."""
        check_is_fitted(self)
        rows = validated(self, X, dtype=FLOATS, reset=False)
        return np.asarray(self._machine.predict(self._rows(rows), self.client).cpu())

    def _flattened(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_machine")


class DEQRegressor(MultiOutputMixin, RegressorMixin, KernelMachine):
    """Kernel ridge regression with the exact kernel of a DEQ, for any number of rows.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of the hidden weights, the input weights and the biases; ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ntk", "ck" or "ntk_frozen"
        What is trained: all weights, the readout alone, or all but the input weights.
    ridge : float or "loo"
        Relative to the mean diagonal of the kernel, or the best of a grid by its leave-one-out errors.
    scale : "auto", "columns", "rows" or None
        How rows are centred and scaled to mean squared norm one before the kernel, see :class:`Standardiser`; "auto"
        is its rule, but "rows" for a ConvDEQ and None for a twin, which was made for the norms of its rows.
    fit_intercept : bool
        Whether to centre the targets by their weighted mean, which is added to predictions.
    solver : "auto", "cholesky" or nsd.solve.CG
        ``"auto"`` is Cholesky up to 10,000 rows and conjugate gradients beyond.
    network : DEQ, ENN, ConvDEQ, ConvENN or Twin, optional
        Takes the place of the parameters of the DEQ; a twin brings its own kernel.
    device : str or torch.device, optional
    client : dask.distributed.Client, optional
        Its workers compute the kernel and large predictions; clones share it, pickles go without it.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Attributes
    ----------
    loo_ : array of shape (n,) or (n, k)
        The prediction of each training row from all others, in closed form.
    ridge_, absolute_ridge_, record_
        The ridge, relative to the mean diagonal and times it, and how the system was solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = nsd.DEQRegressor("tanh", ridge="loo").fit(X, X[:, 0] ** 2)
    >>> model.predict(X[:2]).shape, model.loo_.shape
    ((2,), (60,))
    """

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQRegressor:
        """Fit to rows X, (n, p), and targets y, (n,) or (n, k); a row of weight 2 counts as two rows."""
        X, y = validated(self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True)
        weights = weights_of(sample_weight, X)
        self._fit(X, y.reshape(len(X), -1).astype(np.float64), weights, flat=y.ndim == 1)
        return self

    def predict(self, X: Any) -> Array:
        """Predict at rows X, (m, p): an array of shape (m,) or (m, k)."""
        return self._flattened(self._outputs(X))


class DEQClassifier(ClassifierMixin, KernelMachine):
    """One-against-rest ridge classification with the exact kernel of a DEQ.

    Targets are +1 for the class and -1 for the others; two classes share one output. ``decision_function`` returns what
    the regression predicts, ``predict`` the class with the largest output. ``predict_proba`` is softmax(t f) of the
    outputs f, or of (-f, f) for two classes, with the one temperature t that maximises the likelihood of the
    leave-one-out predictions; after conjugate gradients these come from a Cholesky fit of at most 2,000 rows.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of the hidden weights, the input weights and the biases; ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ntk", "ck" or "ntk_frozen"
        What is trained: all weights, the readout alone, or all but the input weights.
    ridge : float or "loo"
        Relative to the mean diagonal of the kernel, or the best of a grid by its leave-one-out errors.
    scale : "auto", "columns", "rows" or None
        How rows are centred and scaled to mean squared norm one before the kernel, see :class:`Standardiser`; "auto"
        is its rule, but "rows" for a ConvDEQ and None for a twin, which was made for the norms of its rows.
    fit_intercept : bool
        Whether to centre the targets by their weighted mean, which is added to predictions.
    solver : "auto", "cholesky" or nsd.solve.CG
        ``"auto"`` is Cholesky up to 10,000 rows and conjugate gradients beyond.
    network : DEQ, ENN, ConvDEQ, ConvENN or Twin, optional
        Takes the place of the parameters of the DEQ; a twin brings its own kernel.
    device : str or torch.device, optional
    client : dask.distributed.Client, optional
        Its workers compute the kernel and large predictions; clones share it, pickles go without it.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Attributes
    ----------
    classes_ : array of shape (classes,)
    loo_ : array of shape (n,) or (n, classes)
        The leave-one-out values of ``decision_function`` at the training rows.
    temperature_ : float
        The factor of the outputs in ``predict_proba``.
    ridge_, absolute_ridge_, record_
        The ridge, relative to the mean diagonal and times it, and how the system was solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = nsd.DEQClassifier("relu", kernel="ck").fit(X, np.where(X[:, 0] > 0, "right", "left"))
    >>> model.predict([[3.0, 0, 0, 0, 0]]), model.predict_proba(X).shape
    (array(['right'], dtype='<U5'), (60, 2))
    """

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQClassifier:
        """Fit to rows X, (n, p), and labels y, (n,), of at least two classes; a row of weight 2 counts as two rows."""
        X, y = validated(self, X, y, dtype=FLOATS)
        check_classification_targets(y)
        weights = weights_of(sample_weight, X)
        self.classes_, codes = np.unique(column_or_1d(y), return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInputError(
                f"a classifier needs at least two classes, got n_samples = {len(X)} of one class: "
                f"{self.classes_.tolist()}"
            )
        two = len(self.classes_) == 2
        T = (2.0 * (codes[:, None] if two else np.eye(len(self.classes_))[codes]) - 1.0).astype(np.float64)
        self._fit(X, T, weights, flat=two)
        self.temperature_ = self._calibrated(X, T, codes, weights)
        return self

    def decision_function(self, X: Any) -> Array:
        """Compute the outputs at rows X, (m, p): (m, classes), or (m,) for two classes, positive for the second."""
        return self._flattened(self._outputs(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each row of X, (m, p)."""
        best = _scores(self._outputs(X)).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class at rows X, (m, p): an array of shape (m, classes)."""
        scores = _scores(self._outputs(X))
        return np.asarray(softmax(self.temperature_ * scores, axis=1))

    def _calibrated(self, X: Array, T: Array, codes: NDArray[Any], weights: Array) -> float:
        """Return the temperature of the leave-one-out values, of a part of the rows after conjugate gradients."""
        if self._loo is not None:
            return temperature(_scores(self._loo), codes, weights)
        few = np.random.default_rng(0).permutation(np.flatnonzero(weights))[: LIMITS.calibration_rows]
        targets, w = (as_tensor(part[few], self.device) for part in (T, weights))
        problem = Problem.of(self._rows(X[few]), targets, w, self.fit_intercept)
        found = fit_machine(self._machine.kernel, problem, self.ridge_, "cholesky").leave_one_out
        assert found is not None
        return temperature(_scores(found.cpu().numpy()), codes[few], weights[few])


# ---- probabilities from decision values --------------------------------------------------------------------


def _scores(values: Array) -> Array:
    """Return one column for each class."""
    return np.hstack([-values, values]) if values.shape[1] == 1 else values


def temperature(scores: Array, codes: NDArray[np.int64], weights: Array) -> float:
    """Return the t > 0 that maximises the weighted likelihood of softmax(t scores), which is concave in t.

    >>> round(temperature(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), np.array([0, 0, 1]), np.ones(3)), 6)
    0.693147
    """
    end = LIMITS.log_temperature

    def slope(log_t: float) -> float:
        p = softmax(math.exp(log_t) * scores, axis=1)
        gained = scores[np.arange(len(codes)), codes] - (p * scores).sum(1)
        return float(weights @ gained)

    if slope(end) >= 0.0:
        return math.exp(end)
    if slope(-end) <= 0.0:
        return math.exp(-end)
    return math.exp(scipy.optimize.brentq(slope, -end, end, xtol=1e-13))
