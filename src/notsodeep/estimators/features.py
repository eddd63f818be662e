"""Random features with the kernel of a deep equilibrium model."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..networks import Kernel
from ..solve import features_of
from .base import Array
from .specification import as_tensor, feature_model, network_of, seed_of, validated

_TYPES = [np.float64, np.float32]


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

    def __init__(
        self,
        activation: Any = "relu",
        *,
        sigma_a2: float = 0.2,
        sigma_b2: float | None = None,
        sigma_c2: float = 0.0,
        kernel: Kernel = "ck",
        width: int = 1024,
        init: str = "gaussian",
        network: Any = None,
        device: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.sigma_b2 = sigma_b2
        self.sigma_c2 = sigma_c2
        self.kernel = kernel
        self.width = width
        self.init = init
        self.network = network
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> DEQFeatures:
        """Draw the weights; of X only the shape, the precision and the range of norms matter."""
        rows = as_tensor(validated(self, X, dtype=_TYPES), self.device)
        seed = seed_of(self.random_state)
        self.model_ = feature_model(network_of(self), self.kernel, rows, self.width, seed, init=self.init)
        return self

    def transform(self, X: Any) -> Array:
        """The features, (n, width), in the precision of X."""
        check_is_fitted(self)
        rows = validated(self, X, dtype=_TYPES, reset=False)
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
