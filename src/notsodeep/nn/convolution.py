"""The convolutional deep equilibrium model at finite width."""

from __future__ import annotations

import math
from typing import Any, Unpack

from torch import Tensor, nn

from .._arguments import ambient
from .._equilibrium import SolverOptions
from .._maps import Convolution, Product
from .._words import Kernel
from ..networks import DEQ as Dense
from ..networks import ConvDEQ as Specification
from .deq import DEQ
from .model import Factory, Gaussian


class ConvDEQ(DEQ):
    """Run the convolutional DEQ of a specification with m channels, with derivatives of every order.

    Inputs are images (n, channels, height, width), or rows of flattened ones. The readout sees all channels at all
    positions, or their averages over the boxes of the specification.

    Parameters
    ----------
    spec : notsodeep.ConvDEQ
        The specification: activation, variances, sizes of the images and of the filters.
    width, out_features : int
        The number of channels m and of outputs.
    seed, kernel, bias, solver, **factory
        The options of :class:`DEQ`.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> spec = nsd.ConvDEQ("relu", sigma_a2=0.2, image=(1, 8, 8))
    >>> model = nsd.nn.ConvDEQ(spec, width=16, out_features=10)
    >>> model(torch.ones(5, 64)).shape
    torch.Size([5, 10])
    """

    spec: Specification  # type: ignore[assignment]

    @ambient
    def __init__(
        self,
        spec: Specification,
        width: int,
        out_features: int,
        seed: int = 0,
        *,
        kernel: Kernel = "ntk",
        bias: bool = False,
        solver: SolverOptions | None = None,
        **factory: Unpack[Factory],
    ) -> None:
        super(DEQ, self).__init__()
        self.spec, self.parametrisation = spec, "ntk"
        self._build(Gaussian(seed, "ntk", **factory), (math.prod(spec.image), width, out_features), bias, solver)
        self.set_kernel(kernel)

    def _shapes(self) -> tuple[Product, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        m, size, spec = self.width, (self.spec.filter, self.spec.filter), self.spec
        layer = Convolution(self._sigmas[0] / (spec.filter * math.sqrt(m)), spec.grid)
        return layer, (m, spec.image[0], *size), (m, m, *size), (self.out_features, m * spec.averages.count)

    @property
    def _dense(self) -> Dense:
        return self.spec.dense

    def _drive_factor(self) -> float:
        return self._sigmas[1] / self.spec.filter

    def _read(self, z: Tensor, x: Tensor) -> Tensor:
        return self.spec.averages.forward(z)

    def _inject(self, x: Tensor, shift: Tensor | None) -> Tensor:
        images, steps = x.reshape(-1, *self.spec.image), self.spec.stride
        drive = nn.functional.conv2d(images, self.input, shift, stride=steps, padding=self.spec.filter // 2)
        return drive.reshape(*x.shape[:-1], -1)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "model": "ConvDEQ"}
