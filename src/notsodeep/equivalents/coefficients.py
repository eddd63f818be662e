"""The four numbers that decide a network's kernel in high dimension (theory, sections 4 and 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConvergenceError
from ..gaussian import moments
from ..networks import DEQ, ENN, Kernel, Network, check_kernel, check_tau0

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
    return _implicit(network, scale, kernel) if isinstance(network, DEQ) else _explicit(network, scale, kernel)


def _implicit(deq: DEQ, tau0: float, kernel: Kernel) -> Coefficients:
    tau = deq.centred_scale(tau0)
    m = moments(deq.activation, tau)
    s2a, s2b = deq.variances
    e1, e2, d2 = m.slope, m.curvature, m.slope_square
    gamma2 = m.variance
    q2 = m.square_curvature - 2.0 * m.mean * e2  # of the centred activation
    den = 1.0 - s2a * e1**2
    # E1^2 <= D2 by Cauchy-Schwarz, so the NTK's condition implies the other one
    rates = {
        "E[(phi^2)'']/2": 0.5 * s2a * q2,
        **({"E[phi']^2": s2a * e1**2} if kernel == "ck" else {"E[phi'^2]": s2a * d2}),
    }
    for name, rate in rates.items():
        if rate >= 1.0:
            raise ConvergenceError(
                f"the equivalent of {deq!r} diverges at tau0 = {tau0:.6g}: "
                f"sigma_a2 {name} = {rate:.4g} must be below 1; "
                f"lower sigma_a2 (a unique equilibrium is guaranteed below {deq.limit:.6g})"
            )
    lam = s2b / den
    alpha1 = e1**2 * lam
    alpha4 = s2b / (1.0 - 0.5 * s2a * q2)
    alpha2 = e2**2 * alpha4**2 / (4.0 * den)
    alpha3 = e2**2 * lam**2 / (2.0 * den)
    four: dict[Kernel, tuple[float, float, float, float]] = {
        "ck": (alpha1, alpha2, alpha3, gamma2),
        "ntk_frozen": (
            alpha1 / den,
            alpha2 / den,
            (alpha3 + alpha1 / den * s2a * e2**2 * lam) / den,
            gamma2 / (1.0 - s2a * d2),
        ),
        "ntk": (
            alpha1 * (1.0 + 1.0 / den),
            alpha2 / den,
            alpha3 / den + (lam * e2 / den) ** 2,
            gamma2 + tau**2 * d2 / (1.0 - s2a * d2),
        ),
    }
    return Coefficients(
        kernel, tau0, *four[kernel], network=deq.centred(tau0), alpha4=alpha4, tau_star=tau, bias=m.mean
    )


def _explicit(enn: ENN, tau0: float, kernel: Kernel) -> Coefficients:
    a1, a2, a3, a4, square = 1.0, 0.0, 0.0, 1.0, tau0**2
    trained = kernel == "ntk"
    b1, b2, b3, kappa2 = (1.0, 0.0, 0.0, tau0**2) if trained else (0.0, 0.0, 0.0, 0.0)
    for phi in enn.activations:
        m = moments(phi, math.sqrt(square))
        e1, e2 = m.slope**2, m.curvature**2
        q2 = m.square_curvature - 2.0 * m.mean * m.curvature
        b3 = e1 * b3 + e2 * a1 * b1
        a1, a2, a3, a4 = e1 * a1, e1 * a2 + e2 * a4**2 / 4.0, e1 * a3 + e2 * a1**2 / 2.0, 0.5 * q2 * a4
        square = m.variance
        b1, b2, b3, kappa2 = a1 + e1 * b1, a2 + e1 * b2, a3 + b3, square + kappa2 * m.slope_square
    four = (a1, a2, a3, square) if kernel == "ck" else (b1, b2, b3, kappa2)
    return Coefficients(kernel, tau0, *four, network=enn.centred(tau0), alpha4=a4)
