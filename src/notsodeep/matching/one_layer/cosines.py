"""A proof for all angles: two kernels of homogeneous layers, compared at inputs of norm one.

Both are power series in the cosine with no negative coefficient, so that their even and their odd parts grow on [0, 1]
and are convex there. Between two points of a grid such a part lies below its chord by at most a quarter of the length
times the growth of its slope, which the chords of the cells beside it enclose, and by at most its own growth.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ...kernels import pairwise
from ...networks import ENN, Kernel, Network
from ...units import NormUnits
from .._limits import LIMITS
from ..certificates import Supremum
from .orders import Array


def at_norm_one(network: Network, kernel: Kernel, rho: Array) -> Array:
    """The kernel of inputs of norm one with these cosines."""
    one = torch.ones(len(rho), dtype=torch.float64)
    return pairwise(network, one, one, torch.from_numpy(rho), (kernel,), check=False)[kernel].numpy()


def over_cosines(network: Network, layer: NormUnits, kernel: Kernel) -> Supremum:
    """Bound the error of a layer with a trained readout, on a grid that is refined until the cells add little to it."""
    count = 256
    while True:
        # near 1, where kinks make the slopes grow like 1 / angle, the angles are squares
        rho = np.cos(0.5 * math.pi * np.linspace(1.0, 0.0, count + 1) ** 2)
        places = np.concatenate([-rho[:0:-1], rho])
        wanted, have = at_norm_one(network, kernel, places), at_norm_one(ENN([layer]), "ck", places)
        error, between = np.abs(wanted - have) / wanted[-1], (_sag(rho, wanted) + _sag(rho, have)) / wanted[-1]
        worst = int(np.argmax(error))
        sampled = float(error[worst])
        most = np.maximum(error[1:], error[:-1]) + np.concatenate([between[::-1], between])
        bound = float(most.max()) + 1e-12  # rounding of terms of order one
        if bound - sampled <= LIMITS.cosine_slack * bound or count >= LIMITS.cosine_cells or sampled < 1e-11:
            return Supremum(bound, sampled, float(places[worst]))
        count *= 2


def _sag(rho: Array, values: Array) -> Array:
    """How far a kernel may be from its chords on each cell of ``rho``, from 0 to 1, and on that of -rho."""
    cells, step = len(rho) - 1, np.diff(rho)
    chords = np.diff(values[cells:]) / step
    # the slope at 0 is the first order of the odd part f: what f(h) / h has beyond it is at most h^2 of what f(1) has
    odd, square = 0.5 * (values[cells:] - values[cells::-1]), rho[1] ** 2
    first = odd[1] / rho[1] - square / (1.0 - square) * (odd[-1] - odd[1] / rho[1])
    growth = np.append(chords[1:], np.inf) - np.append(first, chords[:-1])
    return np.maximum(np.minimum(0.25 * growth, chords) * step, 0.0)
