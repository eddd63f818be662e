"""The four numbers that decide a network's kernel in high dimension (theory, sections 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..gaussian import moments
from ..kernels.jets import index, network_jets
from ..networks import DEQ, Kernel, Network, check_kernel, check_tau0

__all__ = ["Coefficients", "coefficients"]


@dataclass(frozen=True)
class Coefficients:
    """c1 X X' + V [[c2 t t' + c3 T, c2 t], [c2 t', c2]] V' + (diagonal - tau0^2 c1) I."""

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
        """(c1, c2, c3, diagonal)."""
        return (self.c1, self.c2, self.c3, self.diagonal)


def coefficients(network: Network, tau0: float = 1.0, kernel: Kernel = "ck") -> Coefficients:
    """The coefficients of a DEQ or an ENN at input scale tau0; the network is centred first.

    >>> import notsodeep as nsd
    >>> c = nsd.coefficients(nsd.DEQ("relu", sigma_a2=0.2), tau0=1.0)
    >>> round(c.c1, 10), round(c.diagonal, 10)
    (0.2105263158, 0.2926239295)
    """
    check_kernel(network, kernel)
    scale = check_tau0(tau0)
    jets = network_jets(network, scale, ("ck", kernel))
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
    return _with_scale(c, network) if isinstance(network, DEQ) else c


def _with_scale(c: Coefficients, deq: DEQ) -> Coefficients:
    """What a DEQ adds: tau*, what centring takes away, and the response of Lambda_ii in place of that of G_ii."""
    tau = deq.centred_scale(c.tau0)
    (s2a, s2b, _), m = deq.variances, moments(deq.activation, tau)
    response = s2b / (1.0 - s2a * (0.5 * m.square_curvature - m.mean * m.curvature))
    return replace(c, alpha4=response, tau_star=tau, bias=m.mean)
