"""
Kernels without sampling
========================

Random networks of finite width scatter around their kernel. ``nsd.ck`` and ``nsd.ntk`` compute the limit itself; the
networks approach it like one over the root of their width.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

X = np.random.default_rng(0).standard_normal((12, 20)) / np.sqrt(20)
deq = nsd.DEQ("tanh", sigma_a2=0.2)
widths = np.array([64, 128, 256, 512, 1024])

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for kernel, exact, sampled, style in (
    ("conjugate kernel", nsd.ck(deq, X), nsd.finite_ck, "o-"),
    ("tangent kernel", nsd.ntk(deq, X), nsd.finite_ntk, "s-"),
):
    errors = []
    for width in widths[: 5 if sampled is nsd.finite_ck else 4]:
        draws = [sampled(deq, X, width=int(width), draws=1, seed=seed) for seed in range(3)]
        errors.append(np.mean([np.linalg.norm(draw - exact) for draw in draws]) / np.linalg.norm(exact))
    print(kernel, np.round(errors, 4))
    ax.loglog(widths[: len(errors)], errors, style, label=f"one network, {kernel}")
ax.loglog(widths, 1.2 / np.sqrt(widths), color="0.5", ls=":", label=r"slope $-1/2$")
ax.set(xlabel="width", ylabel="relative error", title="Random networks approach the exact kernels")
ax.set_xticks(widths, map(str, widths))
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()
