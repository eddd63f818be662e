"""What the regressor and the classifier share: flat parameters, and a fit that is a call of one of three machines."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import check_settings
from ..equivalents import equivalent
from ..errors import InvalidInputError
from ..matching import Twin
from ..mixtures import MixtureStatistics
from ..networks import Kernel
from ..solve import DIRECT, NetworkKernel, PreconditionerName, Store
from .cluster import WithClient, check_client, predict_on
from .machines import Stream, fit_equivalent, fit_exact, fit_features
from .predictors import Fitted
from .specification import as_tensor, feature_model, network_of, seed_of, validated, weights_of

Array = NDArray[np.float64]


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
    method: Literal["kernel", "equivalent", "features"] = "kernel"
    solver: Literal["auto", "cholesky", "eigh", "cg"] = "auto"
    preconditioner: PreconditionerName | Literal["auto"] = "auto"
    rank: int | None = None
    tol: float = 1e-6
    tiles: Literal["auto", "float32", "float64"] = "auto"
    store: Store = "auto"
    folder: Any = None
    checkpoint: Any = None
    own_norms: bool = True
    width: int = 4096
    network: Any = None
    device: Any = None
    random_state: Any = 0
    progress: bool | None = None
    client: Any = None

    # -- fitting -------------------------------------------------------------------------------------------
    def _fit(self, X: Array, T: Array, sample_weight: Any) -> None:
        """Targets T, (n, k); rows of weight zero take no part, and have their prediction as leave-one-out."""
        ridge = self._relative()
        weights = weights_of(sample_weight, X)
        kept = weights > 0
        if not kept.any():
            raise InvalidInputError("all sample weights are zero: there is nothing to fit")
        parts = (X, T, weights) if kept.all() else (X[kept], T[kept], weights[kept])  # a million rows are not copied
        rows, targets, w = (as_tensor(part, self.device) for part in parts)
        fitted = self._machine(rows, targets.to(torch.float64), w, ridge)
        self._result: Fitted | None = fitted
        self._loo: Array | None = None
        if fitted.leave_one_out is not None:
            self._loo = np.empty_like(T)
            self._loo[kept] = fitted.leave_one_out.cpu().numpy()
            if not kept.all():
                self._loo[~kept] = self._outputs(X[~kept])
        self._stream: Stream | None = None

    def _relative(self) -> float | None:
        """The ridge, a positive number, or None for ``"loo"``."""
        check_settings(self)
        if self.ridge == "loo":
            return None
        if not 0 < self.ridge < math.inf:
            raise InvalidInputError(
                f"ridge must be positive and finite, relative to the mean diagonal, got {self.ridge!r}"
            )
        return float(self.ridge)

    def _machine(self, X: Tensor, T: Tensor, w: Tensor, ridge: float | None) -> Fitted:
        kernel = NetworkKernel(network_of(self), self.kernel)
        check_client(self.client, self.device, self.method)
        if self.method == "equivalent":
            return fit_equivalent(kernel, X, T, w, ridge, self.own_norms)
        if self.method == "features":
            return fit_features(self._features(X), X, T, w, ridge, self.client)
        return fit_exact(kernel, X, T, w, ridge, self.solver, **self._solver_options(kernel, X))

    def _features(self, X: Tensor) -> Any:
        return feature_model(network_of(self), self.kernel, X, self.width, seed_of(self.random_state))

    def _solver_options(self, kernel: NetworkKernel, X: Tensor) -> dict[str, Any]:
        return {
            "preconditioner": self.preconditioner,
            "rank": self.rank,
            "equivalent": self._equivalent(kernel, X),
            "tol": self.tol,
            "dtype": self.tiles,
            "store": self.store,
            "folder": self.folder,
            "checkpoint": self.checkpoint,
            "seed": seed_of(self.random_state),
            "progress": self.progress,
            "client": self.client,
        }

    def _equivalent(self, kernel: NetworkKernel, X: Tensor) -> Any:
        """The operator that a preconditioner may want, for an iterative solve alone."""
        iterates = self.solver == "cg" or (self.solver == "auto" and len(X) > DIRECT)
        wanted = self.preconditioner == "auto" or str(self.preconditioner).startswith("equivalent")
        if not (iterates and wanted) or isinstance(kernel.network, Twin):
            return None
        return equivalent(kernel.network, MixtureStatistics.estimate(X), kernel.kernel, own_norms=self.own_norms)

    @property
    def _fitted(self) -> Fitted:
        """The result; a stream is solved when something asks for it, not after every part of it."""
        if self._result is None:
            self._settle()
        assert self._result is not None
        return self._result

    def _settle(self) -> None:
        ridge = self._relative()
        assert self._stream is not None
        assert ridge is not None
        self._result = self._stream.fit(ridge)

    @property
    def ridge_(self) -> float:
        """The ridge in use, relative to the mean diagonal."""
        return self._fitted.ridge

    @property
    def lift_(self) -> float:
        """The ridge in use, absolute."""
        return self._fitted.lift

    @property
    def record_(self) -> dict[str, Any]:
        """How the solve went."""
        return self._fitted.record

    # -- streams -------------------------------------------------------------------------------------------
    def _fit_more(self, X: Array, T: Array, sample_weight: Any) -> None:
        """Add rows to the sums of a features machine, which is to be solved again."""
        weights = weights_of(sample_weight, X)
        if self._relative() is None:
            raise InvalidInputError("ridge='loo' needs all rows at once; give partial_fit a number")
        rows, targets, w = (as_tensor(part, self.device) for part in (X, T, weights))
        targets = targets.to(torch.float64)
        if getattr(self, "_stream", None) is None:
            self._stream = Stream(self._features(rows))
        assert self._stream is not None
        self._stream.add(rows, targets, w, self.client)
        self._loo = self._result = None

    # -- predicting ----------------------------------------------------------------------------------------
    def _outputs(self, X: Array) -> Array:
        """The k numbers at each row."""
        with torch.no_grad():
            found: Array = predict_on(self.client, self._fitted.predictor, as_tensor(X, self.device)).cpu().numpy()
        return found

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        rows: Array = validated(self, X, dtype=[np.float64, np.float32], reset=False)
        return rows

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_result")

    @property
    def loo_(self) -> Array:
        """The prediction of each training row from all others, in closed form."""
        if not hasattr(self, "_result"):
            raise AttributeError("loo_ is there after fit")
        if self._loo is None:
            raise AttributeError(
                f"leave-one-out predictions come from a factorisation; this fit has none ({self.record_}). They are "
                f"there up to {DIRECT} rows, or with solver='cholesky'"
            )
        return self._shape_outputs(self._loo)

    def _shape_outputs(self, values: Array) -> Array:
        raise NotImplementedError

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"{super().__repr__(N_CHAR_MAX)} [ridge relative to the mean diagonal]"
