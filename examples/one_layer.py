"""
One layer has the kernel of a DEQ
=================================

A ReLU DEQ is infinitely deep. One hidden layer has the same kernel, to the bound that is printed, for all inputs.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

deq = nsd.DEQ("relu", sigma_a2=0.2)
twin = nsd.match_one_layer(deq, kernel="ck")
print(twin)

# %%
# Pairs of inputs of norm one, from opposite (-1) to equal (1). A plain layer has the DEQ's own activation; it is also
# shown times the one number that brings it nearest.

cosine = np.linspace(-1, 1, 201)
first, others = np.array([[1.0, 0.0]]), np.stack([cosine, np.sqrt(1 - cosine**2)], axis=1)
exact = nsd.ck(deq, first, others)[0]
plain = nsd.ck(nsd.ENN(["relu"]), first, others)[0]
layer = twin.kernel_matrix(first, others)[0]
factor = plain @ exact / (plain @ plain)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
left.plot(cosine, exact, color="0.2", lw=4, label="DEQ, infinitely deep")
left.plot(cosine, layer, color="tab:red", lw=1.5, label="its twin, one layer")
left.plot(cosine, plain, color="tab:green", ls="--", label="plain ReLU layer")
left.set(xlabel="cosine of the angle between two inputs", ylabel="conjugate kernel", title="Two kernels, one curve")
left.legend(frameon=False)
right.semilogy(cosine, abs(plain - exact), color="tab:green", ls="--", label="plain layer")
right.semilogy(cosine, abs(factor * plain - exact), color="tab:green", ls=":", label="plain layer, best factor")
right.semilogy(cosine, abs(layer - exact), color="tab:red", label="twin")
right.axhline(twin.bound * exact[-1], color="0.5", lw=1, label="bound, for all inputs")
right.set(xlabel="cosine of the angle between two inputs", ylabel="distance to the DEQ", ylim=(1e-7, 3))
right.set_title("The twin stays below its bound")
right.legend(frameon=False, fontsize="small", loc="upper left", ncols=2)
for ax in (left, right):
    ax.set_xticks([-1, -0.5, 0, 0.5, 1])
plt.show()
