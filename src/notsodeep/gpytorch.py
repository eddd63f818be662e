"""The kernel of a DEQ for GPyTorch and BoTorch: ``nsd.gpytorch.DEQKernel``, with the extra ``gpytorch``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._words import Kernel as KernelName
from .activations import activation as activation_of
from .errors import InvalidInputError, MissingExtraError
from .kernels import diagonal, kernels_of
from .networks import DEQ, check_kernel

try:
    from gpytorch.constraints import GreaterThan, Interval, Positive
    from gpytorch.kernels import Kernel

    Base: Any = Kernel
except ImportError:  # the class is there to be read, and says what is missing when it is made
    Base = object


class DEQKernel(Base):
    """The exact kernel of a DEQ as a GPyTorch kernel; the three variances are parameters with exact gradients.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, sigma_b2, sigma_c2 : float
        First values of the variances of the hidden weights, the input weights and the biases. Defaults are half of the
        activation's limit and at most 0.1, 1 - sigma_a2, and 0.1. ``sigma_a2`` stays below the limit; a ``sigma_c2`` of
        zero is no parameter.
    kernel : "ck", "ntk" or "ntk_frozen"
    ard_num_dims, batch_shape, active_dims
        Options of every GPyTorch kernel. With ``ard_num_dims=p`` the columns are divided by lengthscales of their own,
        which are parameters, too; they stay above 0.025, as in BoTorch, unless ``lengthscale_constraint`` says
        otherwise. A batch of kernels has variances of its own for each of its members.

    Examples
    --------
    >>> import torch, notsodeep as nsd
    >>> k = nsd.gpytorch.DEQKernel("relu")  # doctest: +SKIP
    >>> k(torch.eye(3, dtype=torch.float64)).to_dense().shape  # doctest: +SKIP
    torch.Size([3, 3])
    """

    has_lengthscale = False

    def __init__(
        self,
        activation: Any = "relu",
        sigma_a2: float | None = None,
        sigma_b2: float | None = None,
        sigma_c2: float = 0.1,
        kernel: KernelName = "ck",
        **options: Any,
    ) -> None:
        if Base is object:
            raise MissingExtraError("gpytorch", "gpytorch")
        self.has_lengthscale = options.get("ard_num_dims") is not None
        if self.has_lengthscale:  # the kernel grows without bound as a lengthscale vanishes
            options = {"lengthscale_constraint": GreaterThan(0.025), **options}
        super().__init__(**options)
        self.phi, self.kernel = activation_of(activation), kernel
        check_kernel(DEQ(self.phi, 0.0), kernel)
        limit = min(DEQ(self.phi, 0.0).limit, 1.0)
        a2 = min(0.1, 0.5 * limit) if sigma_a2 is None else sigma_a2
        first = DEQ(self.phi, a2, sigma_b2, sigma_c2).variances
        if not 0.0 < a2 < limit:
            raise InvalidInputError(f"sigma_a2 must lie between 0 and {limit:.4g}, the limit of {self.phi!r}, got {a2}")
        bounds = {"sigma_a2": Interval(0.0, limit), "sigma_b2": Positive(), "sigma_c2": Positive()}
        self.names = [name for name, value in zip(bounds, first, strict=True) if value > 0.0]
        for name, value in zip(bounds, first, strict=True):
            if name in self.names:
                start = bounds[name].inverse_transform(torch.full((*self.batch_shape, 1, 1), value))
                self.register_parameter(f"raw_{name}", torch.nn.Parameter(start))
                self.register_constraint(f"raw_{name}", bounds[name])

    def variances(self) -> list[Tensor]:
        """Return sigma_a2, sigma_b2 and sigma_c2, each of shape (*batch, 1, 1), as functions of the raw parameters."""
        values = {n: getattr(self, f"raw_{n}_constraint").transform(getattr(self, f"raw_{n}")) for n in self.names}
        like = next(iter(values.values()))
        return [values.get(name, torch.zeros_like(like)) for name in ("sigma_a2", "sigma_b2", "sigma_c2")]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the matrices of rows x1, (*batch, n, p), against x2, (*batch, m, p), or their diagonals."""
        if self.has_lengthscale:
            x1, x2 = x1.div(self.lengthscale), x2.div(self.lengthscale)
        variances = [v.to(x1) for v in self.variances()]
        shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2], variances[0].shape[:-2])
        rows, others = (v.expand(*shape, *v.shape[-2:]).reshape(shape.numel(), *v.shape[-2:]) for v in (x1, x2))
        numbers = [v.expand(*shape, 1, 1).reshape(-1) for v in variances]
        each = [self._one(x, y, diag, *three) for x, y, *three in zip(rows, others, *numbers, strict=True)]
        return torch.stack(each).reshape(*shape, *each[0].shape)

    def _one(self, x: Tensor, y: Tensor, diag: bool, *variances: Tensor) -> Tensor:
        free = any(v.requires_grad for v in variances) and torch.is_grad_enabled()
        deq = DEQ(self.phi, *(variances if free else [float(v) for v in variances]))
        same = x.shape == y.shape and bool(torch.equal(x, y))
        if diag and same:
            return diagonal(deq, x.double().square().sum(1), (self.kernel,))[self.kernel].to(x)
        K: Tensor = kernels_of(deq, x, None if same else y, kernels=(self.kernel,), check=False)[self.kernel]
        return K.diagonal() if diag else K
