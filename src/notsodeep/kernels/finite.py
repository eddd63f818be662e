"""Kernels of real networks of finite width, averaged over random draws of their weights.

Every draw is a network as it would be initialised: its equilibrium is solved to tolerance, and its gradients are exact,
by the implicit function theorem for a DEQ and by back-propagation for an ENN. The gradient with respect to a weight
matrix is an outer product at every point, so its Gram matrix is an entrywise product of two Gram matrices and no
Jacobian is ever stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._arguments import whole, whole_seed
from .._arrays import as_rows, like, same_columns, sheltered
from .._equilibrium import solve_equilibrium
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, ENN, Kernel, Network, check_kernel, check_network, rates_of, tangent_kernel

_MAX_STEPS = 1000
_MOST_WEIGHTS = 1 << 37  # of one network: a terabyte in double precision


@sheltered
def finite_ck(
    network: Network,
    X: Any,
    width: int | Sequence[int],
    draws: int = 1,
    seed: int = 0,
    *,
    Y: Any = None,
    check: bool = True,
    tol: float | None = None,
    return_std_error: bool = False,
    progress: bool | None = None,
) -> Any:
    """Mean over ``draws`` networks of z(x) . z(y), z the last hidden layer or the equilibrium.

    Parameters
    ----------
    X, Y : arrays (n, p) and (m, p); ``Y`` is ``X`` unless given. NumPy in, NumPy out; torch in, torch out.
    width : number of neurons; for an ENN also one number per hidden layer.
    seed : of the generator of all weights; the same seed gives the same networks on the same device and dtype.
    check : raise :class:`ContractionError` for a DEQ without a guaranteed unique equilibrium.
    tol : relative residual of the equilibrium, 1e-12 in float64 and 1e-5 in float32 unless given.
    return_std_error : also return the standard error of every entry of the mean (at least two draws).
    progress : show a bar; by default only on a terminal and only if it takes long.

    The expectation differs from the exact kernel by O(1 / width), a single draw by O(1 / sqrt(width)).

    >>> import numpy as np, notsodeep as nsd
    >>> enn, X = nsd.ENN(["relu"]), np.eye(2)
    >>> mean, error = nsd.finite_ck(enn, X, width=200, draws=100, seed=1, return_std_error=True)
    >>> bool((abs(mean - nsd.ck(enn, X)) < 5 * error).all())
    True
    """
    job = _Job.prepare(network, X, Y, width, draws, seed, check, tol)
    return job.average(lambda net: net.features_gram(), return_std_error, progress)


@sheltered
def finite_ntk(
    network: Network,
    X: Any,
    width: int | Sequence[int],
    draws: int = 1,
    seed: int = 0,
    train_input: bool = True,
    learning_rates: Sequence[float] | None = None,
    *,
    kernel: Kernel | None = None,
    Y: Any = None,
    check: bool = True,
    tol: float | None = None,
    return_std_error: bool = False,
    progress: bool | None = None,
) -> Any:
    """Mean over ``draws`` networks of grad f(x) . grad f(y), the gradient over all trained weights.

    ``kernel="ntk_frozen"`` freezes the input weights (B of a DEQ, and its bias; W_1 of an ENN); ``train_input=False``
    says the same. ``learning_rates`` (ENN only) multiply the contributions of W_1, ..., W_L and the readout. The other
    arguments are those of :func:`finite_ck`.
    """
    job = _Job.prepare(network, X, Y, width, draws, seed, check, tol)
    name = tangent_kernel(kernel, train_input)
    check_kernel(network, name)
    rates = rates_of(network, learning_rates) or (1.0, 1.0, 1.0)
    rates = rates if name == "ntk" else (0.0, *rates[1:])
    return job.average(lambda net: net.gradients_gram(rates), return_std_error, progress)


# ---- averaging -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """Checked arguments; ``rows`` holds the points of X and, after them, those of Y."""

    network: Network
    rows: Tensor
    split: int | None
    widths: tuple[int, ...]
    draws: int
    seed: int
    tol: float
    given: Any

    @staticmethod
    def prepare(
        network: Network,
        X: Any,
        Y: Any,
        width: int | Sequence[int],
        draws: int,
        seed: int,
        check: bool,
        tol: float | None,
    ) -> _Job:
        check_network(network)
        if isinstance(network, DEQ) and check:
            network.check_contraction()
        x = as_rows(X, "X", least=0)
        rows = x if Y is None else torch.cat([x, same_columns(x, as_rows(Y, "Y", least=0))])
        if tol is None:
            tol = 1e-12 if rows.dtype == torch.float64 else 1e-5
        if not (isinstance(tol, float) and tol > 0):
            raise InvalidInputError(f"tol must be a positive number, got {tol!r}")
        split = None if Y is None else len(x)
        widths = _widths(network, width, rows.shape[1])
        return _Job(network, rows, split, widths, whole("draws", draws), whole_seed(seed), tol, X)

    def networks(self) -> Iterator[_Drawn]:
        generator = torch.Generator(device=self.rows.device).manual_seed(self.seed)
        for _ in range(self.draws):
            if isinstance(self.network, DEQ):
                yield _ImplicitNetwork(self.network, self.rows, self.widths[0], generator, self.tol)
            else:
                yield _ExplicitNetwork(self.network, self.rows, self.widths, generator)

    @torch.no_grad()
    def average(self, gram: Callable[[_Drawn], Tensor], return_std_error: bool, progress: bool | None) -> Any:
        """Running mean and sum of squared deviations (Welford), so that only two matrices are held."""
        if return_std_error and self.draws < 2:
            raise InvalidInputError("a standard error needs at least two draws, got draws=1")
        mean = spread = torch.zeros((), dtype=self.rows.dtype, device=self.rows.device)
        for count, net in enumerate(track(self.networks(), self.draws, "finite width", progress), start=1):
            value = gram(net)
            value = value if self.split is None else value[: self.split, self.split :]
            step = value - mean
            mean = mean + step / count
            spread = spread + step * (value - mean)
        if not bool(torch.isfinite(mean).all()):
            raise ConvergenceError(
                f"a kernel of finite width overflows {self.rows.dtype} on these inputs; scale them down"
                + (", or give them in float64" if self.rows.dtype == torch.float32 else "")
            )
        if not return_std_error:
            return self._out(mean)
        return self._out(mean), self._out((spread / (self.draws - 1) / self.draws).sqrt())

    def _out(self, values: Tensor) -> Any:
        return like(values, self.given)


def _widths(network: Network, width: Any, features: int) -> tuple[int, ...]:
    depth = len(network.activations)
    widths = tuple(width) if isinstance(width, list | tuple) else (width,) * depth
    if len(widths) != depth:
        raise InvalidInputError(f"width needs one number, or one for each of {depth} hidden layers, got {width!r}")
    widths = tuple(whole("width", m) for m in widths)
    sides = (features, *widths, *(widths if isinstance(network, DEQ) else ()))
    if sum(a * b for a, b in itertools.pairwise(sides)) > _MOST_WEIGHTS:
        raise InvalidInputError(f"a network of width {width!r} has more than {_MOST_WEIGHTS:.0e} weights")
    return widths


# ---- one network -----------------------------------------------------------------------------------------


class _Drawn:
    """One draw of weights: Gram matrices of its features and of its gradients at the given rows."""

    def features_gram(self) -> Tensor:
        raise NotImplementedError

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        raise NotImplementedError


def _gram(rows: Tensor) -> Tensor:
    gram = rows @ rows.T
    return 0.5 * (gram + gram.T)  # symmetric to the bit


class _ImplicitNetwork(_Drawn):
    """z = phi(u) / sqrt(m), u = sigma_a A z + sigma_b B x + sigma_c c, f = a . z, solved for all rows at once."""

    def __init__(self, deq: DEQ, rows: Tensor, width: int, generator: torch.Generator, tol: float) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=rows.dtype, device=rows.device)

        self.deq, self.rows, self.tol = deq, rows, tol
        self.sigma_a, self.sigma_b, self.sigma_c = (math.sqrt(v) for v in deq.variances)
        self.root = math.sqrt(width)
        self.A, B, self.a = normal(width, width), normal(width, rows.shape[1]), normal(width)
        self.drive = self.sigma_b * (rows @ B.T)
        if self.sigma_c:  # drawn last: without a bias the networks of a seed stay what they are
            self.drive = self.drive + self.sigma_c * normal(width)
        self.z = _settled(self._layer, self._layer(torch.zeros_like(self.drive)), tol, "equilibrium", deq)

    def _preactivation(self, z: Tensor) -> Tensor:
        return torch.addmm(self.drive, z, self.A.T, alpha=self.sigma_a)

    def _layer(self, z: Tensor) -> Tensor:
        return self.deq.activation(self._preactivation(z)) / self.root

    def features_gram(self) -> Tensor:
        return _gram(self.z)

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        """Rates of B and c, A and the readout; df/dA = sigma_a adjoint z', df/dB = sigma_b adjoint x'."""
        slope = self.deq.activation.derivative(self._preactivation(self.z)) / self.root

        # implicit function theorem: df/du = adjoint = phi'(u)/sqrt(m) (a + sigma_a A' adjoint)
        def adjoint_map(adjoint: Tensor) -> Tensor:
            return slope * torch.addmm(self.a[None, :], adjoint, self.A, alpha=self.sigma_a)

        adjoint = _settled(adjoint_map, slope * self.a, self.tol, "adjoint equation", self.deq)
        features = self.features_gram()
        inputs = rates[0] * self.deq.drive(_gram(self.rows)) + rates[1] * self.sigma_a**2 * features
        return rates[2] * features + _gram(adjoint) * inputs


def _settled(step: Callable[[Tensor], Tensor], start: Tensor, tol: float, what: str, deq: DEQ) -> Tensor:
    found = solve_equilibrium(step, start, "picard", tol, _MAX_STEPS)
    if bool(found.converged.all()):
        return found.value
    residual = float(found.residual.max())
    raise ConvergenceError(
        f"the {what} of {deq!r} at width {start.shape[1]} did not converge: relative residual {residual:.1e}, "
        f"asked for {tol:.1e}. Lower sigma_a2 (a unique equilibrium is guaranteed below {deq.limit:.6g}) or raise tol"
    )


class _ExplicitNetwork(_Drawn):
    """x_l = sigma_l(W_l x_(l-1)) / sqrt(m_l), f = a . x_L."""

    def __init__(self, enn: ENN, rows: Tensor, widths: Sequence[int], generator: torch.Generator) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=rows.dtype, device=rows.device)

        self.enn, self.layers, self.before = enn, [rows], []
        self.weights = [normal(m, fan_in) for m, fan_in in zip(widths, (rows.shape[1], *widths[:-1]), strict=True)]
        self.a = normal(widths[-1])
        for phi, weight in zip(enn.activations, self.weights, strict=True):
            self.before.append(self.layers[-1] @ weight.T)
            self.layers.append(phi.units(self.before[-1], self.layers[-1]) / math.sqrt(len(weight)))

    def features_gram(self) -> Tensor:
        return _gram(self.layers[-1])

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        """Rates of W_1 ... W_L and the readout; df/dW_l = adjoint_l x_(l-1)'."""
        total = rates[-1] * self.features_gram()
        pulled = self.a.expand_as(self.layers[-1])
        for level in range(self.enn.depth - 1, -1, -1):
            slope = self.enn.activations[level].unit_slopes(self.before[level], self.layers[level])
            adjoint = slope * pulled / math.sqrt(slope.shape[1])
            total = total + rates[level] * _gram(adjoint) * _gram(self.layers[level])
            pulled = adjoint @ self.weights[level]
        return total
