"""The deep equilibrium model at finite width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from .._arguments import ambient, finite, positive_int
from .._equilibrium import Equilibrium, SolverOptions
from .._maps import Product, root_mean_square
from .._words import Kernel, Parametrisation
from ..activations import Activation
from ..errors import InvalidInputError
from ..networks import DEQ as Specification
from .cell import cell_equilibrium, find_equilibrium
from .decide import Decision, norm_bound, proven_classes
from .implicit import equilibrium
from .model import Factory, Gaussian, Model, check_input


class DEQ(Model):
    """Run z = phi(sigma_a A z + sigma_b B x + sigma_c c) / sqrt(m), f(x) = a z, with derivatives of every order.

    Cells of several layers and normalised pre-activations have first derivatives, by vector-Jacobian products.

    With ``readout="pre-activation"`` in the specification f(x) = a [sigma_a z, sigma_b x, sigma_c], which is one more
    unit of the layer with weights of its own; the last entry is there where sigma_c2 > 0.

    Parameters
    ----------
    spec : notsodeep.DEQ
        The specification: activation and variances.
    in_features, width, out_features : int
        The number of inputs p, of hidden units m and of outputs.
    seed : int
        The seed of the weights, which are normal and the same on every device.
    kernel : {"ntk", "ntk_frozen", "ck"}
        What trains: every weight; every weight but B and c; the readout alone.
    bias : bool
        Whether the outputs have a bias, which starts at zero.
    solver : SolverOptions, optional
        Method and tolerance of the equilibrium and of its derivatives.
    parametrisation : {"ntk", "standard"}
        Weights of variance one, or of 1 / fan-in for the usual learning rates: the same function at the start.
    **factory
        ``dtype`` (a torch.dtype) and ``device`` (a torch.device or str) of the weights, as torch's own modules have.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), in_features=3, width=64, out_features=2)
    >>> model(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    spec: Specification

    @ambient
    def __init__(
        self,
        spec: Specification,
        in_features: int,
        width: int,
        out_features: int,
        seed: int = 0,
        *,
        kernel: Kernel = "ntk",
        bias: bool = False,
        solver: SolverOptions | None = None,
        parametrisation: Parametrisation = "ntk",
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.spec, self.parametrisation = spec.detached(), parametrisation
        self._build(Gaussian(seed, parametrisation, **factory), (in_features, width, out_features), bias, solver)
        self.set_kernel(kernel)

    def _build(self, gaussian: Gaussian, sizes: tuple[int, ...], bias: bool, solver: SolverOptions | None) -> None:
        """Draw the weights for numbers of inputs, units and outputs, and keep the options."""
        names = ("in_features", "width", "out_features")
        self.in_features, self.width, self.out_features = map(positive_int, names, sizes)
        self._sigmas = [math.sqrt(variance) for variance in self._dense.variances]
        self._layer, *shapes = self._shapes()
        self.input, self.recurrent, self.readout = (gaussian.parameter(*shape) for shape in shapes)
        self.bias = gaussian.bias(self.out_features, bias)
        self.offset = gaussian.parameter(self.width) if self._sigmas[2] > 0.0 else None  # c, drawn last
        # W_2 ... W_L of a cell of several layers
        self.inner = nn.ParameterList(gaussian.parameter(self.width, self.width) for _ in self._dense.activations[1:])
        self.solver = solver or SolverOptions()
        self.contraction_limit: float | None = None
        self._vector: Tensor | None = None

    def _shapes(self) -> tuple[Product, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the map of a layer, and the shapes of the weights of the input, of the layer and of the readout."""
        m = self.width
        layer = Product(self._sigmas[0] / (math.sqrt(m) if self.parametrisation == "ntk" else 1.0))
        seen = self.in_features + (self._sigmas[2] > 0.0) if self.spec.readout == "pre-activation" else 0
        return layer, (m, self.in_features), (m, m), (self.out_features, m + seen)

    @property
    def _dense(self) -> Specification:
        """The specification of the cell."""
        return self.spec

    def features(self, x: Tensor) -> Tensor:
        x = self.spec.flattened(x)
        check_input(x, self.in_features, self.input.dtype)
        self._limit()
        drive = self._project(x)
        rows = drive.reshape(-1, drive.shape[-1])
        if self._dense.plain:
            u = equilibrium(self.recurrent, rows, self._layer, self._dense.activation, self.solver)
        else:
            u = cell_equilibrium(self._step, rows, self.solver)
        return self._read(u.reshape(drive.shape) / math.sqrt(self.width), x)

    def _step(self, u: Tensor | None, drive: Tensor) -> Tensor:
        """Return sqrt(m) z behind the cell, from sqrt(m) z before it, or from zero."""
        if u is not None and torch.is_grad_enabled() and self.recurrent.ndim == 2:
            v = drive + nn.functional.linear(self._layer.gain * u, self.recurrent)  # gradients of rows are seen there
        else:
            v = drive if u is None else self._layer.affine(drive, u, self.recurrent)
        if self._dense.normalise:
            v = v / root_mean_square(v)
        for phi, weight in itertools.zip_longest(self._dense.activations, self.inner):
            v = phi(v)
            if weight is not None:
                v = nn.functional.linear(self._spread(v / math.sqrt(self.width), weight), weight)
        return v

    def _read(self, z: Tensor, x: Tensor) -> Tensor:
        """Return what the readout sees of an equilibrium and of its inputs."""
        if self.spec.readout == "activation":
            return z
        sigma_a, sigma_b, sigma_c = self._sigmas
        constant = [] if self.offset is None else [torch.full_like(z[..., :1], sigma_c)]
        return torch.cat([sigma_a * z, sigma_b * x.to(z.dtype), *constant], dim=-1)

    def solve(self, x: Tensor) -> Equilibrium:
        """Return the equilibria z, one row per input, with residuals and steps, without derivatives or warnings."""
        x = self.spec.flattened(x)
        check_input(x, self.in_features, self.input.dtype)
        with torch.no_grad():
            drive = self._project(x)
            rows = drive.reshape(-1, drive.shape[-1])
            found = find_equilibrium(self._step, [rows], self.solver)
        return replace(found, value=found.value / math.sqrt(self.width))

    def _project(self, x: Tensor, inject: Callable[[Tensor, Tensor | None], Tensor] | None = None) -> Tensor:
        """Return sigma_b B x + sigma_c c in the weights' own precision: bfloat16 would exceed any useful tolerance.

        Another ``inject`` may multiply by B and add the rest.
        """
        with torch.autocast(x.device.type, enabled=False):
            shift = None if self.offset is None else self._sigmas[2] * self.offset
            drive = (inject or self._inject)(self._drive_factor() * x.to(self.input.dtype), shift)
        if self._dense.normalise and not bool(drive.any(-1).all()):
            raise InvalidInputError(
                "a row of zeros has pre-activations of zero, which cannot be normalised; leave it out, or give the DEQ "
                "a bias (sigma_c2 > 0)"
            )
        return drive

    def _inject(self, x: Tensor, shift: Tensor | None) -> Tensor:
        return nn.functional.linear(x, self.input, shift)

    def contraction(self) -> float:
        """Return sigma_a |A| Lip / sqrt(m), by power iteration: below one the equilibrium exists and is unique.

        In a cell of several layers, the norms of the other weights are factors. Normalised pre-activations have no such
        bound.
        """
        self._check_bounded()
        return self._excess(power_iteration(self._layer, self.recurrent)[0])

    def _excess(self, norm: float) -> float:
        """Return the Lipschitz constant of the map, from the norm of A."""
        return norm * self._layer.gain * math.prod(phi.lipschitz * factor for phi, factor, _ in self._layers_of_cell())

    def _check_bounded(self) -> None:
        if self._dense.normalise or not math.isfinite(self._dense.lipschitz):
            raise InvalidInputError(f"{self._dense!r} has no Lipschitz constant: no weights make a contraction")
        if not all(bool(torch.isfinite(weight).all()) for weight in self.parameters()):
            raise InvalidInputError("the weights hold NaN or infinity: train the network again, or load it")

    def decide(self, X: Any) -> Decision:
        """Return the classes of rows, each proven to be that of the equilibrium: :class:`Decision`.

        A row is done as soon as its class can no longer change, which takes fewer steps than a small residual. The
        Lipschitz constant is computed from above, rounding is accounted for, and rows that are too close to call in
        float32 are finished in float64. It needs a contraction: see :meth:`limit_contraction`.
        """
        return proven_classes(self, self.spec.flattened(X))

    def bounded(self, X: Any, tol: float) -> Decision:
        """Return outputs that are proven to be within ``tol`` of those of the equilibrium."""
        return proven_classes(self, self.spec.flattened(X), tol)

    def _certified_contraction(self) -> float:
        """Return an upper bound of the Lipschitz constant, where :meth:`contraction` approaches it from below."""
        self._check_bounded()
        estimate = power_iteration(self._layer, self.recurrent)[0]
        return self._excess(norm_bound(self._layer.symbols(self.recurrent), estimate)) * (1.0 + 1e-12)

    def _layers_of_cell(self) -> list[tuple[Activation, float, float]]:
        """Return every activation of the cell with bounds of the norms of the weights behind it and of their sizes.

        Behind the last one there are none: it keeps errors as they are, and adds no others.
        """
        scale = math.sqrt(self.width) if self.parametrisation == "ntk" else 1.0
        symbols = [weight.detach().double().unsqueeze(0) for weight in self.inner]
        norms = [norm_bound(s, float(torch.linalg.matrix_norm(s[0], 2))) / scale for s in symbols]
        sizes = [float(s.norm()) * (1.0 + 1e-9) / scale for s in symbols]
        return list(zip(self._dense.activations, [*norms, 1.0], [*sizes, 0.0], strict=True))

    def _drive_factor(self) -> float:
        """Return what the inputs are multiplied by."""
        return self._sigmas[1] * self._factor(self.input)

    def limit_contraction(self, limit: float | None) -> DEQ:
        """Keep :meth:`contraction` below a limit between 0 and 1, or no longer (None), and return self.

        A is scaled down before each training step, and by ``eval()`` after the last one.
        """
        if limit is not None:
            if not 0 < finite("limit", limit) < 1:
                raise InvalidInputError(f"the limit of the contraction must lie between 0 and 1, got {limit!r}")
            self._check_bounded()
        self.contraction_limit = limit
        return self

    def train(self, mode: bool = True) -> Self:
        """Set the mode; weights that the last training step moved beyond the limit of the contraction return to it."""
        if not mode and self._vector is not None:
            self._scale_down(steps=500)
            self._vector = None
        return super().train(mode)

    def _limit(self) -> None:
        if self.contraction_limit is None or not self.training or not self.recurrent.requires_grad:
            return
        # under torch.func the weights are not the module's own: they are left alone
        if isinstance(self.recurrent, nn.Parameter) and torch.is_grad_enabled():
            self._scale_down(steps=20)

    def _scale_down(self, steps: int) -> None:
        norm, self._vector = power_iteration(self._layer, self.recurrent, self._vector, steps)
        # power iteration approaches from below: leave it one part in a hundred
        excess = self._excess(norm) / (0.99 * (self.contraction_limit or math.inf))
        if excess > 1.0:
            self.recurrent.data.div_(excess)

    def hidden_weights(self) -> list[tuple[str, nn.Parameter]]:
        offset = [] if self.offset is None else [("offset", self.offset)]
        inner = [(f"inner.{i}", weight) for i, weight in enumerate(self.inner)]
        return [("input", self.input), *offset, ("recurrent", self.recurrent), *inner]

    def config(self) -> dict[str, Any]:
        own = {"solver": asdict(self.solver), "contraction_limit": self.contraction_limit}
        return {"model": "DEQ", **super().config(), **own}


def power_iteration(
    layer: Product, weights: Tensor, start: Tensor | None = None, steps: int = 500
) -> tuple[float, Tensor]:
    """Return |A| and its right singular vector by power iteration on A'A, from ``start`` or a fixed random vector."""
    with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
        draw = torch.randn(layer.features(weights), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        vector = (draw / draw.norm() if start is None else start).to(weights)
        norm = 0.0
        for _ in range(steps):
            image = layer.back(weights, layer.forward(weights, vector))
            size = float(torch.linalg.vector_norm(image))
            if size == 0.0 or not math.isfinite(size):
                return 0.0 if size == 0.0 else math.inf, vector
            vector = image / size
            before, norm = norm, math.sqrt(size)
            # power iteration creeps up from below: stop when it no longer does
            if abs(norm - before) <= 1e-5 * norm:
                break
    return norm, vector
