"""Gaussian process regression with the exact kernels of deep equilibrium models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import checked
from .._arrays import as_floats
from ..errors import InvalidInputError
from ..networks import DEQ, Kernel
from ..solve import NetworkKernel
from ..solve._limits import LIMITS
from ..solve.dense import Factor, factorise
from .kernel import VARIANCES, deq_of, slopes_of
from .machine import kernel_matrix
from .specification import FLOATS, Array, WithClient, all_or_nothing, as_tensor, network_of, validated


@dataclass(eq=False, repr=False)
class DEQGaussianProcess(WithClient, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression, y = f(x) + noise, where f has the covariance amplitude * k and k is of a DEQ.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of the hidden weights, the input weights and the biases; ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ck", "ntk" or "ntk_frozen"
        ``"ck"`` is the covariance of an untrained network of infinite width.
    noise : float
        Variance of the noise, in units of y squared: absolute, unlike the ridge of the other estimators.
    amplitude : float
        The factor of the kernel.
    optimise : bool or tuple of str
        Names of what is fitted by the gradient of the log marginal likelihood. True means sigma_a2, sigma_b2 (unless
        it is None), sigma_c2 (unless zero), amplitude and noise; the last two need no new kernel.
    max_steps : int
        Of that optimisation.
    normalise_y : bool
        Whether to centre and scale the targets first.
    network : DEQ, ENN, ConvDEQ, ConvENN or Twin, optional
        Takes the place of the parameters of the DEQ.
    device : str or torch.device, optional
    client : dask.distributed.Client, optional
        Its workers compute the kernel matrix.

    Attributes
    ----------
    parameters_ : dict
        The hyper-parameters in use.
    names_ : tuple of str
        Those that were fitted; ``theta_`` holds their logarithms in this order.
    log_marginal_likelihood_value_ : float
        At the hyper-parameters in use.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.linspace(-2, 2, 20)[:, None]
    >>> gp = nsd.DEQGaussianProcess("tanh", sigma_b2=1.0, sigma_c2=0.0, optimise=("noise",)).fit(X, np.tanh(X[:, 0]))
    >>> mean, std = gp.predict(X[:3], return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((3,), True)
    """

    activation: Any = "relu"
    _: KW_ONLY
    sigma_a2: float = 0.2
    sigma_b2: float | None = None
    sigma_c2: float = 0.0
    kernel: Kernel = "ck"
    noise: float = 1e-2
    amplitude: float = 1.0
    optimise: bool | tuple[str, ...] = ("amplitude", "noise")
    max_steps: int = 50
    normalise_y: bool = False
    network: Any = None
    device: Any = None
    client: Any = None

    @all_or_nothing
    def fit(self, X: Any, y: Any) -> DEQGaussianProcess:
        """Fit to rows X, (n, p), and targets y, (n,) or (n, k), which share the hyper-parameters."""
        X, y = validated(self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True)
        most = 2 * LIMITS.direct_rows
        if len(X) > most:
            raise InvalidInputError(f"a Gaussian process takes at most {most} rows, got {len(X)}")
        self._check_client(self.device)
        self._start()
        self._flat, Y = y.ndim == 1, y.reshape(len(X), -1).astype(np.float64)
        self._shift, self._unit = np.zeros(Y.shape[1]), np.ones(Y.shape[1])
        if self.normalise_y:
            self._shift, spread = Y.mean(0), Y.std(0)
            self._unit = np.where(spread > 0, spread, 1.0)
        self._X = as_tensor(X, self.device).to(torch.float64, copy=True)  # the caller may change the given rows
        self._Y = as_tensor((Y - self._shift) / self._unit, self.device)
        self._cached: tuple[NetworkKernel, Tensor] | None = None
        if self.names_:
            self._maximise()
        self._kernel = self._kernel_of(self.parameters_)
        self._posterior = self._evidence(self.parameters_)
        self.log_marginal_likelihood_value_ = self._posterior.value
        self._cached = None
        return self

    def _start(self) -> None:
        """Set the hyper-parameters that are free, and their first values."""
        self._source = network_of(self)
        for name in ("noise", "amplitude"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name} must be positive and finite, got {getattr(self, name)!r}")
        values = {"amplitude": float(self.amplitude), "noise": float(self.noise)}
        if self.network is None:
            given = {name: getattr(self, name) for name in VARIANCES}
            values |= {name: float(v) for name, v in given.items() if v is not None and v > 0}
        wanted = tuple(values) if self.optimise is True else () if self.optimise is False else tuple(self.optimise)
        unknown = sorted(set(wanted) - set(values))
        if unknown:
            raise InvalidInputError(f"optimise names {unknown}; free to be fitted are {sorted(values)}")
        self.parameters_ = values
        self.names_ = tuple(name for name in values if name in wanted)

    def _maximise(self) -> None:
        """Maximise by L-BFGS on the logarithms, inside the range in which the DEQ has a unique equilibrium."""

        def loss(theta: Array) -> tuple[float, Array]:
            found = self._evidence(self._named(theta), gradient=True)
            return -found.value, -found.gradient

        bounds, options = [self._bounds(name) for name in self.names_], {"maxiter": self.max_steps}
        found = scipy.optimize.minimize(loss, self.theta_, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        self.parameters_ = self._named(found.x)

    def _bounds(self, name: str) -> tuple[float, float]:
        start = math.log(self.parameters_[name])
        if name != "sigma_a2":
            return (start - 14.0, start + 14.0)
        assert isinstance(self._source, DEQ)
        highest = min(self._source.limit, 1.0 if self.sigma_b2 is None else math.inf)
        return (min(start, math.log(1e-6)), max(start, math.log(0.99 * min(highest, 1e6))))

    @property
    def theta_(self) -> Array:
        """Logarithms of the free hyper-parameters."""
        return np.log([self.parameters_[name] for name in self.names_])

    def _named(self, theta: Array) -> dict[str, float]:
        """Return all hyper-parameters, the free ones from their logarithms."""
        return self.parameters_ | dict(zip(self.names_, np.exp(theta).tolist(), strict=True))

    @checked
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Compute the log marginal likelihood at ``theta``, with its gradient if asked for.

        ``theta`` holds the logarithms of the hyper-parameters ``names_``; the fitted ones by default.
        """
        check_is_fitted(self)
        at = self.theta_ if theta is None else np.array(as_floats(theta, "theta"))
        if at.shape != self.theta_.shape:
            raise InvalidInputError(f"theta holds the logarithms of {self.names_}, got shape {at.shape}")
        found = self._evidence(self._named(at), eval_gradient)
        return (found.value, found.gradient) if eval_gradient else found.value

    def _evidence(self, values: dict[str, float], gradient: bool = False) -> Evidence:
        names, slopes = self.names_ if gradient else (), {}
        if set(names) & set(VARIANCES):
            inner = {name: values.get(name) for name in VARIANCES}
            slopes = slopes_of(self.activation, self.kernel, inner, self._X)
        return evidence(self._matrix(values), self._Y, values["amplitude"], values["noise"], names, slopes)

    def _matrix(self, values: dict[str, float]) -> Tensor:
        """Return the kernel matrix of the training rows; it is cached while its variances do not change."""
        kernel = self._kernel_of(values)
        if self._cached is None or self._cached[0] != kernel:
            self._cached = kernel, kernel_matrix(kernel, self._X, self.client)
        return self._cached[1]

    def _kernel_of(self, values: dict[str, float]) -> NetworkKernel:
        if self.network is not None:
            return NetworkKernel(self._source, self.kernel)
        deq = deq_of(self.activation, {name: values.get(name) for name in VARIANCES})
        return NetworkKernel(deq, self.kernel, check=False)

    @checked
    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Compute the posterior mean of f at rows X, (m, p), and if asked for its deviations or covariances."""
        check_is_fitted(self)
        if return_std and return_cov:
            raise InvalidInputError("ask for return_std or for return_cov, not for both")
        new = as_tensor(validated(self, X, dtype=FLOATS, reset=False), self.device).to(torch.float64)
        amplitude, factor = self.parameters_["amplitude"], self._posterior.factor
        cross = amplitude * self._kernel(new, self._X)
        mean = (cross @ self._posterior.solution).cpu().numpy() * self._unit + self._shift
        out = mean[:, 0] if self._flat else mean
        if return_std:
            variance = amplitude * self._kernel.diagonal(new) - (cross.T * factor.solve(cross.T)).sum(0)
            return out, self._scaled(variance.clamp_min(0.0).sqrt(), self._unit)
        if return_cov:
            covariance = amplitude * self._kernel(new) - cross @ factor.solve(cross.T)
            return out, self._scaled(0.5 * (covariance + covariance.T), self._unit**2)
        return out

    def _scaled(self, spread: Tensor, units: Array) -> Array:
        """Return one number (or matrix) for each target, in its units."""
        found = np.asarray(spread.cpu())[..., None] * units
        return found[..., 0] if self._flat else found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posterior")


# ---- the log marginal likelihood ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log marginal likelihood, its derivatives by logarithms, and what it was computed from."""

    value: float
    gradient: Array
    factor: Factor
    """The Cholesky factor of C."""
    solution: Tensor
    """C^(-1) Y."""


def evidence(
    K: Tensor,
    Y: Tensor,
    amplitude: float,
    noise: float,
    names: Sequence[str] = (),
    slopes: Mapping[str, Tensor] | None = None,
) -> Evidence:
    """Return -1/2 sum_j y_j' C^(-1) y_j - k/2 log det C - n k/2 log(2 pi) with C = amplitude K + noise I.

    d/dv = 1/2 <S, dC/dv> with S = sum_j a_j a_j' - k C^(-1), a_j = C^(-1) y_j; ``slopes[name]`` is dK / d log v.
    All derivatives are by logarithms.
    """
    n, k = Y.shape
    factor = factorise(amplitude * K, noise)
    a = factor.solve(Y)
    value = -0.5 * float((Y * a).sum()) - 0.5 * k * factor.logdet - 0.5 * n * k * math.log(2.0 * math.pi)
    if not names:
        return Evidence(value, np.empty(0), factor, a)
    S, matrices = a @ a.T - k * factor.inverse(), {"amplitude": K} | dict(slopes or {})
    along = {name: amplitude * float((S * matrices[name]).sum()) for name in names if name != "noise"}
    along["noise"] = noise * float(S.diagonal().sum())
    return Evidence(value, 0.5 * np.array([along[name] for name in names]), factor, a)
