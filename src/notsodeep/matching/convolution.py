"""Shallow explicit convolutional networks in the place of a convolutional DEQ: fitted on images, measured on others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from .. import kernels as _kernels
from .._arguments import check_settings, checked, whole, whole_seed
from .._arrays import as_rows, isolated_settings
from .._files import parsed
from ..equivalents import relative_spectral_error
from ..errors import InfeasibleMatchError, InvalidInputError, SerialisationError
from ..kernels.convolution import Images, pair_kernels
from ..networks import ConvDEQ, ConvENN, Kernel, check_kernel, network_from_dict


@dataclass(frozen=True)
class ConvTwin:
    """An explicit convolutional network that stands in for a convolutional DEQ, with what was measured of it.

    Nothing is proven: ``error`` and ``largest`` are what the held-out images showed, and hold for images like these.

    Parameters
    ----------
    deq : ConvDEQ
    network : ConvENN
        The stand-in; estimators take it as ``network=``.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel of both that is compared.
    error : float
        The relative spectral distance of the two kernel matrices of the held-out images.
    largest : float
        The largest difference of two entries, over the mean of the diagonal.
    plain : float
        ``error`` of as many layers with the variances of the DEQ and the best gain.
    fitted, measured : int
        The numbers of images it was fitted to and measured on.
    """

    deq: ConvDEQ
    network: ConvENN
    kernel: Kernel
    error: float
    largest: float
    plain: float
    fitted: int
    measured: int

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def kernel_matrix(self, X: Any, Y: Any = None) -> Any:
        """Compute the kernel of the stand-in between rows of X and Y, to hold against that of the DEQ."""
        return _kernels.kernels_of(self.network, X, Y, kernels=(self.kernel,))[self.kernel]

    def __str__(self) -> str:
        return (
            f"{self.network.depth} layers in the place of {self.deq!r}\n"
            f"  network   {self.network!r}\n"
            f"  {self.kernel:<9} relative spectral distance {self.error:.2g}, largest entry {self.largest:.2g} of the "
            f"mean diagonal; with the variances of the DEQ {self.plain:.2g}\n"
            f"  measured  on {self.measured} images that the fit to {self.fitted} others had not seen; not proven"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document; :meth:`from_dict` reads it back."""
        numbers = {name: v for name, v in vars(self).items() if name not in ("deq", "network")}
        return {"conv_twin": 1, "deq": self.deq.to_dict(), "network": self.network.to_dict(), **numbers}

    @staticmethod
    def from_dict(document: Mapping[str, Any] | str) -> ConvTwin:
        """Build the record from what :meth:`to_dict` wrote, or from its JSON text."""
        content = parsed(document, "a convolutional twin")
        if content.pop("conv_twin", None) != 1:
            raise SerialisationError("expected a JSON object with the key 'conv_twin' equal to 1")
        try:
            networks: dict[str, Any] = {name: network_from_dict(content.pop(name)) for name in ("deq", "network")}
            return ConvTwin(**networks, **content)
        except (KeyError, TypeError, InvalidInputError) as error:
            raise SerialisationError(f"this does not describe a convolutional twin: {error}") from None


@isolated_settings
@checked
def match_conv(
    deq: ConvDEQ,
    X: Any,
    kernel: Kernel = "ck",
    *,
    layers: int = 2,
    tol: float = 1e-3,
    seed: int = 0,
    check: bool = True,
) -> ConvTwin:
    """Fit an explicit convolutional network with injected input to the kernel of a convolutional DEQ.

    The variances of every layer and one gain are fitted to pairs of some of the images, and the kernels are compared on
    others. This is a measurement, not a proof: it holds for images like these.

    Parameters
    ----------
    deq : ConvDEQ
        The network to replace.
    X : array of shape (n, channels * height * width)
        At least 16 images as rows; up to 24 of them are fitted, and up to 100 others are measured on.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel to match; both networks train the same weights.
    layers : int, default 2
        The number of hidden layers.
    tol : float, default 1e-3
        The largest relative spectral distance of the kernels on the held-out images that is accepted.
    seed : int
        Decides which images are fitted.
    check : bool
        ``False`` accepts also a DEQ outside the range in which a unique equilibrium is guaranteed.

    Returns
    -------
    ConvTwin
        The network with what was measured.

    Raises
    ------
    InfeasibleMatchError
        If the distance is larger than ``tol``; the error has it as ``residual``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from sklearn.datasets import load_digits
    >>> deq = nsd.ConvDEQ("relu", sigma_a2=0.2, image=(1, 8, 8))
    >>> twin = nsd.match_conv(deq, load_digits().data[:40] / 16)
    >>> twin.network.depth, twin.error < 1e-3
    (2, True)
    """
    check_kernel(deq.dense, kernel)
    if check:
        deq.check_contraction()
    rows = as_rows(X, least=16).double().cpu()
    deq.check_rows(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(whole_seed(seed)))
    size = min(24, len(rows) // 2)
    mine, others = rows[order[:size]], rows[order[size : size + 100]]
    fit = _Fit(deq, kernel, whole("layers", layers), mine)
    plain, network = fit.network(fit.start), fit.network(fit.best())
    truth = _kernels.kernels_of(deq, others, kernels=(kernel,), check=False)[kernel]
    found, first = (_kernels.kernels_of(each, others, kernels=(kernel,))[kernel] for each in (network, plain))
    error = relative_spectral_error(truth, found)
    largest = float((found - truth).abs().max() / truth.diagonal().mean())
    if not error <= tol:
        raise InfeasibleMatchError(
            f"{layers} layers reach a relative spectral distance of {error:.2g} to the {kernel} of {deq!r} on "
            f"{len(others)} held-out images, {tol:.2g} was asked for. Take more layers or a smaller sigma_a2, or "
            f"accept the distance with tol={error:.1g}",
            error,
        )
    return ConvTwin(deq, network, kernel, error, largest, relative_spectral_error(truth, first), size, len(others))


class _Fit:
    """The least-squares problem of the logarithms of the variances, over pairs of images; the gain is its own."""

    def __init__(self, deq: ConvDEQ, kernel: Kernel, layers: int, images: Tensor) -> None:
        self.deq, self.kernel, self.layers, self.images = deq, kernel, layers, images
        i, j = torch.triu_indices(len(images), len(images))
        self.i, self.j = i[::2], j[::2]  # half of the pairs say as much
        self.truth = self._values(deq)
        a, b, _ = deq.dense.variances
        # of homogeneous layers without a bias only ratios matter: the input variances may stay
        self.fixed = [b] * layers if deq.dense.homogeneous else []
        self.start = np.log([max(a, 1e-3)] * (layers - 1) + ([] if self.fixed else [max(b, 1e-3)] * layers))

    def network(self, logarithms: Any) -> ConvENN:
        """The network of these variances, with the gain that fits best."""
        values = [float(v) for v in np.exp(logarithms)]
        a, b = [0.0, *values[: self.layers - 1]], self.fixed or values[self.layers - 1 :]
        made: Any = ([self.deq.dense.activation] * self.layers, a, b, self.deq.dense.variances[2])
        sizes: Any = {"image": self.deq.image, "filter": self.deq.filter}
        found = self._values(ConvENN(*made, **sizes))
        return ConvENN(*made, **sizes, gain=float((found * self.truth).sum() / found.square().sum()))

    def best(self) -> Any:
        """The logarithms that minimise the sum of squares; variances stay within four orders of magnitude."""
        scale = float(self.truth.square().mean().sqrt())

        def gap(logarithms: Any) -> Any:
            return ((self._values(self.network(logarithms)) - self.truth) / scale).numpy()

        if not len(self.start):
            return self.start
        room = math.log(1e4)
        bounds = (self.start - room, self.start + room)
        return least_squares(gap, self.start, bounds=bounds, diff_step=1e-4, max_nfev=25, xtol=1e-7, ftol=1e-7).x

    def _values(self, network: ConvDEQ | ConvENN) -> Tensor:
        (images,) = Images.of(network, self.images)
        return pair_kernels(images[self.i], images[self.j], (self.kernel,))[self.kernel]
