"""The four numbers that decide a network's kernel in high dimension (theory, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._arguments import checked
from ..kernels.jets import equilibrium_jet, index, network_jets
from ..networks import Kernel, Network, check_kernel, check_tau0


@dataclass(frozen=True)
class Coefficients:
    """The four numbers that decide a kernel in high dimension.

    The kernel matrix is near c1 X X' + V [[c2 t t' + c3 T, c2 t], [c2 t', c2]] V' + (diagonal - tau0^2 c1) I.
    """

    kernel: Kernel
    tau0: float
    c1: float
    """alpha_1 (CK) or beta_1 (NTK): weight of the Gram matrix."""
    c2: float
    """alpha_2 or beta_2: weight of the norm fluctuations psi and of t."""
    c3: float
    """alpha_3 or beta_3: weight of T."""
    diagonal: float
    """gamma^2 or kappa^2: the kernel of a point with itself."""
    network: Network
    """The centred network that the numbers describe."""
    alpha4: float
    """Response of the squared norm: s2b / (1 - s2a Q2/2) for a DEQ, the product of Q2/2 over layers for an ENN."""
    tau_star: float | None = None
    """Scale of the pre-activation of a DEQ."""
    bias: float | None = None
    """E[phi(tau* xi)], what centring subtracts from the activation of a DEQ."""

    @property
    def four(self) -> tuple[float, float, float, float]:
        """The tuple (c1, c2, c3, diagonal)."""
        return (self.c1, self.c2, self.c3, self.diagonal)


@checked
def coefficients(
    network: Network, tau0: float = 1.0, kernel: Kernel = "ck", *, learning_rates: Sequence[float] | None = None
) -> Coefficients:
    """Compute the four numbers of a DEQ or an ENN, centred at the input scale tau0.

    Parameters
    ----------
    network : DEQ or ENN
        The network, centred or not: it is centred first.
    tau0 : float
        Root of the mean squared norm of the inputs.
    kernel : "ck", "ntk" or "ntk_frozen"
        Which kernel the numbers describe.
    learning_rates : sequence of float, optional
        One multiplier per weight matrix of an ENN (W_1 ... W_L, readout), as in :func:`ntk`.

    Returns
    -------
    Coefficients
        With ``.c1``, ``.c2``, ``.c3``, ``.diagonal``, and for a DEQ ``.tau_star`` and ``.bias``.

    Raises
    ------
    ConvergenceError
        If the equilibrium or its kernel diverges.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> c = nsd.coefficients(nsd.DEQ("relu", sigma_a2=0.2), tau0=1.0)
    >>> round(c.c1, 10), round(c.diagonal, 10)
    (0.2105263158, 0.2926239295)
    """
    check_kernel(network, kernel)
    scale = check_tau0(tau0)
    jets = network_jets(network, scale, ("ck", kernel), learning_rates)
    cross, unit = jets[kernel].cross, scale**2
    c = Coefficients(
        kernel,
        scale,
        c1=float(cross[index(0, 0, 1)]) / unit,
        c2=float(cross[index(1, 1, 0)]) / unit**2,
        c3=float(cross[index(0, 0, 2)]) / unit**2,
        diagonal=float(jets[kernel].diagonal[0]),
        network=network.centred(scale),
        alpha4=float(jets["ck"].diagonal[1]) / unit,
    )
    if not network.implicit:
        return c
    deq: Any = network.detached()
    at = equilibrium_jet(deq, scale)  # the response is that of Lambda_ii, in place of G_ii
    return replace(c, alpha4=float(at.covariance.diagonal[1]) / unit, tau_star=at.tau, bias=at.mean)
