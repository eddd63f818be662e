"""Shallow explicit convolutional networks in the place of a convolutional DEQ: fitted on images, measured on others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from .. import kernels as _kernels
from .._arguments import checked, positive_int, whole_seed
from .._arrays import as_rows
from ..equivalents import relative_spectral_error
from ..errors import InfeasibleMatchError
from ..kernels.convolution import Images, block_kernels
from ..networks import ConvDEQ, ConvENN, Kernel, check_kernel


@dataclass(frozen=True)
class ConvTwin:
    """An explicit convolutional network that stands in for a convolutional DEQ, with what was measured of it.

    Nothing is proven: ``error`` and ``largest`` are what the held-out images showed, and hold for images like these.

    Parameters
    ----------
    deq, network : ConvDEQ and ConvENN
        The DEQ and its stand-in, which estimators take as ``network=``.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel of both that is compared.
    error, largest : float
        The relative spectral distance of the two kernel matrices, and their largest difference over the mean diagonal.
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

    def __str__(self) -> str:
        return (
            f"{self.network.depth} layers in the place of {self.deq!r}\n"
            f"  network   {self.network!r}\n"
            f"  {self.kernel:<9} relative spectral distance {self.error:.2g}, largest entry {self.largest:.2g} of the "
            f"mean diagonal; with the variances of the DEQ {self.plain:.2g}\n"
            f"  measured  on {self.measured} images that the fit to {self.fitted} others had not seen; not proven"
        )


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

    Variances and a gain are fitted to pairs of some of the images; the kernels are compared on others, without proof.

    Parameters
    ----------
    deq : ConvDEQ
        The network to replace.
    X : array of shape (n, channels * height * width) or (n, channels, height, width)
        At least 16 images; up to 24 of them are fitted, and up to 100 others are measured on.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel to match; both networks train the same weights.
    layers : int, default 2
        The number of hidden layers.
    tol : float, default 1e-3
        The largest relative spectral distance of the kernels on the held-out images that is accepted.
    seed : int
        Decides which images are fitted.
    check : bool
        ``False`` also accepts a DEQ outside the range in which a unique equilibrium is guaranteed.

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
        deq.dense.check_contraction()
    rows = as_rows(deq.flattened(X), least=16).double().cpu()
    deq.check_rows(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(whole_seed(seed)))
    size = min(24, len(rows) // 2)
    mine, others = rows[order[:size]], rows[order[size : size + 100]]
    plain, network = _fitted(deq, kernel, positive_int("layers", layers), mine)
    truth = _kernels.kernels_of(deq, others, kernels=(kernel,), check=False)[kernel]
    matched, first = (_kernels.kernels_of(each, others, kernels=(kernel,))[kernel] for each in (network, plain))
    error = relative_spectral_error(truth, matched)
    largest = float((matched - truth).abs().max() / truth.diagonal().mean())
    if not error <= tol:
        raise InfeasibleMatchError(
            f"{layers} layers reach a relative spectral distance of {error:.2g} to the {kernel} of {deq!r} on "
            f"{len(others)} held-out images, {tol:.2g} was asked for. Take more layers or a smaller sigma_a2, or "
            f"accept the distance with tol={1.5 * error:.1g}",
            error,
        )
    return ConvTwin(deq, network, kernel, error, largest, relative_spectral_error(truth, first), size, len(others))


def _fitted(deq: ConvDEQ, kernel: Kernel, layers: int, images: Tensor) -> tuple[ConvENN, ConvENN]:
    """Return the networks with the variances of the DEQ and with the best ones, each with the gain that fits best."""
    a, b, c = deq.dense.variances
    # of homogeneous layers without a bias only ratios matter: the input variances may stay
    free = [] if deq.dense.homogeneous else [max(b, 1e-3)] * layers
    start = np.log([max(a, 1e-3)] * (layers - 1) + free)

    def values(network: ConvDEQ | ConvENN) -> Tensor:
        (made,) = Images.of(network, images)
        return block_kernels(made[: len(images) // 2], made, (kernel,))[kernel]  # half of the pairs say as much

    def network(logarithms: Any, gain: float = 1.0) -> ConvENN:
        variances = [float(v) for v in np.exp(logarithms)]
        recurrent, inputs = [0.0, *variances[: layers - 1]], variances[layers - 1 :] or b
        return ConvENN([deq.dense.activation] * layers, recurrent, inputs, c, **deq.sizes, gain=gain)

    def gap(logarithms: Any) -> Any:
        kernel_values = values(network(logarithms))
        return ((best_gain(kernel_values) * kernel_values - truth) / scale).flatten().numpy()

    def best_gain(kernel_values: Tensor) -> float:
        return float((kernel_values * truth).sum() / kernel_values.square().sum())

    truth = values(deq)
    scale = float(truth.square().mean().sqrt())
    best, span = start, math.log(1e4)  # variances stay within four orders of magnitude
    if len(start):
        bounds = (start - span, start + span)
        best = least_squares(gap, start, bounds=bounds, diff_step=1e-4, max_nfev=25, xtol=1e-7, ftol=1e-7).x
    plain, fitted = (network(each, best_gain(values(network(each)))) for each in (start, best))
    return plain, fitted
