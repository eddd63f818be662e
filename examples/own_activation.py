"""
An activation of your own
=========================

Any torch function will do. The limit on the feedback, the kernels and the one-layer twin follow from it by quadrature.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import notsodeep as nsd

bump = nsd.Activation.from_callable(lambda x: x * torch.exp(-(x**2) / 8), name="bump")
deq = nsd.DEQ(bump, sigma_a2=0.15)
print(f"a unique equilibrium is guaranteed below sigma_a2 = {deq.limit:.4f}")
twin = nsd.match_one_layer(deq, norms=(0.5, 1.5))
print(f"its twin: {twin.kinds} kinds of units in one layer, bound {twin.bound:.1e}")

# %%
# The activation, and how far twin and plain layer are from the DEQ's kernel at norm one.

x = np.linspace(-6, 6, 301)
cosine = np.linspace(-1, 1, 201)
first, others = np.array([[1.0, 0.0]]), np.stack([cosine, np.sqrt(1 - cosine**2)], axis=1)
exact = nsd.ck(deq, first, others)[0]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
left.plot(x, bump(torch.from_numpy(x)), color="0.2")
left.set(xlabel="x", ylabel="phi(x)", title=r"$\varphi(x) = x\,e^{-x^2/8}$")
right.semilogy(cosine, abs(nsd.ck(nsd.ENN([bump]), first, others)[0] - exact), "g--", label="plain layer")
right.semilogy(cosine, abs(twin.kernel_matrix(first, others)[0] - exact), "r", label="twin")
right.set(xlabel="cosine of the angle between two inputs", ylabel="distance to the DEQ", title="It has its twin, too")
right.legend(frameon=False)
right.set_xticks([-1, -0.5, 0, 0.5, 1])
plt.show()
