"""A kernel as an object: callable on rows, with the table it is evaluated from, to be kept, pickled and shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._arrays import as_rows, isolated_settings, like, same_columns, squared_norms
from ..errors import InvalidInputError
from ..networks import DEQ, Kernel, Network, check_kernels, rates_of
from .lookup import Table
from .matrix import diagonals, fill, norm_range
from .tabulate import rounded_range, table_for


@isolated_settings
def kernel_function(
    network: Network,
    kernel: Kernel | Sequence[Kernel] = "ntk",
    norms: Any = None,
    *,
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> TabulatedKernel:
    """The kernel of a network as a function of rows, with its table built for a range of norms.

    Parameters
    ----------
    kernel : ``"ck"``, ``"ntk"``, ``"ntk_frozen"``, or several of them: then calls return a dict.
    norms : the smallest and the largest norm ``(low, high)`` of the inputs, or the inputs themselves. Rows outside are
        served too, by a wider table. ``None``: the first call decides; homogeneous networks need no range.
    learning_rates, check : as in :func:`ntk`.

    The object is what :func:`ck` and :func:`ntk` use inside: they find their table again by the network and the range
    of the norms, this one carries it. It pickles with its table, so that workers and servers pay nothing at the start.

    >>> import numpy as np, notsodeep as nsd
    >>> k = nsd.kernel_function(nsd.DEQ("tanh", 0.2), "ck", norms=(0.9, 1.1))
    >>> k
    TabulatedKernel(DEQ(Tanh(), sigma_a2=0.2, sigma_b2=0.8), 'ck', norms=(0.840896, 1.18921))
    >>> k(np.eye(2)).round(6)
    array([[0.369925, 0.      ],
           [0.      , 0.369925]])
    """
    single = isinstance(kernel, str)
    kernels = check_kernels(network, (kernel,) if single else kernel)
    rates = rates_of(network, learning_rates)
    if isinstance(network, DEQ):
        if check:
            network.check_contraction()
        network = network.detached()
    found = TabulatedKernel(network, kernels, single, rates)
    if norms is not None or network.homogeneous:
        found.prepare((1.0, 1.0) if norms is None else norms)
    return found


class TabulatedKernel:
    """k(X, Y) of a network, exact, from a table of the angle and the norms; see :func:`kernel_function`."""

    def __init__(
        self,
        network: Network,
        kernels: tuple[Kernel, ...],
        single: bool,
        rates: tuple[float, ...] | None,
        table: Table | None = None,
    ) -> None:
        self.network, self.kernels, self.single, self.rates, self.table = network, kernels, single, rates, table

    def __repr__(self) -> str:
        kernel = repr(self.kernels[0] if self.single else self.kernels)
        if self.table is None or self.table.homogeneous:
            return f"TabulatedKernel({self.network!r}, {kernel})"
        low, high = self.table.norms.low, self.table.norms.high
        return f"TabulatedKernel({self.network!r}, {kernel}, norms=({low:.6g}, {high:.6g}))"

    def prepare(self, norms: Any) -> None:
        """Build the table for norms from low to high, or for those of given rows."""
        self._tabulate(*_ends(norms))

    def _tabulate(self, low: float, high: float) -> None:
        scale = rounded_range(self.network, low, high)
        # zeros alone need no table
        self.table = table_for(self.network, self.kernels, self.rates, scale, math.inf) if high > 0.0 else None

    @isolated_settings
    def __call__(self, X: Any, Y: Any = None, *, out: Any = None, progress: bool | None = None) -> Any:
        """The kernel between the rows of ``X`` and ``Y``, or of ``X`` alone; a dict if several were asked for."""
        x = as_rows(X, "X", least=0)
        y = None if Y is None else same_columns(x, as_rows(Y, "Y", least=0))
        rows = [part for part in (x, y) if part is not None and len(part)]
        if self.table is None and rows:
            self._tabulate(*norm_range(*map(squared_norms, rows)))
        outs: Mapping[Kernel, Any] | None = {self.kernels[0]: out} if self.single and out is not None else out
        filled = fill(self.network, x, y, self.kernels, self.rates, outs, progress, self.table)
        found = {kernel: outs[kernel] if outs is not None else like(v, X) for kernel, v in filled.items()}
        return found[self.kernels[0]] if self.single else found

    @isolated_settings
    def diagonal(self, X: Any) -> Any:
        """k(x, x) of every row, from the norms alone."""
        rows = as_rows(X, "X", least=0)
        s = squared_norms(rows)
        fits = self.table is not None and len(s) and self.table.holds(*norm_range(s))
        along = diagonals(self.network, self.kernels, self.rates, s, self.table if fits else None)
        found = {kernel: like(values.to(rows.dtype), X) for kernel, values in along.items()}
        return found[self.kernels[0]] if self.single else found


def _ends(norms: Any) -> tuple[float, float]:
    if isinstance(norms, tuple | list) and len(norms) == 2 and not any(hasattr(v, "__len__") for v in norms):
        low, high = (float(v) for v in norms)
        if not 0.0 <= low <= high < float("inf") or high == 0.0:
            raise InvalidInputError(f"norms must be (low, high) with 0 <= low <= high and high > 0, got {norms!r}")
        return low, high
    return norm_range(squared_norms(as_rows(norms, "norms")))
