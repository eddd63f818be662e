"""The kernel of a DEQ for scikit-learn's own machines: Gaussian processes, SVC, KernelRidge."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Hyperparameter
from sklearn.gaussian_process.kernels import Kernel as CovarianceKernel

from .._arguments import check_settings, checked
from .._arrays import as_numbers, as_rows
from ..errors import InvalidInputError
from ..networks import Kernel
from ..solve import NetworkKernel
from .base import Array
from .specification import VARIANCES, network_of, slopes_of


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

    def __init__(
        self,
        activation: Any = "relu",
        sigma_a2: float = 0.2,
        sigma_b2: float | None = None,
        sigma_c2: float = 0.0,
        kernel: Kernel = "ck",
        network: Any = None,
        sigma_a2_bounds: Any = (1e-5, 0.24),
        sigma_b2_bounds: Any = (1e-5, 1e5),
        sigma_c2_bounds: Any = (1e-5, 1e5),
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.sigma_b2 = sigma_b2
        self.sigma_c2 = sigma_c2
        self.kernel = kernel
        self.network = network
        self.sigma_a2_bounds = sigma_a2_bounds
        self.sigma_b2_bounds = sigma_b2_bounds
        self.sigma_c2_bounds = sigma_c2_bounds

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
