"""What a family answers: a finished design, or why it has none. Feasibility is a value."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InfeasibleMatchError
from ...kernels.jets import KernelJet, explicit_jets
from ...networks import ENN, Kernel
from ..solver import Solved
from ..target import FEASIBLE, Target


@dataclass(frozen=True)
class Draft:
    """A finished design before its certificate."""

    network: ENN
    family: str
    conditioning: float
    reason: str
    rates: tuple[float, ...] | None = None
    jets: dict[Kernel, KernelJet] | None = None
    """Its kernels, where the design knows them already."""


@dataclass(frozen=True)
class Refusal:
    """Why a family has no network with the numbers, and what to do about it."""

    why: str
    advice: str
    residual: float | None = None
    """The best relative residual that was found."""

    def error(self) -> InfeasibleMatchError:
        return InfeasibleMatchError(f"{self.why}. {self.advice}", residual=self.residual)


def finished(target: Target, solution: Solved, family: str, reason: str) -> Draft | Refusal:
    """The network of a solution."""
    if not solution.feasible:
        return Refusal(
            f"the best {family} network of {solution.design.depth} layers misses the numbers of {target.deq!r} "
            f"({target.kernel}, tau0 = {target.tau0:.6g}) by {100 * solution.residual:.3g} %",
            "Use family='auto'",
            solution.residual,
        )
    found = solution.design.rates(solution.z)
    rates = None if found is None else tuple(float(r) for r in found)
    if rates is not None and target.kernel == "ntk_frozen":
        rates = (0.0, *rates[1:])  # frozen input weights do not move
    network = ENN(solution.design.activations(solution.z, target.tau0))
    jets = explicit_jets(solution.design.layers(solution.z), found, target.names)
    return Draft(network, family, solution.conditioning, reason, rates, jets)


def depth_reason(target: Target) -> str:
    """The theory's word on the depth."""
    if target.odd:
        return "one layer: the centred activation is odd at this scale (c2 = c3 = 0)"
    rule = "c3/6" if target.names[-1] == "ntk" else "c3/2"
    if target.one_layer:
        return f"one layer: c2 = {rule}"
    _, c2, c3 = target.normalised[0]
    return f"two layers: one layer forces c2 = {rule}, the DEQ has c2/c3 = {c2 / max(c3, 1e-300):.6g}"


def need_rates(target: Target, with_rates: bool | None) -> Refusal | None:
    """One layer has CK and NTK together only with learning rates."""
    if target.kernel != "both" or with_rates is not False:
        return None
    return Refusal(
        "one layer without learning rates has beta1 = 2 alpha1, a DEQ alpha1 (1 + 1/(1 - s2a E1^2)): CK and NTK "
        "together need them",
        "Pass with_rates=None",
    )


def refuse_both(target: Target) -> Refusal | None:
    """CK and NTK together by two layers: c1, c2, c3 of both kernels fix the rates, and one comes out negative.

    With x, y the shares of layer 1 in c2 and c3 (x = y t, t = c3 / (2 c2)) and rho = beta2/alpha2 = 1/(1 - s2a E1^2),
    the six equations give r_2 y (t - 1) = 2 (rho - 1), r_1 = 1 - r_2 (1 - x), r_3 = 1 - r_2 (x + y)/2. All are
    non-negative for some y only if t >= 1 and (t - 1)/(t + 1) >= rho - 1 (or rho = 1, even activations).
    """
    if target.kernel != "both":
        return None
    ck, ntk = target.numbers
    if ck.c2 <= 0.0:
        return Refusal("CK and NTK together by two layers need c2 > 0; this DEQ has c2 = 0", "Use family='auto'")
    excess, ratio = ntk.c2 / ck.c2 - 1.0, ck.c3 / (2.0 * ck.c2)
    if excess <= FEASIBLE or (ratio - 1.0) / (ratio + 1.0) >= excess:
        return None
    return Refusal(
        f"no two-layer network has the CK and the NTK of {target.deq!r} together, whatever its activations and "
        f"learning rates: with t = c3/(2 c2) = {ratio:.6g}, rates that are not negative need (t - 1)/(t + 1) >= "
        f"beta2/alpha2 - 1; here {(ratio - 1.0) / (ratio + 1.0):.4g} < {excess:.4g}",
        "Match 'ck' or 'ntk' alone; odd activations can have both",
    )
