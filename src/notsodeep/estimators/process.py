"""Gaussian process regression with the exact kernels of deep equilibrium models."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import checked, positive_int, shown
from .._arrays import as_floats, squared_norms
from .._progress import track
from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..networks import Kernel
from ..solve import NetworkKernel
from ..solve._limits import LIMITS
from ..solve.dense import Factor, factorise
from ..solve.operators import available_bytes
from .features import Wanted, learn_features
from .kernel import deq_of
from .machine import Problem, kernel_matrix
from .selection import widest
from .specification import (
    FLOATS,
    VARIANCES,
    Array,
    KernelEstimator,
    all_or_nothing,
    as_tensor,
    network_of,
    scales_of,
    validated,
)
from .standardise import Scale, Standardiser

ROWS_AND_TRIES = ((40, 10), (300, 5), (1000, 5))  # of the search: of slow kernels the first alone
EXACT_ROWS = 100  # up to which a backward pass through all pairs takes less time than tables
LEAST_GAIN = 0.1  # of a step of the search, in the log marginal likelihood
STEP = 1e-4  # of forward differences, which have an error of this size


class _Spent(Exception):
    """The search is over."""


@dataclass(eq=False, repr=False)
class DEQGaussianProcess(KernelEstimator, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression, y = f(x) + noise, where f has the covariance amplitude * k and k is of a DEQ.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        Variances of hidden weights, input weights and biases, from which a fit starts; ``sigma_a2="auto"`` is 0.2, or
        0.8 of the activation's limit where that is lower, and ``sigma_b2=None`` is 1 - sigma_a2.
    kernel : "ck", "ntk" or "ntk_frozen"
    noise, amplitude : float
        The variance of the noise and the factor of the kernel where they are not fitted, in units of the (normalised) y
        squared: absolute, unlike a ridge.
    optimise : bool or tuple of str
        Names of what is fitted to the log marginal likelihood; True means all, except a sigma_c2 of zero.
    restarts : int
        The number of further starting points, drawn with seeds 1, 2, ...; the best one is improved.
    normalise_y : bool
        Whether to centre and scale the targets first.
    scale, features, network, device, client
        Options of :class:`DEQRegressor`.

    Attributes
    ----------
    parameters_ : dict
        The hyper-parameters in use, with which the likelihood is ``log_marginal_likelihood_value_``.
    names_ : tuple of str
        Those that were fitted; ``theta_`` holds their logarithms in this order.

    Notes
    -----
    Amplitude and noise are the best ones for every kernel, from its eigenvalues. The variances are improved by L-BFGS-B
    on their logarithms, inside bounds in which a kernel is quick to compute: ten steps on at most 40 rows, drawn at
    random, with gradients by a backward pass, then five on at most 300 and five on at most 1,000 rows (none for
    hard_tanh, ELU and others with kinks and no closed form).

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.linspace(-3, 3, 30)[:, None]
    >>> gp = nsd.DEQGaussianProcess("relu").fit(X, np.sin(2 * X[:, 0]))
    >>> mean, std = gp.predict([[0.5], [4.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.0)) < 0.05), bool(std[0] < std[1])
    (True, True)
    """

    activation: Any = "relu"
    _: KW_ONLY
    sigma_a2: float | Literal["auto"] = "auto"
    sigma_b2: float | None = None
    sigma_c2: float = 0.3
    kernel: Kernel = "ck"
    noise: float = 1e-2
    amplitude: float = 1.0
    optimise: bool | tuple[str, ...] = True
    restarts: int = 4
    normalise_y: bool = True
    scale: Scale = "auto"
    features: Wanted = None
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
        self._check_client()
        self._start()
        self._flat, Y = y.ndim == 1, y.reshape(len(X), -1)
        plain: tuple[Array, Array] = (np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
        self._shift, self._unit = _level(Y) if self.normalise_y else plain
        rows = as_tensor(X, self.device).double()
        scales = scales_of(self.scale, self._source)
        self.scaler_ = Standardiser("auto" if len(scales) > 1 else scales[0]).fit(rows)
        self._X = self.scaler_.transform(rows)
        self._Y = as_tensor((Y - self._shift) / self._unit, self.device)
        problem = Problem.of(self._X, self._Y, torch.ones_like(self._X[:, 0]), intercept=True)
        start = NetworkKernel(self._source, self.kernel)
        self._features, _ = learn_features(start, problem, None, None, self.features)
        self._X = problem.seen(self._features).X
        order = np.random.default_rng(0).permutation(len(self._X))[: ROWS_AND_TRIES[-1][0]]
        if self._moved():
            self._maximise(order)
        self._kernel = self._kernel_of(self.parameters_)
        K = self._matrix(self.parameters_)
        if {"amplitude", "noise"} & set(self.names_):
            self.parameters_ |= profile(K[order][:, order], self._Y[order], self.parameters_, self.names_)[1]
        self._posterior = evidence(K, self._Y, self.parameters_)
        self.log_marginal_likelihood_value_ = self._posterior.value
        return self

    def _start(self) -> None:
        """Set the hyper-parameters that are free, and their first values."""
        self._source: Any = network_of(self)
        for name in ("noise", "amplitude"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name} must be positive and finite, got {getattr(self, name)!r}")
        positive_int("restarts", self.restarts, least=0, most=1000)
        values = {"amplitude": float(self.amplitude), "noise": float(self.noise)}
        if self.network is None:
            first = dict(zip(VARIANCES, self._source.variances, strict=True))
            values |= {name: value for name, value in first.items() if value > 0}
        chosen: Any = self.optimise
        if isinstance(chosen, bool | np.bool_):
            chosen = values if chosen else ()
        wanted = tuple(chosen)
        unknown = sorted(set(wanted) - set(values))
        if unknown:
            raise InvalidInputError(f"optimise names {unknown}; free to be fitted are {sorted(values)}")
        if self.sigma_b2 is None and "sigma_b2" not in wanted:
            values.pop("sigma_b2", None)  # it is 1 - sigma_a2
        self.parameters_: dict[str, float] = values
        self.names_: tuple[str, ...] = tuple(name for name in values if name in wanted)

    def _maximise(self, order: NDArray[Any]) -> None:
        """Find the best variances on the first of these rows and improve them on more, with amplitude and noise."""
        moved, (low, high) = self._moved(), self._bounds()
        draws = [np.random.default_rng(i + 1).uniform(low, high) for i in range(self.restarts)]
        starts = [np.clip(np.log([self.parameters_[name] for name in moved]), low, high), *draws]
        more = 0 if self._slow else sum(len(order) > rows for rows, _ in ROWS_AND_TRIES[:-1])
        stages = ROWS_AND_TRIES[: 1 + more]
        steps = track(itertools.count(), len(starts) + sum(tries for _, tries in stages), "hyper-parameters")
        evidence = [functools.partial(self._profile, moved, order[:rows], steps) for rows, _ in stages]
        at = max(starts, key=lambda at: evidence[0](at)[0]) if draws else starts[0]
        for (_, tries), each in zip(stages, evidence, strict=True):
            at = climbed(functools.partial(each, slopes=True), at, np.transpose([low, high]), tries)
        self.parameters_ |= dict(zip(moved, np.exp(at).tolist(), strict=True))

    @torch.enable_grad()
    def _profile(
        self, moved: Sequence[str], rows: Any, steps: Any, at: Array, slopes: bool = False
    ) -> tuple[float, Array]:
        """Return the evidence of some rows at logarithms of the moved variances, maximal over amplitude and noise.

        Its slopes come from one backward pass where pairs of rows are few, else from differences of kernels, which
        have tables.
        """
        next(steps)
        X, Y = self._X[rows], self._Y[rows]
        values = self.parameters_ | dict(zip(moved, np.exp(at).tolist(), strict=True))
        exact = len(X) <= EXACT_ROWS
        logs, K = self._recorded(values, moved, X) if exact else ({}, self._kernel_of(values)(X))
        value, _, S = profile(K.detach(), Y, values, self.names_)
        gradient = []
        if slopes and exact:
            gradient = list(torch.autograd.grad((S * K).sum(), list(logs.values())))
        elif slopes:
            near = (values | {name: values[name] * math.exp(STEP)} for name in moved)
            gradient = [(S * (self._kernel_of(other)(X) - K)).sum() / STEP for other in near]
        return value, np.array([float(slope) for slope in gradient])

    @property
    def _slow(self) -> bool:
        """Whether a kernel takes long: without a closed form, rows of one column with a kink are computed by pairs."""
        return self._source.kinked and any(phi.closed_form() is None for phi in self._source.activations)

    def _moved(self) -> tuple[str, ...]:
        """Return the variances to look for: for a homogeneous activation, sigma_b2 is an amplitude."""
        names = tuple(name for name in VARIANCES if name in self.names_)
        scales = self.network is None and self._source.activation.homogeneity == 1.0
        return ("sigma_a2", "sigma_c2") if scales and {"amplitude", *VARIANCES} <= set(self.names_) else names

    def _bounds(self) -> tuple[Array, Array]:
        """Return the lowest and highest logarithms of the variances to look for, between which kernels are quick."""
        mean = max(float(squared_norms(self._X).mean()), 1e-300)
        highest = min(getattr(self._source, "limit", 1.0), 1.0)
        ends = {
            "sigma_a2": (1e-3 * highest, 0.99 * highest),
            "sigma_b2": (1e-2 / mean, widest(self._X)),
            "sigma_c2": (1e-3, 1.0),
        }
        low, high = np.log([ends[name] for name in self._moved()]).reshape(-1, 2).T
        return low, high

    @property
    def theta_(self) -> Array:
        """Logarithms of the free hyper-parameters."""
        return np.log([self.parameters_[name] for name in self.names_])

    @checked
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Compute the log marginal likelihood at ``theta``, with its gradient if asked for.

        ``theta`` holds the logarithms of the hyper-parameters ``names_``; the fitted ones by default.
        """
        check_is_fitted(self)
        at = self.theta_ if theta is None else np.array(as_floats(theta, "theta"))
        if at.shape != self.theta_.shape:
            raise InvalidInputError(f"theta holds the logarithms of {self.names_}, got shape {at.shape}")
        values = self.parameters_ | dict(zip(self.names_, np.exp(at).tolist(), strict=True))
        return self._with_gradient(values) if eval_gradient else evidence(self._matrix(values), self._Y, values).value

    @torch.enable_grad()
    def _matrix(self, values: dict[str, float]) -> Tensor:
        """Return the kernel of all rows, pair by pair as in the search where they are few: tables take longer."""
        if self._moved() and len(self._X) <= EXACT_ROWS:
            return self._recorded(values, self._moved(), self._X)[1].detach()
        return kernel_matrix(self._kernel_of(values), self._X, self.client)

    @torch.enable_grad()
    def _with_gradient(self, values: dict[str, float]) -> tuple[float, Array]:
        """Return the evidence and its derivatives by ``theta_``, in one backward pass.

        d/dv = 1/2 <S, dC/dv> with S = sum_j a_j a_j' - k C^(-1), a_j = C^(-1) y_j.
        """
        logs, K = self._recorded(values, self.names_, self._X)
        at = values | {name: log.exp() for name, log in logs.items()}
        C = at["amplitude"] * K + at["noise"] * torch.eye(len(K)).to(K)
        posterior = evidence(K.detach(), self._Y, values)
        S = posterior.solution @ posterior.solution.T - self._Y.shape[1] * posterior.factor.inverse()
        gradient = torch.autograd.grad(0.5 * (S * C).sum(), list(logs.values())) if logs else ()
        return posterior.value, np.array([float(slope) for slope in gradient])

    def _recorded(self, values: dict[str, float], names: Sequence[str], X: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return logarithms of named hyper-parameters that record, and the kernel as a function of them."""
        start = {name: torch.tensor(math.log(values[name]), dtype=torch.float64) for name in names}
        logs = {name: log.requires_grad_() for name, log in start.items()}
        if not set(VARIANCES) & set(logs):
            return logs, self._kernel_of(values)(X)
        at: dict[str, Any] = values | {name: log.exp() for name, log in logs.items()}
        return logs, kernels_of(deq_of(self.activation, at), X, kernels=(self.kernel,), check=False)[self.kernel]

    def _kernel_of(self, values: dict[str, float]) -> NetworkKernel:
        if self.network is not None:
            return NetworkKernel(self._source, self.kernel)
        return NetworkKernel(deq_of(self.activation, values), self.kernel, check=False)

    @checked
    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Compute the posterior mean of f at rows X, (m, p), and if asked for its deviations or covariances."""
        if return_std and return_cov:
            raise InvalidInputError("ask for return_std or for return_cov, not for both")
        new = self._seen(X)
        amplitude, factor = self.parameters_["amplitude"], self._posterior.factor
        cross = amplitude * self._kernel(new, self._X)
        mean = (cross @ self._posterior.solution).cpu().numpy() * self._unit + self._shift
        out = mean[:, 0] if self._flat else mean
        if return_std:
            variance = amplitude * self._kernel.diagonal(new) - (cross.T * factor.solve(cross.T)).sum(0)
            return out, self._scaled(variance.clamp_min(0.0).sqrt(), self._unit)
        if return_cov:
            covariance = amplitude * self._kernel(new) - cross @ factor.solve(cross.T)
            if not 1e-150 < self._unit.min() <= self._unit.max() < 1e150:
                raise InvalidInputError("covariances of targets of this size are no numbers; ask for return_std")
            return out, self._scaled(0.5 * (covariance + covariance.T), self._unit**2)
        return out

    @checked
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions f from the posterior at rows X, (m, p): an array (m, n_samples) or (m, k, n_samples)."""
        mean, covariance = self.predict(X, return_cov=True)
        seed = (
            positive_int("random_state", random_state, 0, 2**32 - 1) if isinstance(random_state, int) else random_state
        )
        rng, count = check_random_state(seed), positive_int("n_samples", n_samples)
        if 8 * count * mean.size > available_bytes(torch.device("cpu")):
            raise InvalidInputError(f"{shown(n_samples)} draws at {len(mean)} rows do not fit into memory; take fewer")
        if self._flat:
            return np.asarray(rng.multivariate_normal(mean, covariance, count).T)
        targets = range(mean.shape[1])
        return np.stack([rng.multivariate_normal(mean[:, j], covariance[..., j], count).T for j in targets], axis=1)

    def _scaled(self, spread: Tensor, units: Array) -> Array:
        """Return one number (or matrix) for each target, in its units."""
        spreads = np.asarray(spread.cpu())[..., None] * units
        return spreads[..., 0] if self._flat else spreads

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posterior")


def climbed(value_and_slopes: Callable[[Array], tuple[float, Array]], at: Array, bounds: Array, tries: int) -> Array:
    """Return the best of the points that L-BFGS-B tries, at most so many, until a step gains next to nothing."""
    tried: list[tuple[float, Array]] = []
    reached = [-math.inf]

    def loss(at: Array) -> tuple[float, Array]:
        if len(tried) == tries:  # scipy counts between its line searches only
            raise _Spent
        value, slopes = value_and_slopes(at)
        tried.append((value, at.copy()))
        return -value, -slopes

    def check(at: Array) -> None:
        reached.append(max(value for value, _ in tried))
        if reached[-1] - max(reached[-2], tried[0][0]) < LEAST_GAIN:
            raise _Spent

    with contextlib.suppress(_Spent):
        scipy.optimize.minimize(loss, at, jac=True, bounds=bounds, method="L-BFGS-B", callback=check)
    return max(tried, key=lambda one: one[0])[1]


def _level(Y: Array) -> tuple[Array, Array]:
    """Return the mean and the deviation of each column, 1 where it is constant; no square over- or underflows."""
    top = np.abs(Y).max(0)
    top[top == 0] = 1.0
    mean = (Y / top).mean(0) * top
    spread = (Y / top - mean / top).std(0) * top
    return mean, np.where(spread > 1e-14 * top, spread, 1.0)


# ---- the log marginal likelihood ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log marginal likelihood, and what it was computed from."""

    value: float
    factor: Factor  # of C
    solution: Tensor  # C^(-1) Y


def evidence(K: Tensor, Y: Tensor, values: Mapping[str, float]) -> Evidence:
    """Return -1/2 sum_j y_j' C^(-1) y_j - k/2 log det C - n k/2 log(2 pi) with C = amplitude K + noise I."""
    n, k = Y.shape
    factor = factorise(values["amplitude"] * K, values["noise"])
    a = factor.solve(Y)
    value = -0.5 * float((Y * a).sum()) - 0.5 * k * factor.logdet - 0.5 * n * k * math.log(2.0 * math.pi)
    return Evidence(value, factor, a)


def profile(
    K: Tensor, Y: Tensor, values: dict[str, float], names: Sequence[str]
) -> tuple[float, dict[str, float], Tensor]:
    """Return the largest evidence over amplitude and noise, where it is, and its derivative by the entries of K.

    With the eigenvalues w and eigenvectors V of K, d = amplitude w + noise and r = V'Y, the evidence is
    -1/2 sum_i (r_i^2 / d_i + k log d_i) - n k/2 log(2 pi). Amplitude and noise are at their maximum, so that the
    derivative is amplitude/2 (sum_j a_j a_j' - k C^(-1)) with a_j = C^(-1) y_j.
    """
    n, k = Y.shape
    w, V = torch.linalg.eigh(K)
    w, squares = w.clamp_min(0.0).cpu().numpy(), (V.T @ Y).square().sum(1).cpu().numpy()
    free = [name for name in ("amplitude", "noise") if name in names]
    power, size = max(float(Y.square().mean()), 1e-300), max(float(w.mean()), 1e-300)
    # a noise of 1e-6 keeps the system solvable: the condition number is at most 1e10 n
    ends = {"amplitude": (1e-3 * power / size, 1e4 * power / size), "noise": (1e-6 * power, 10.0 * power)}
    bounds = np.log([ends[name] for name in free]).reshape(-1, 2)

    def loss(theta: Array) -> tuple[Any, Array]:
        at = values | dict(zip(free, np.exp(theta), strict=True))
        d = np.multiply.outer(at["amplitude"], w) + np.asarray(at["noise"])[..., None]
        slope = (k - squares / d) / d
        slopes = {"amplitude": at["amplitude"] * (slope @ w), "noise": at["noise"] * slope.sum(-1)}
        return 0.5 * (squares / d + k * np.log(d)).sum(-1), 0.5 * np.array([slopes[name] for name in free])

    theta = np.empty(0)
    if free:
        grid = np.stack(np.meshgrid(*(np.linspace(low, high, 29) for low, high in bounds)), -1).reshape(-1, len(free)).T
        start = grid[:, np.argmin(loss(grid)[0])]
        theta = scipy.optimize.minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x
    best = values | dict(zip(free, np.exp(theta).tolist(), strict=True))
    value = -float(loss(theta)[0]) - 0.5 * n * k * math.log(2.0 * math.pi)
    d = torch.from_numpy(best["amplitude"] * w + best["noise"]).to(V)
    a = V @ ((V.T @ Y) / d[:, None])
    return value, best, 0.5 * best["amplitude"] * (a @ a.T - k * (V / d) @ V.T)
