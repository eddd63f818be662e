"""Ridge regression and classification with the exact kernels of deep equilibrium models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from ..errors import InvalidInputError
from .base import Array, KernelMachine
from .specification import as_tensor, seed_of, validated

_TYPES = [np.float64, np.float32]
_CALIBRATION = 2000  # rows on which probabilities are calibrated where leave-one-out is not at hand


def _streams(estimator: Any) -> bool:
    return estimator.method == "features"


class DEQRegressor(MultiOutputMixin, RegressorMixin, KernelMachine):
    """Kernel ridge regression with the exact kernel of a DEQ, of any size.

    Parameters
    ----------
    activation, sigma_a2, sigma_b2, sigma_c2 : the DEQ; ``sigma_b2=None`` is 1 - sigma_a2, ``sigma_c2`` the variance of
        biases
    kernel : ``"ntk"`` (all weights trained), ``"ck"`` (the readout alone) or ``"ntk_frozen"`` (input weights frozen)
    ridge : relative to the mean diagonal of the kernel; ``"loo"`` takes the one of a grid with the least leave-one-out
        error, from one eigendecomposition
    method : ``"kernel"``, exact; ``"equivalent"``, the high-dimensional equivalent of the centred network, which trains
        in O(n p min(n, p)) and predicts in O(p); ``"features"``, random features of the one-layer twin
    solver : of ``method="kernel"``: ``"cholesky"``, ``"eigh"``, ``"cg"`` (conjugate gradients on tiles), ``"auto"``
    preconditioner, rank, tol, tiles, store, folder, checkpoint : of ``"cg"``; see
        :func:`notsodeep.solve.solve_kernel`, where ``tiles`` is called ``dtype``
    own_norms : of ``method="equivalent"``: keep the norm of every row
    width : of ``method="features"``
    network : an ENN, a DEQ or a twin instead of the flat parameters; a twin brings its own kernel
    device : for the kernel and the solve, for instance ``"cuda"``
    client : a ``dask.distributed.Client``: kernel, tiles, sums over features and large predictions are computed by the
        workers of its cluster, with the same result; ``folder`` is then a folder of theirs. Clones share it, pickles
        go without

    Attributes
    ----------
    loo_ : the prediction of each training row from all others, in closed form
    ridge_, lift_ : the ridge, relative and absolute; ``record_`` says how the solve went

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = nsd.DEQRegressor("tanh", ridge="loo").fit(X, X[:, 0] ** 2)
    >>> model.predict(X[:2]).shape, model.loo_.shape
    ((2,), (60,))
    >>> nsd.DEQRegressor(ridge=0.01)
    DEQRegressor(ridge=0.01) [ridge relative to the mean diagonal]
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQRegressor:
        """Rows X, (n, p), and targets y, (n,) or (n, k)."""
        X, y = validated(self, X, y, dtype=_TYPES, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        self._fit(X, y.reshape(len(X), -1).astype(np.float64), sample_weight)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQRegressor:
        """More rows, for ``method="features"``; the model is the one that all rows seen so far would give at once.

        It is solved when something asks for it, not after every part.
        """
        first = getattr(self, "_stream", None) is None
        X, y = validated(self, X, y, dtype=_TYPES, multi_output=True, y_numeric=True, reset=first)
        self._flat = y.ndim == 1
        self._fit_more(X, y.reshape(len(X), -1).astype(np.float64), sample_weight)
        return self

    def predict(self, X: Any) -> Array:
        """Predictions at the rows of X."""
        return self._shape_outputs(self._outputs(self._rows(X)))

    def _shape_outputs(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values


class DEQClassifier(ClassifierMixin, KernelMachine):
    """One-against-rest ridge classification with the exact kernel of a DEQ; parameters as :class:`DEQRegressor`.

    Targets are +1 for the class and -1 for the others; two classes share one output. ``decision_function`` is what the
    regression predicts, ``predict`` the class with the largest one.

    ``predict_proba`` is softmax(t f) of the outputs f (of (-f, f) for two classes) with one temperature t, which
    maximises the likelihood of the leave-one-out predictions. Where those are not at hand (``solver="cg"``, or many
    rows), they are those of the same machine on 2,000 of the rows.

    Attributes
    ----------
    classes_, loo_ (leave-one-out values of ``decision_function``), ridge_, lift_, record_, temperature_

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = nsd.DEQClassifier("relu", kernel="ck").fit(X, np.where(X[:, 0] > 0, "right", "left"))
    >>> model.predict([[3.0, 0, 0, 0, 0]]), model.predict_proba(X).shape
    (array(['right'], dtype='<U5'), (60, 2))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQClassifier:
        """Rows X, (n, p), and labels y, (n,), numbers or strings."""
        X, y = validated(self, X, y, dtype=_TYPES)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y), return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInputError(
                f"a classifier needs at least two classes, got n_samples = {len(X)} of one class: "
                f"{self.classes_.tolist()}"
            )
        self._fit(X, self._targets(codes), sample_weight)
        self._calibrate(X, codes, sample_weight)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> DEQClassifier:
        """More rows, for ``method="features"``; the first call must name all ``classes``.

        After ``fit`` it begins anew, with the classes of then unless others are named.
        """
        first = getattr(self, "_stream", None) is None
        X, y = validated(self, X, y, dtype=_TYPES, reset=first)
        classes = getattr(self, "classes_", None) if classes is None else classes
        if first and classes is None:
            raise InvalidInputError("the first call of partial_fit must name all classes: classes=[...]")
        if first:
            self.classes_ = np.unique(classes)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InvalidInputError(f"labels {unknown.tolist()} are not among the classes {self.classes_.tolist()}")
        self._fit_more(X, self._targets(np.searchsorted(self.classes_, y)), sample_weight)
        return self

    def _settle(self) -> None:
        super()._settle()
        assert self._stream is not None
        assert self._fitted.leave_one_out is not None
        _, T, w = self._stream.seen
        codes = T.argmax(1) if T.shape[1] > 1 else (T[:, 0] > 0).long()
        self._fit_temperature(self._fitted.leave_one_out.cpu().numpy(), codes.cpu().numpy(), w.cpu().numpy())

    @property
    def temperature_(self) -> float:
        """The factor of the outputs under the softmax of ``predict_proba``."""
        self._fitted  # noqa: B018  # a stream may be waiting to be solved
        return self._temperature

    def decision_function(self, X: Any) -> Array:
        """The outputs, (n, classes), or (n,) for two classes: positive for the second."""
        return self._shape_outputs(self._outputs(self._rows(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row."""
        scores = self._scores(self._outputs(self._rows(X)))
        chosen: NDArray[Any] = self.classes_[scores.argmax(1)]
        return chosen

    def predict_proba(self, X: Any) -> Array:
        """softmax of ``temperature_`` times the outputs, (n, classes)."""
        scores = self._scores(self._outputs(self._rows(X)))
        found: Array = softmax(self.temperature_ * scores, axis=1)
        return found

    # -- inside --------------------------------------------------------------------------------------------
    def _targets(self, codes: NDArray[Any]) -> Array:
        if len(self.classes_) == 2:
            return (2.0 * codes - 1.0)[:, None]
        return 2.0 * np.eye(len(self.classes_))[codes] - 1.0

    def _shape_outputs(self, values: Array) -> Array:
        return values[:, 0] if values.shape[1] == 1 else values

    @staticmethod
    def _scores(values: Array) -> Array:
        """One column per class."""
        return np.hstack([-values, values]) if values.shape[1] == 1 else values

    def _calibrate(self, X: Array, codes: NDArray[Any], sample_weight: Any) -> None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        values = self._loo
        if values is None:
            few = np.random.default_rng(seed_of(self.random_state)).permutation(np.flatnonzero(weights))[:_CALIBRATION]
            X, codes, weights = X[few], codes[few], weights[few]
            rows, T, w = (as_tensor(part, self.device) for part in (X, self._targets(codes), weights))
            sample = self.__class__(**{**self.get_params(deep=False), "solver": "auto"})
            found = sample._machine(rows, T, w, self.ridge_).leave_one_out
            assert found is not None
            values = found.cpu().numpy()
        self._fit_temperature(values, codes, weights)

    def _fit_temperature(self, values: Array, codes: NDArray[Any], weights: Array) -> None:
        self._temperature = temperature(self._scores(values), codes, weights)


# ---- probabilities from decision values --------------------------------------------------------------------


_LARGEST = 6.0  # log of the largest temperature; where classes are separated the likelihood has no maximum


def temperature(scores: Array, codes: NDArray[np.int64], weights: Array) -> float:
    """The t > 0 that maximises the weighted likelihood of softmax(t scores); convex in t, hence one root to find.

    >>> round(temperature(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), np.array([0, 0, 1]), np.ones(3)), 6)
    0.693147
    """

    def slope(log_t: float) -> float:
        p = softmax(math.exp(log_t) * scores, axis=1)
        gained = scores[np.arange(len(codes)), codes] - (p * scores).sum(1)
        return float(weights @ gained)

    if slope(_LARGEST) >= 0.0:
        return math.exp(_LARGEST)
    if slope(-_LARGEST) <= 0.0:
        return math.exp(-_LARGEST)
    return math.exp(scipy.optimize.brentq(slope, -_LARGEST, _LARGEST, xtol=1e-13))
