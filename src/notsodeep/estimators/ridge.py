"""Ridge regression and classification with the exact kernels of deep equilibrium models.

The classes validate and store; :func:`fit_machine` computes.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, is_classifier
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import resample
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from .._arguments import check_settings, checked
from ..errors import InvalidInputError
from ..networks import Kernel
from ..solve import NetworkKernel
from ._limits import LIMITS
from .features import Wanted, learn_features
from .machine import Problem, Solver, fit_machine
from .selection import ACTIVATIONS, Choice, Search, loss_of
from .specification import (
    FLOATS,
    Array,
    KernelEstimator,
    all_or_nothing,
    as_tensor,
    network_of,
    sample_of,
    scales_of,
    validated,
    weights_of,
)
from .standardise import Scale, Standardiser

Chosen = float | Literal["loo"]


@dataclass(eq=False, repr=False)
class KernelMachine(KernelEstimator, BaseEstimator):
    """Ridge regression in the space of a network's kernel: the common part of regressor and classifier."""

    activation: Any = "loo"
    _: KW_ONLY
    sigma_a2: float | Literal["auto"] = "auto"
    sigma_b2: Chosen | None = "loo"
    sigma_c2: Chosen = "loo"
    kernel: Kernel = "ntk"
    ridge: Chosen = "loo"
    scale: Scale = "auto"
    fit_intercept: bool = True
    features: Wanted = None
    solver: Solver = "auto"
    network: Any = None
    device: Any = None
    client: Any = None
    progress: bool | None = None

    def _fit(self, X: Array, T: Array, weights: Array, flat: bool, codes: NDArray[Any] | None = None) -> None:
        """Fit to targets T, (n, k); a row of weight zero takes no part, and its prediction is its leave-one-out."""
        check_settings(self)
        if self.ridge != "loo" and not 0 < self.ridge < math.inf:
            raise InvalidInputError(
                f"ridge must be positive and finite, relative to the mean diagonal, got {self.ridge!r}"
            )
        self._check_client()
        self.best_: dict[str, Any] = {}
        self._kept = np.flatnonzero(weights)
        if not len(self._kept):
            raise InvalidInputError("all sample weights are zero: there is nothing to fit")
        few = LIMITS.calibration_rows
        if len(self._kept) > few:  # the last rows get leave-one-out predictions, and are a sample for selection
            classes = None if codes is None else codes[self._kept]
            sample = resample(self._kept, replace=False, n_samples=few, stratify=classes, random_state=0)
            self._kept = np.append(np.setdiff1d(self._kept, sample), sample)
        kept, labels = self._kept, None if codes is None else as_tensor(codes[self._kept], self.device)
        rows, targets, w = (as_tensor(part[kept], self.device).double() for part in (X, T, weights))
        choice = self._choose(rows, targets, w, labels)
        self.scaler_ = Standardiser(choice.scale).fit(rows, sample_weight=w)
        kernel = NetworkKernel(choice.network, self.kernel)
        self._problem = Problem.of(self.scaler_.scaled(rows), targets, w, self.fit_intercept)
        ridge = None if self.ridge == "loo" else float(self.ridge)
        self._features = None
        if self.features is not None:
            self._features, record = learn_features(kernel, self._problem, labels, ridge, self.features)
            self._problem, self.best_ = self._problem.seen(self._features), self.best_ | record
        self._flat, self._shape = flat, T.shape
        smaller, last = self._smaller(), min(few, len(kept))
        tail = loss_of(self._problem.at(slice(-last, None)), None if labels is None else labels[-last:])
        wanted = last if smaller or is_classifier(self) else 0  # a classifier is calibrated by them
        options = (self.solver, self.client, self.progress, wanted, smaller, tail)
        self._machine = machine = fit_machine(kernel, self._problem, self.best_["ridge"], *options)
        self.record_, self.ridge_, self.absolute_ridge_ = machine.record, machine.ridge, machine.absolute_ridge
        self.best_["ridge"] = self.ridge_
        self._unweighted = X[weights == 0]

    def _smaller(self) -> tuple[float, ...]:
        """Return ridges that are tried on all rows, where that of a small sample of them was chosen."""
        small = self.ridge == "loo" and len(self._kept) > 4 * self.best_["rows"]
        return tuple(self.best_["ridge"] * factor for factor in LIMITS.corrections) if small else ()

    def _choose(self, rows: Tensor, targets: Tensor, weights: Tensor, codes: Tensor | None) -> Choice:
        """Choose what is "loo", and the scale with it, on a sample of the rows; keep the rest as given."""
        open_activation = self.network is None and isinstance(self.activation, str) and self.activation == "loo"
        networks = [network_of(self, phi) for phi in (ACTIVATIONS if open_activation else (None,))]
        ridge = None if self.ridge == "loo" else float(self.ridge)
        free = [name for name in ("sigma_b2", "sigma_c2") if self.network is None and getattr(self, name) == "loo"]
        scales = scales_of(self.scale, networks[0])
        if ridge is not None and not free and not open_activation:
            self.best_ = {"ridge": ridge}
            return Choice("auto" if len(scales) > 1 else scales[0], networks[0])
        scalers = {scale: Standardiser(scale).fit(rows, sample_weight=weights) for scale in scales}
        sample = sample_of(len(rows), *LIMITS.selection_rows).to(rows.device)
        parts = (targets[sample], weights[sample], self.fit_intercept)
        problems = {scale: Problem.of(scaler.scaled(rows[sample]), *parts) for scale, scaler in scalers.items()}
        search = Search(self.kernel, problems, None if codes is None else codes[sample], ridge, free)
        choice, self.best_ = search.run([Choice(scale, one) for one in networks for scale in scales], len(rows))
        return choice

    @property
    def loo_(self) -> Array:
        """Leave-one-out predictions, (n,) or (n, k), at the cost of a second fit when first asked for."""
        if not hasattr(self, "_problem"):
            raise AttributeError("loo_ is there after fit")
        machine, n, problem = self._machine, len(self._kept), self._problem
        if self.record_["solver"] == "cg":
            raise AttributeError(
                f"leave-one-out predictions come from a factorisation; this fit has none ({self.record_}). Use "
                "solver='cholesky'"
            )
        if machine.leave_one_out is None or len(machine.leave_one_out) < n:
            whole = fit_machine(machine.kernel, problem, self.ridge_, "cholesky", self.client, self.progress, n)
            assert whole.leave_one_out is not None
            left_out = whole.leave_one_out + machine.mean - problem.mean
            self._machine = machine = dataclasses.replace(machine, leave_one_out=left_out)
        out = np.empty(self._shape)
        out[self._kept] = np.asarray(machine.leave_one_out.cpu())  # type: ignore[union-attr]
        if len(self._unweighted):
            out[np.setdiff1d(np.arange(len(out)), self._kept)] = self._outputs(self._unweighted)
        return self._flattened(out)

    def _outputs(self, X: Any) -> Array:
        """Return the k outputs at each row of X, (m, k)."""
        rows = self._seen(X, accept_sparse="csr")
        return np.asarray(self._machine.predict(rows, self.client).cpu())

    def _flattened(self, values: Array) -> Array:
        return values[:, 0] if self._flat else values

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_machine")

    def __dir__(self) -> list[str]:
        """Leave out ``loo_`` where it is costly: tools that show an object read all of its attributes."""
        left_out = getattr(getattr(self, "_machine", None), "leave_one_out", None)
        there = left_out is not None and len(left_out) == len(self._kept)
        return [name for name in object.__dir__(self) if (name != "loo_" or there) and hasattr(self, name)]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn writes it; a fitted machine adds, as a comment, what was done and chosen."""
        text: str = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "_machine"):
            return text
        rows = f"{self.scaler_.chosen_} scaled" if self.scaler_.chosen_ else "rows as given"
        names = [name for name in ("ridge", "sigma_b2", "sigma_c2") if name in self.best_]
        learned = f"{self.best_['features']} features" if "features" in self.best_ else ""
        chosen = [learned, self.best_.get("activation", ""), *(f"{name}={self.best_[name]:.3g}" for name in names)]
        return text + f"  # fitted: {rows}, " + ", ".join(filter(None, chosen))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class DEQRegressor(MultiOutputMixin, RegressorMixin, KernelMachine):
    """Kernel ridge regression with the exact kernel of a DEQ, for any number of rows.

    Parameters
    ----------
    activation : str, Activation or "loo"
        ``"loo"`` chooses between "relu" and "sin".
    sigma_a2 : float or "auto"
        Variance of the hidden weights; "auto" is 0.2 or, if that is smaller, 0.8 of the activation's limit.
    sigma_b2, sigma_c2 : float or "loo"
        Variances of the input weights and of the biases; ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ntk", "ck" or "ntk_frozen"
        What is trained: all weights, the readout alone, or all but the input weights.
    ridge : float or "loo"
        Relative to the mean diagonal of the kernel. What is "loo" is chosen together by exact leave-one-out errors
        (squared): many kernels on 300 rows, the best on at most 1,000. For more rows the ridge is smaller, by a power
        of their number, and a factorisation of all rows tries a quarter of it where the sample was a small part.
    scale : "auto", "columns", "rows" or None
        How rows are centred and scaled to mean squared norm one (:class:`Standardiser`). "auto" is chosen by
        leave-one-out, or by the rule of the Standardiser if nothing else has to be chosen. It is "rows" for a ConvDEQ
        and None for a twin, which was designed for the norms of its rows.
    fit_intercept : bool
        Whether to centre the targets by their weighted mean, which is added to predictions.
    features : "auto", "diagonal", "full" or None
        Whether the machine learns which columns, or which directions, matter: it is fitted, its rows are multiplied by
        the root of M, the mean outer product of its gradients, and it is fitted again, in at most eight rounds.
        ``"auto"`` takes the kind and the rounds with the least error on rows that M did not see, if it is lower by more
        than a standard error than without. A fit takes three to ten times as long on most tables.
    solver : "auto", "cholesky" or nsd.solve.CG
        ``"auto"`` is Cholesky up to 10,000 rows. Beyond, it is the method that a timed matrix product predicts to be
        faster, if the matrix fits into memory; ``record_`` and the logger "notsodeep" give the reason.
    network : DEQ, ENN, ConvDEQ, ConvENN, Twin or nn.Module, optional
        Takes the place of the parameters of the DEQ; a twin brings its own kernel, and a torch module that takes rows
        its empirical kernel, "ntk" or "ck", as it is at ``fit``.
    device : str or torch.device, optional
    client : dask.distributed.Client, optional
        Its workers compute the kernel and large predictions.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Attributes
    ----------
    loo_ : array of shape (n,) or (n, k)
        The leave-one-out prediction of each training row, in closed form; learned features have seen all rows.
    features_ : array of shape (p, p), or None
        M of the scaled rows, of trace p; ``nsd.plots.FeaturesDisplay`` draws it.
    best_ : dict
        What was chosen, its leave-one-out error, the number of rows and kernels it was found with, and the runners-up.
    ridge_, absolute_ridge_, record_, scaler_
        The relative ridge, the ridge times the mean diagonal, how the system was solved, and the scaling of rows.

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
        X, y = validated(self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True, accept_sparse="csr")
        weights = weights_of(sample_weight, X)
        self._fit(X, y.reshape(len(X), -1), weights, flat=y.ndim == 1)
        return self

    def predict(self, X: Any) -> Array:
        """Predict at rows X, (m, p): an array of shape (m,) or (m, k)."""
        return self._flattened(self._outputs(X))


@dataclass(eq=False, repr=False)
class DEQClassifier(ClassifierMixin, KernelMachine):
    """One-against-rest ridge classification with the exact kernel of a DEQ.

    Targets are +1 for the class and -1 for the others; two classes share one output. ``decision_function`` returns what
    the regression predicts, ``predict`` the class with the largest output. ``predict_proba`` is softmax(t f) of the
    outputs f, or of (-f, f) for two classes. The temperature t, and with an intercept a shift of the outputs, maximise
    the likelihood of leave-one-out predictions of at most 1,000 rows.

    Parameters
    ----------
    activation, sigma_a2, sigma_b2, sigma_c2, kernel, ridge, scale, fit_intercept, features
        Options of :class:`DEQRegressor`; the errors are log-losses.
    solver, network, device, client, progress
        Options of :class:`DEQRegressor`.
    class_weight : dict, "balanced" or None
        Factors of the weights of rows, by class; they are divided by the largest.

    Attributes
    ----------
    classes_ : array of shape (classes,)
    loo_ : array of shape (n,) or (n, classes)
        The leave-one-out values of ``decision_function`` at the training rows.
    temperature_ : float, or array of shape (labels,)
        The factor of the outputs in ``predict_proba``.
    features_, best_, ridge_, absolute_ridge_, record_, scaler_
        Attributes of :class:`DEQRegressor`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 5))
    >>> model = nsd.DEQClassifier("relu", kernel="ck").fit(X, np.where(X[:, 0] > 0, "right", "left"))
    >>> model.predict([[3.0, 0, 0, 0, 0]]), model.predict_proba(X).shape
    (array(['right'], dtype='<U5'), (60, 2))
    """

    class_weight: Any = field(default=None, kw_only=True)

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DEQClassifier:
        """Fit to rows X, (n, p), and labels y, (n,), of at least two classes; a row of weight 2 counts as two rows.

        An indicator matrix y, (n, labels), of zeros and ones gives every row any number of labels.
        """
        X, y = validated(self, X, y, dtype=FLOATS, multi_output=True, accept_sparse="csr")
        if type_of_target(y) == "multiclass-multioutput":
            raise InvalidInputError(
                "labels are one column, or an indicator matrix; for more take MultiOutputClassifier"
            )
        weights = weights_of(sample_weight, X) * self._class_weights(y)
        self._multilabel = type_of_target(y) == "multilabel-indicator"
        y = y if self._multilabel else column_or_1d(y, warn=True)
        signs = LabelBinarizer(neg_label=-1).fit(y)
        self.classes_ = signs.classes_
        if len(self.classes_) < 2 and not self._multilabel:
            raise InvalidInputError(
                f"a classifier needs at least two classes, got n_samples = {len(y)} of one class: "
                f"{self.classes_.tolist()}"
            )
        T, codes = (
            signs.transform(y).astype(np.float64),
            None if self._multilabel else np.searchsorted(signs.classes_, y),
        )
        self._fit(X, T, weights, flat=T.shape[1] == 1, codes=codes)
        self._calibrate()
        return self

    def _class_weights(self, y: Any) -> Array:
        """Return the factor of each row, at most 1, so that leave-one-out leaves out the whole row."""
        if self.class_weight is None:
            return np.ones(len(y))
        try:
            factors = np.asarray(compute_sample_weight(self.class_weight, y), dtype=np.float64)
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidInputError(f"class_weight must be 'balanced' or a weight for each class: {error}") from None
        if not (np.isfinite(factors).all() and (factors >= 0).all() and factors.any()):
            raise InvalidInputError("class weights must be finite, not negative and not all zero")
        return np.asarray(factors / factors.max())

    def decision_function(self, X: Any) -> Array:
        """Compute the outputs at rows X, (m, p): (m, classes), or (m,) for two classes, positive for the second."""
        return self._flattened(self._outputs(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each row of X, (m, p), or the labels of each row, (m, labels)."""
        outputs = self._outputs(X)
        return (outputs > 0).astype(np.int64) if self._multilabel else self.classes_[_scores(outputs).argmax(1)]

    @checked
    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class, or of each label by itself, at rows X, (m, p): (m, classes)."""
        outputs = self._outputs(X)
        if self._multilabel:
            return np.asarray(expit(2.0 * self.temperature_ * outputs))
        return np.asarray(softmax(self.temperature_ * _scores(outputs), axis=1))

    def _calibrate(self) -> None:
        """Find temperature and bias from leave-one-out outputs, of a part of the rows after conjugate gradients."""
        machine, few = self._machine, min(LIMITS.calibration_rows, len(self._kept))
        left_out, problem = machine.leave_one_out, self._problem
        if left_out is None:
            part = problem.at(slice(-few, None))
            left_out = fit_machine(machine.kernel, part, self.ridge_, "cholesky", last=few).leave_one_out
        assert left_out is not None
        values, signs = left_out.cpu().numpy(), (problem.targets + problem.mean)[-few:].cpu().numpy()
        w = problem.weights[-few:].cpu().numpy()
        self.temperature_: Any
        if self._multilabel:
            labels = zip(values.T[..., None], (signs.T > 0).astype(int), strict=True)
            each = [calibrate(v, code, w, self.fit_intercept) for v, code in labels]
            self.temperature_, bias = np.array([t for t, _ in each]), np.concatenate([b for _, b in each])
        else:
            self.temperature_, bias = calibrate(values, _scores(signs).argmax(1), w, self.fit_intercept)
        shift = torch.as_tensor(bias).to(machine.mean)
        shifted = None if machine.leave_one_out is None else machine.leave_one_out + shift
        self._machine = dataclasses.replace(machine, mean=machine.mean + shift, leave_one_out=shifted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _scores(values: Array) -> Array:
    """Return one column for each class."""
    return np.hstack([-values, values]) if values.shape[1] == 1 else values


@checked
def calibrate(values: Array, codes: NDArray[Any], weights: Array, biased: bool) -> tuple[float, Array]:
    """Return t > 0 and the shift b, (k,), with the largest likelihood of softmax(t (scores + b)); b is zero on demand.

    The likelihood is concave in t and t b. As Platt proposed, a class of N rows counts as N + 1 of its own and one
    among the others, without which separated classes would have no maximum.

    >>> t, b = calibrate(np.array([[1.0], [1.0], [-1.0]]), np.array([1, 0, 0]), np.ones(3), False)
    >>> round(t, 4), b
    (0.1116, array([0.]))
    """
    scores, total = _scores(values), float(weights.sum())
    k = scores.shape[1]
    counts = np.bincount(codes, weights, minlength=k)[codes][:, None]
    aim = np.where(np.eye(k)[codes] > 0, counts + 1.0, 1.0 / (k - 1)) / (counts + 2.0)
    shares, free = weights[:, None] / total, np.append(1.0, np.full(k, biased))
    aims = np.append((shares * aim * scores).sum(), (shares * aim).sum(0))

    def loss(theta: Array) -> tuple[float, Array]:
        logits = theta[0] * scores + theta[1:]
        log_p = log_softmax(logits, axis=1)
        p = shares * np.exp(log_p)
        along = np.append((p * scores).sum(), p.sum(0)) - aims
        return float(shares[:, 0] @ (logits - log_p)[:, 0] - aims @ theta), along * free

    bounds = [(1e-3, None)] + [(None, None)] * k  # t = 0 where the outputs tell nothing
    theta = scipy.optimize.minimize(loss, np.append(1.0, np.zeros(k)), jac=True, bounds=bounds, method="L-BFGS-B").x
    shift = (theta[1:] - theta[1:].mean()) / theta[0]
    return float(theta[0]), shift[1:] if values.shape[1] == 1 else shift
