"""An activation of one's own, and what its kernel looks like in high dimension."""

import torch

import notsodeep as nsd

bump = nsd.Activation.from_callable(lambda x: x * torch.exp(-(x**2) / 8), name="bump")
deq = nsd.DEQ(bump, sigma_a2=0.15)
print(f"a unique equilibrium is guaranteed below sigma_a2 = {deq.limit:.4f}")

for kernel in ("ck", "ntk", "ntk_frozen"):
    c = nsd.coefficients(deq, tau0=1.0, kernel=kernel)
    print(f"{kernel:<11} c1 = {c.c1:.6f}, c2 = {c.c2:.6f}, c3 = {c.c3:.6f}, diagonal = {c.diagonal:.6f}")

twin = nsd.match(deq, 1.0)
print(f"its twin: {twin.network}, equations solved to {twin.residual:.0e}")
