"""The kernel of a DEQ for scikit-learn's own machines: as a covariance function, and as random features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.gaussian_process.kernels import Hyperparameter
from sklearn.gaussian_process.kernels import Kernel as CovarianceKernel
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import KINDS, check_settings, checked, positive_int
from .._arrays import as_numbers, as_rows, check_range, squared_norms
from .._words import Init
from ..errors import InvalidInputError, warn
from ..kernels import kernels_of
from ..matching import Twin, match_one_layer
from ..networks import DEQ, Kernel, check_kernel, is_tangent
from ..nn import ENN as Network
from ..nn.model import in_batches
from ..solve import NetworkKernel
from ..solve.network import Source
from ._limits import LIMITS
from .specification import (
    FLOATS,
    VARIANCES,
    Array,
    Cloned,
    all_or_nothing,
    as_tensor,
    flattened,
    network_of,
    seed_of,
    validated,
)


@dataclass(eq=False, repr=False)
class DEQKernel(CovarianceKernel):
    """The kernel k(X, Y) of a DEQ as a scikit-learn kernel, with hyper-parameters and gradients.

    It works in ``GaussianProcessRegressor(kernel=...)``, also added to and multiplied with other kernels, and as a fast
    callable in ``SVC(kernel=...)`` and ``KernelRidge(kernel=...)``: one call gives a whole matrix.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of the hidden weights, the input weights and the biases; ``sigma_b2=None`` is 1 - sigma_a2. A
        variance that is None or zero is not a hyper-parameter.
    kernel : "ck", "ntk" or "ntk_frozen"
    network : DEQ, ENN, ConvDEQ, ConvENN or Twin, optional
        Takes the place of the parameters above; it has no hyper-parameters.
    sigma_a2_bounds, sigma_b2_bounds, sigma_c2_bounds : pair of float, or "fixed"
        The default keeps sigma_a2 below 1/4, the limit of a 1-Lipschitz activation.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from sklearn.svm import SVC
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> SVC(kernel=nsd.DEQKernel("tanh")).fit(X, X[:, 0] > 0).score(X, X[:, 0] > 0) > 0.9
    True
    >>> nsd.DEQKernel("relu", sigma_a2=0.1)
    DEQKernel('relu', sigma_a2=0.1, kernel='ck')
    """

    activation: Any = "relu"
    sigma_a2: float = 0.2
    sigma_b2: float | None = None
    sigma_c2: float = 0.0
    kernel: Kernel = "ck"
    network: Any = None
    sigma_a2_bounds: Any = (1e-5, 0.24)
    sigma_b2_bounds: Any = (1e-5, 1e5)
    sigma_c2_bounds: Any = (1e-5, 1e5)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, tensors among the variances as numbers: scikit-learn takes logarithms of them."""
        given, number = super().get_params(deep), KINDS[float]
        tensors = {name: v for name, v in given.items() if name in VARIANCES and isinstance(v, Tensor)}
        return {**given, **{name: number.convert(v) for name, v in tensors.items() if number.test(v)}}

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The variances that are free to be fitted."""
        if self.network is not None:
            return []
        check_settings(self)
        free = [name for name in VARIANCES if (getattr(self, name) or 0.0) > 0.0]
        try:
            return [Hyperparameter(name, "numeric", getattr(self, f"{name}_bounds")) for name in free]
        except (TypeError, ValueError, RuntimeError) as error:  # as arrays are refused, and tensors with gradients
            raise InvalidInputError(f"bounds of {', '.join(free)} must be pairs or 'fixed': {error}") from None

    @checked
    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """Return the matrix, (n, m), and with ``eval_gradient`` its derivatives by the logarithms of free variances."""
        if eval_gradient and Y is not None:
            raise InvalidInputError("gradients are for the matrix of X with itself; leave Y out")
        x, y = self._rows(X), None if Y is None else self._rows(Y)
        K = np.asarray(NetworkKernel(network_of(self), self.kernel)(x, y))
        if not eval_gradient:
            return K
        free = [h.name for h in self.hyperparameters if not h.fixed]
        if not free:
            return K, np.empty((*K.shape, 0))
        slopes = slopes_of(self.activation, self.kernel, self.get_params(), x)
        return K, np.stack([slopes[name].numpy() for name in free], axis=-1)

    def diag(self, X: Any) -> Array:
        """Return k(x, x) of every row of X, (n, p), of shape (n,)."""
        return np.asarray(NetworkKernel(network_of(self), self.kernel).diagonal(self._rows(X)))

    def _rows(self, X: Any) -> Tensor:
        rows = as_numbers(flattened(self.network, X), "X").detach().cpu().double()
        return as_rows(rows[None] if rows.ndim < 2 else rows)

    def is_stationary(self) -> bool:
        """Return False: the kernel depends on the norms of the rows."""
        return False

    def __repr__(self) -> str:
        if self.network is not None:
            return f"DEQKernel(network={self.network!r}, kernel={self.kernel!r})"
        extra = "" if self.sigma_b2 is None else f", sigma_b2={self.sigma_b2:.3g}"
        extra += "" if self.sigma_c2 == 0.0 else f", sigma_c2={self.sigma_c2:.3g}"
        return f"DEQKernel({self.activation!r}, sigma_a2={self.sigma_a2:.3g}{extra}, kernel={self.kernel!r})"


def deq_of(activation: Any, values: Mapping[str, Any]) -> DEQ:
    """Return the DEQ of these variances; missing ones are zero, a missing sigma_b2 is 1 - sigma_a2."""
    return DEQ(activation, values.get("sigma_a2", 0.0), values.get("sigma_b2"), values.get("sigma_c2", 0.0))


def slopes_of(activation: Any, kernel: Kernel, values: Mapping[str, Any], X: Tensor) -> dict[str, Tensor]:
    """Return dK / d log(variance) on the rows of X, by differences of fourth order, for all variances that may move.

    A sigma_b2 that is 1 - sigma_a2 moves with it. The error is about 1e-10 of the kernel.
    """
    step = 4e-3  # balances its fourth power and the rounding of tables

    def moved(name: str, steps: int) -> Tensor:
        deq = deq_of(activation, {**values, name: values[name] * math.exp(steps * step)})
        return kernels_of(deq, X, kernels=(kernel,), check=False)[kernel]

    return {
        name: (8.0 * (moved(name, 1) - moved(name, -1)) - (moved(name, 2) - moved(name, -2))) / (12.0 * step)
        for name in VARIANCES
        if values.get(name)
    }


@dataclass(eq=False, repr=False)
class DEQFeatures(Cloned, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Random features phi with phi(x) . phi(y) -> k(x, y) as their number grows: the hidden layer of a one-layer twin.

    A linear model on these features approximates the kernel machine of the DEQ for any number of rows:
    ``make_pipeline(DEQFeatures(), RidgeClassifier())``, or ``SGDClassifier.partial_fit`` for streams.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of the hidden weights, the input weights and the biases; ``sigma_a2="auto"`` is 0.2, or 0.8 of the
        activation's limit where that is lower, and ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ck", "ntk" or "ntk_frozen"
    width : int
        The number of features; errors of the kernel fall as its inverse root.
    init : "gaussian" or "orthogonal"
        Orthogonal weights are nearer to the kernel at the same width.
    network : ENN or Twin, optional
        Takes the place of the DEQ: an ENN with its CK, or a twin that trains its readout.
    device : str or torch.device, optional
    random_state : int, RandomState or None

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> phi = nsd.DEQFeatures(network=nsd.ENN(["relu"]), kernel="ck", width=64).fit_transform(X)
    >>> phi.shape
    (30, 64)
    """

    activation: Any = "relu"
    _: KW_ONLY
    sigma_a2: float | Literal["auto"] = "auto"
    sigma_b2: float | None = None
    sigma_c2: float = 0.0
    kernel: Kernel = "ck"
    width: int = 1024
    init: Init = "gaussian"
    network: Any = None
    device: Any = None
    random_state: Any = 0

    @all_or_nothing
    def fit(self, X: Any, y: Any = None) -> DEQFeatures:
        """Draw the weights; of X, (n, p), only the shape, the precision and the range of norms matter."""
        rows = as_tensor(validated(self, X, dtype=FLOATS), self.device)
        seed = seed_of(self.random_state)
        self.model_, self._norms = feature_model(network_of(self), self.kernel, rows, self.width, seed, self.init)
        return self

    def transform(self, X: Any) -> Array:
        """Compute the features of rows X, (n, p), in their precision: an array of shape (n, width)."""
        check_is_fitted(self)
        rows = validated(self, X, dtype=FLOATS, reset=False)
        points = as_tensor(rows, self.device).to(self.model_.weights[0])
        self._check_norms(points)
        states = in_batches(self.model_.features, points)
        check_range(states, "feature map", self.network or self.activation)
        return states.cpu().numpy().astype(rows.dtype, copy=False)

    def _check_norms(self, points: Tensor) -> None:
        """Warn once of rows whose norms the features were not made for."""
        if self._norms is None:
            return
        norms, (low, high) = squared_norms(points).sqrt(), self._norms
        beyond = int(((norms > high) | ((norms < low) & (norms > 0))).sum())
        if beyond:
            self._norms = None
            warn(
                f"{beyond} of {len(points)} rows have norms outside [{low:.3g}, {high:.3g}], for which these features "
                "were made. Fit on rows of all norms, or scale rows with Standardiser. This is said once"
            )

    @property
    def _n_features_out(self) -> int:
        return self.model_.width

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def feature_model(source: Source, kernel: Kernel, X: Tensor, width: int, seed: int, init: Init) -> tuple[Network, Any]:
    """Return a finite network with phi(x) . phi(y) near k(x, y), and the range of norms this holds for, if not all.

    A DEQ becomes its one-layer twin on the range of norms found in X. An explicit network has its CK.
    """
    positive_int("width", width)
    network: Any = source
    if isinstance(source, Twin):
        if source.trains != "readout":
            raise InvalidInputError(
                "random features are hidden states with a trained readout; this twin trains all weights. Give one with "
                "trains='readout', as match_one_layer makes it"
            )
    else:
        check_kernel(source, kernel)
        if source.implicit:
            norms = squared_norms(X).sqrt()
            positive = norms[norms > 0]
            if not len(positive):
                raise InvalidInputError("all rows are zero: there is no norm to make features for")
            ends = float(positive.min()) / LIMITS.norm_margin, float(positive.max()) * LIMITS.norm_margin
            network = match_one_layer(network, kernel=kernel, norms=ends, trains="readout")
        elif is_tangent(kernel):
            raise InvalidInputError(f"the features of an explicit network have its CK; use kernel='ck', got {kernel!r}")
    options: Any = {"init": init, "kernel": "ck", "dtype": X.dtype, "device": X.device}
    model = Network(network, X.shape[1], width, 1, seed, **options).requires_grad_(False)
    return model, getattr(network, "norms", None)
