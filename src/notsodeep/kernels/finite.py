"""Kernels of real networks of finite width, averaged over random draws of their weights.

Gradients are exact, by the implicit function theorem for a DEQ and by back-propagation for an ENN. The gradient of a
weight matrix is an outer product at every point, so its Gram matrix is an entrywise product of two Gram matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked, positive_int, whole_seed
from .._arrays import as_rows, check_range, like, same_columns
from .._equilibrium import SolverOptions, solve_equilibrium
from .._maps import Averages, Convolution, Gradients, Product, root_mean_square
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, ConvDEQ, Kernel, Network, check_kernel


@checked
def finite_ck(
    network: Network | ConvDEQ,
    X: Any,
    width: int | Sequence[int],
    draws: int = 1,
    seed: int = 0,
    *,
    Y: Any = None,
    check: bool = True,
) -> Any:
    """Average z(x) . z(y) over random networks of finite width, z the last hidden layer or the equilibrium.

    The expectation differs from the exact kernel by O(1 / width), a single draw by O(1 / sqrt(width)).

    Parameters
    ----------
    network : DEQ, ENN or ConvDEQ
        The specification of the network.
    X : array of shape (n, p)
        The inputs as rows.
    width : int or sequence of ints
        The number of neurons, or of channels; for an ENN also one number per hidden layer.
    draws : int
        How many networks are drawn.
    seed : int
        The seed of all weights. A seed gives the same networks again on the same device and dtype.
    Y : array of shape (m, p), optional
        The other inputs; ``X`` itself unless given.
    check : bool
        ``False`` also computes outside the range in which a unique equilibrium is guaranteed.

    Returns
    -------
    array of shape (n, m)
        The mean over the draws.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.finite_ck(nsd.ENN(["relu"]), np.eye(2), width=100_000, seed=0).round(1)
    array([[0.5, 0.2],
           [0.2, 0.5]])
    """
    check_kernel(network.dense, "ck")
    return _average(_Drawn.features_gram, network, X, Y, width, draws, seed, check)


@checked
def finite_ntk(
    network: Network | ConvDEQ,
    X: Any,
    width: int | Sequence[int],
    draws: int = 1,
    seed: int = 0,
    kernel: Kernel = "ntk",
    *,
    learning_rates: Sequence[float] | None = None,
    Y: Any = None,
    check: bool = True,
) -> Any:
    """Average grad f(x) . grad f(y) over random networks of finite width, the gradient over all trained weights.

    Parameters
    ----------
    network, X, width, draws, seed, Y, check
        As in :func:`finite_ck`.
    kernel : {"ntk", "ntk_frozen"}
        ``"ntk_frozen"`` freezes the input weights: B of a DEQ, and its bias; W_1 of an ENN.
    learning_rates : sequence of floats, optional
        For an ENN: multipliers of W_1, ..., W_L and the readout.

    Returns
    -------
    array of shape (n, m)
        The mean over the draws.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> nsd.finite_ntk(nsd.ENN(["linear"]), np.eye(2), width=100_000, seed=0).round(1)
    array([[2., 0.],
           [0., 2.]])
    """
    check_kernel(network.dense, kernel)
    if kernel == "ck":
        raise InvalidInputError("kernel must be 'ntk' (all weights) or 'ntk_frozen', got 'ck'; use finite_ck")
    rates = network.rates(learning_rates) or (1.0, 1.0, 1.0)
    rates = rates if kernel == "ntk" else (0.0, *rates[1:])
    return _average(lambda net: net.gradients_gram(rates), network, X, Y, width, draws, seed, check)


@torch.no_grad()
def _average(
    gram: Callable[[_Drawn], Tensor],
    network: Network | ConvDEQ,
    X: Any,
    Y: Any,
    width: int | Sequence[int],
    draws: int,
    seed: int,
    check: bool,
) -> Any:
    """The mean of a Gram matrix over random networks, between the rows of X and those of Y."""
    x = as_rows(network.flattened(X), "X", least=0)
    rows = x if Y is None else torch.cat([x, same_columns(x, as_rows(network.flattened(Y), "Y", least=0))])
    if check:
        network.check_contraction()
    if network.image is not None and not network.implicit:
        raise InvalidInputError(f"kernels of finite width are offered for a DEQ, an ENN or a ConvDEQ, got {network!r}")
    network.check_rows(rows)
    widths = _widths(network, width, rows.shape[1])
    generator = torch.Generator(device=rows.device).manual_seed(whole_seed(seed))
    kind = _ImplicitNetwork if network.implicit else _ExplicitNetwork
    nets = (kind(network, rows, generator, widths) for _ in range(positive_int("draws", draws)))
    mean = sum(track(map(gram, nets), draws, "finite width", None), rows.new_zeros(())) / draws
    check_range(mean, "kernel of finite width", network)
    return like(mean if Y is None else mean[: len(x), len(x) :], X)


def _widths(network: Network | ConvDEQ, width: Any, features: int) -> tuple[int, ...]:
    depth = len(network.activations)
    widths = tuple(width) if isinstance(width, list | tuple) else (width,) * depth
    if len(widths) != depth:
        raise InvalidInputError(f"width needs one number, or one for each of {depth} hidden layers, got {width!r}")
    widths = tuple(positive_int("width", m) for m in widths)
    sides = (features, *widths, *(widths if network.implicit else ()))
    most = 1 << 37  # weights of one network: a terabyte in double precision
    if sum(a * b for a, b in itertools.pairwise(sides)) > most:
        raise InvalidInputError(f"a network of width {width!r} has more than {most:.0e} weights")
    return widths


class _Drawn:
    """One draw of weights: Gram matrices of its features and of its gradients at the given rows."""

    features: Tensor

    def __init__(self, rows: Tensor, generator: torch.Generator) -> None:
        self.rows, self.generator = rows, generator

    def normal(self, *shape: int) -> Tensor:
        try:
            return torch.randn(*shape, generator=self.generator, dtype=self.rows.dtype, device=self.rows.device)
        except RuntimeError as error:  # torch has no class of its own for it
            told = " x ".join(map(str, shape))
            raise InvalidInputError(f"{told} weights do not fit into memory; take a smaller width") from error

    def features_gram(self) -> Tensor:
        return _gram(self.features)

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        """Times the learning rates of the weight matrices, in the order in which an input meets them."""
        raise NotImplementedError


def _gram(rows: Tensor) -> Tensor:
    return _symmetric(rows @ rows.T)


def _symmetric(gram: Tensor) -> Tensor:
    return 0.5 * (gram + gram.T)  # to the bit


def _followed(before: Tensor) -> Tensor:
    """Return a pre-activation whose gradient can be asked for where graphs are recorded."""
    return before.requires_grad_() if torch.is_grad_enabled() and not before.requires_grad else before


def _adjoints(out: Tensor, passed: Sequence[Tensor], pulled: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of <pulled, out> in pre-activations; those of constant functions are zero."""
    if not out.requires_grad:
        return tuple(map(torch.zeros_like, passed))
    options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(out, passed, pulled, **options)


class _ImplicitNetwork(_Drawn):
    """z = phi(u) / sqrt(m), u = sigma_a A z + sigma_b B x + sigma_c c, f = a . z, solved for all rows at once.

    A and B are matrices, or filters whose convolutions are divided by ``size``, and a sees averages of all positions.
    """

    def __init__(self, network: Any, rows: Tensor, generator: torch.Generator, widths: Sequence[int]) -> None:
        super().__init__(rows, generator)
        width = widths[0]
        self.deq: DEQ = network.dense
        self.sigma_a, self.sigma_b, self.sigma_c = (math.sqrt(v) for v in self.deq.variances)
        taps: tuple[int, ...] = ()
        self.root, self.size, self.positions, channels = math.sqrt(width), 1, 1, rows.shape[1]
        self.layer, averages = Product(self.sigma_a), Averages((1, 1), 1)
        self.entry = self.layer
        self.inner = [self.normal(width, width) for _ in self.deq.activations[1:]]
        if network.image is not None:
            (channels, *sides), averages = network.image, network.averages
            self.size, self.positions, taps = network.filter, network.positions, (network.filter,) * 2
            self.layer = Convolution(self.sigma_a / self.size, network.grid)
            self.entry = Convolution(1.0, tuple(sides), network.stride)
        self.A, self.B = self.normal(width, width, *taps), self.normal(width, channels, *taps)
        self.a = averages.back(self.normal(width * averages.count))
        self.drive = self.sigma_b / self.size * self.entry.forward(self.B, rows)
        if self.sigma_c:  # drawn last: without a bias the networks of a seed stay what they are
            self.drive = self.drive + self.sigma_c * self.normal(width).repeat_interleave(self.positions)
        self.hidden = _settled(self._layer, self._layer(torch.zeros_like(self.drive)), "equilibrium", self.deq)
        self.features = averages.forward(self.hidden)
        if self.deq.readout == "pre-activation":  # one more unit of the layer, with weights of its own
            self.a = self.sigma_a * self.a
            ones = rows.new_full((len(rows), 1), self.sigma_c)
            self.features = torch.cat([self.sigma_a * self.hidden, self.sigma_b * rows, ones], dim=1)

    def _preactivation(self, z: Tensor) -> Tensor:
        return self.layer.affine(self.drive, z, self.A)

    def _layer(self, z: Tensor) -> Tensor:
        return self._through(self._preactivation(z))[-1]

    def _through(self, u: Tensor) -> list[Tensor]:
        """Return the pre-activations of all layers of the cell, and its output."""
        passed = [u / root_mean_square(u) if self.deq.normalise else u]
        for phi, weight in itertools.zip_longest(self.deq.activations, self.inner):
            hidden = phi(passed[-1]) / self.root
            passed.append(hidden if weight is None else _followed(hidden @ weight.T))
        return passed

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        """Rates of B and c, A and the readout; the implicit function theorem gives the adjoint df/du."""
        readout = self.a.expand_as(self.hidden)
        with torch.enable_grad():
            u = _followed(self._preactivation(self.hidden))
            *passed, z = self._through(u)

        def back(adjoint: Tensor) -> tuple[Tensor, ...]:
            """Return the adjoints of the pre-activations of all layers, the first that of u, from an adjoint of u."""
            pulled = readout + self.layer.gain * self.layer.back(self.A, adjoint)
            return _adjoints(z, [u, *passed[1:]], pulled)

        adjoint = _settled(lambda adjoint: back(adjoint)[0], torch.zeros_like(u), "adjoint equation", self.deq)
        total = rates[2] * self.features_gram() + self._hidden_gram(adjoint, rates)
        inside = zip(back(adjoint)[1:], self.deq.activations, passed, strict=False)
        return sum((rates[1] * _gram(a) * _gram(phi(v) / self.root) for a, phi, v in inside), total)

    def _hidden_gram(self, adjoint: Tensor, rates: Sequence[float]) -> Tensor:
        """df/dA = sigma_a adjoint z', df/dB = sigma_b adjoint x', summed over positions."""
        left = adjoint.reshape(len(adjoint), 1, -1, self.positions)

        def gram(windows: Tensor) -> Tensor:
            gradients = Gradients.of(left, windows)
            return _symmetric(gradients.inner(gradients)) / self.size**2

        seen = gram(self.entry.windows(self.rows, self.B))
        inputs = self.sigma_b**2 * seen + self.sigma_c**2 * _gram(left.sum(3).flatten(1))
        return rates[0] * inputs + rates[1] * self.sigma_a**2 * gram(self.layer.windows(self.hidden, self.A))


def _settled(step: Callable[[Tensor], Tensor], start: Tensor, what: str, deq: DEQ) -> Tensor:
    tol = 1e-12 if start.dtype == torch.float64 else 1e-5  # of the relative residual
    solution = solve_equilibrium(step, start, SolverOptions("picard", tol, 1000))
    if bool(solution.converged.all()):
        return solution.value
    residual = float(solution.residual.max())
    raise ConvergenceError(
        f"the {what} of {deq!r} at width {start.shape[1]} did not converge: relative residual {residual:.1e}, "
        f"asked for {tol:.1e}. Lower sigma_a2 (a unique equilibrium is guaranteed below {deq.limit:.6g})"
    )


class _ExplicitNetwork(_Drawn):
    """x_l = sigma_l(W_l x_(l-1)) / sqrt(m_l), f = a . x_L."""

    def __init__(self, enn: Any, rows: Tensor, generator: torch.Generator, widths: Sequence[int]) -> None:
        super().__init__(rows, generator)
        self.layers, self.before = [rows], list[Tensor]()
        weights = [self.normal(*shape) for shape in zip(widths, (rows.shape[1], *widths[:-1]), strict=True)]
        self.a = self.normal(widths[-1])
        with torch.enable_grad():
            for phi, weight in zip(enn.activations, weights, strict=True):
                self.before.append(_followed(self.layers[-1] @ weight.T))
                self.layers.append(phi.units(self.before[-1], self.layers[-1]) / math.sqrt(len(weight)))
        self.features = self.layers[-1]

    def gradients_gram(self, rates: Sequence[float]) -> Tensor:
        """Rates of W_1 ... W_L and the readout; df/dW_l = adjoint_l x_(l-1)'."""
        adjoints = _adjoints(self.features, self.before, self.a.expand_as(self.features))
        each = zip(rates, adjoints, self.layers, strict=False)
        return sum((r * _gram(adjoint) * _gram(x) for r, adjoint, x in each), rates[-1] * self.features_gram())
