"""The kernel of a DEQ for scikit-learn's own machines: as a covariance function, and as random features."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.gaussian_process.kernels import Hyperparameter
from sklearn.gaussian_process.kernels import Kernel as CovarianceKernel
from sklearn.utils.validation import check_is_fitted

from .._arguments import check_settings, checked
from .._arrays import as_numbers, as_rows
from .._words import Init
from ..errors import InvalidInputError
from ..networks import Kernel
from ..solve import NetworkKernel, features_of
from .base import Array
from .specification import VARIANCES, as_tensor, feature_model, network_of, seed_of, slopes_of, validated


@dataclass(eq=False, repr=False)
class DEQKernel(CovarianceKernel):
    """k(X, Y) of a DEQ as a scikit-learn kernel, with hyper-parameters and gradients.

    Works in ``GaussianProcessRegressor(kernel=...)``, also added to and multiplied with other kernels, and as a fast
    callable in ``SVC(kernel=...)`` and ``KernelRidge(kernel=...)``: one call gives a whole matrix.

    Parameters
    ----------
    activation, sigma_a2, sigma_b2, sigma_c2, kernel, network : as :class:`DEQRegressor`. A variance that is None (tied)
        or zero is not a hyper-parameter; those of ``network`` are fixed
    sigma_a2_bounds, sigma_b2_bounds, sigma_c2_bounds : pairs, or ``"fixed"``; sigma_a2 is kept below 1/4, the limit of
        a 1-Lipschitz activation

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

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The variances that are free to be fitted."""
        if self.network is not None:
            return []
        check_settings(self)
        values = {name: getattr(self, name) for name in VARIANCES}
        free = [name for name, value in values.items() if value is not None and value > 0]
        try:
            return [Hyperparameter(name, "numeric", getattr(self, f"{name}_bounds")) for name in free]
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"bounds of {', '.join(free)} must be pairs or 'fixed': {error}") from None

    @checked
    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        if eval_gradient and Y is not None:
            raise InvalidInputError("gradients are for the matrix of X with itself; leave Y out")
        x, y = _rows(X), None if Y is None else _rows(Y)
        K: Array = NetworkKernel(network_of(self), self.kernel)(x, y).numpy()
        if not eval_gradient:
            return K
        free = [h.name for h in self.hyperparameters if not h.fixed]
        values = {name: getattr(self, name) for name in VARIANCES}
        if not free:
            return K, np.empty((*K.shape, 0))
        slopes = slopes_of(self.activation, self.kernel, values, x)
        return K, np.stack([slopes[name].numpy() for name in free], axis=-1)

    def diag(self, X: Any) -> Array:
        """k(x, x) of every row."""
        found: Array = NetworkKernel(network_of(self), self.kernel).diagonal(_rows(X)).numpy()
        return found

    def is_stationary(self) -> bool:
        return False

    def __repr__(self) -> str:
        if self.network is not None:
            return f"DEQKernel(network={self.network!r}, kernel={self.kernel!r})"
        extra = "" if self.sigma_b2 is None else f", sigma_b2={self.sigma_b2:.3g}"
        extra += "" if self.sigma_c2 == 0.0 else f", sigma_c2={self.sigma_c2:.3g}"
        return f"DEQKernel({self.activation!r}, sigma_a2={self.sigma_a2:.3g}{extra}, kernel={self.kernel!r})"


def _rows(X: Any) -> torch.Tensor:
    rows = as_numbers(X, "X").detach().cpu().double()
    return as_rows(rows[None] if rows.ndim < 2 else rows)


@dataclass(eq=False, repr=False)
class DEQFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """phi with phi(x) . phi(y) -> k(x, y) as the width grows: the hidden layer of the DEQ's one-layer twin.

    A linear model on these features is the kernel machine of the DEQ, for any number of rows.

    Parameters
    ----------
    activation, sigma_a2, sigma_b2, sigma_c2, kernel : the DEQ and its kernel, as :class:`DEQRegressor`; ``"ntk"`` is
        possible because the twin's readout alone has the DEQ's NTK
    width : number of features; errors of the kernel fall as its inverse root
    init : ``"gaussian"`` or ``"orthogonal"`` weights; the latter are nearer to the kernel at the same width
    network : an ENN (its CK) or a twin that trains its readout, instead of the flat parameters
    random_state : seed of the weights

    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> phi = nsd.DEQFeatures(network=nsd.ENN(["relu"]), kernel="ck", width=64).fit_transform(X)
    >>> phi.shape
    (30, 64)
    """

    activation: Any = "relu"
    _: KW_ONLY
    sigma_a2: float = 0.2
    sigma_b2: float | None = None
    sigma_c2: float = 0.0
    kernel: Kernel = "ck"
    width: int = 1024
    init: Init = "gaussian"
    network: Any = None
    device: Any = None
    random_state: Any = 0

    def fit(self, X: Any, y: Any = None) -> DEQFeatures:
        """Draw the weights; of X only the shape, the precision and the range of norms matter."""
        rows = as_tensor(validated(self, X, dtype=[np.float64, np.float32]), self.device)
        seed = seed_of(self.random_state)
        self.model_ = feature_model(network_of(self), self.kernel, rows, self.width, seed, init=self.init)
        return self

    def transform(self, X: Any) -> Array:
        """The features, (n, width), in the precision of X."""
        check_is_fitted(self)
        rows = validated(self, X, dtype=[np.float64, np.float32], reset=False)
        states = features_of(self.model_, as_tensor(rows, self.device))
        found: Array = states.cpu().numpy().astype(rows.dtype, copy=False)
        return found

    @property
    def _n_features_out(self) -> int:
        return self.model_.width

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
