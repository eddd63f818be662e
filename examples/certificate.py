"""
How we know: a bound for every pair of inputs
=============================================

``match_one_layer`` returns a bound on the error of the kernel for all inputs within a range of norms. Random pairs
come close to it and never exceed it; outside the range nothing is promised, and a warning says so.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

deq = nsd.DEQ("tanh", sigma_a2=0.2)
twin = nsd.match_one_layer(deq, norms=(0.5, 1.5))
print(twin.bound, "if", twin.certificate.assumes or "nothing more: it is proven")

# %%
# The error is relative to :math:`\sqrt{k(x, x) k(y, y)}`. Rows in two dimensions meet every angle.

rng = np.random.default_rng(0)
X = rng.standard_normal((400, 2))
X *= (rng.uniform(0.25, 2.2, 400) / np.linalg.norm(X, axis=1))[:, None]
exact = nsd.ck(deq, X)
scale = np.sqrt(np.diagonal(exact))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", nsd.errors.NotSoDeepWarning)  # half of these rows lie outside, on purpose
    error = np.abs(twin.kernel_matrix(X) - exact) / np.outer(scale, scale)
norms = np.linalg.norm(X, axis=1)
worst = error.max(axis=1, where=((norms > 0.5) & (norms < 1.5))[None, :], initial=0.0)
inside = (norms > 0.5) & (norms < 1.5)
assert worst[inside].max() <= twin.bound

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.semilogy(norms[inside], worst[inside], ".", color="tab:red", label="norm within the range")
ax.semilogy(norms[~inside], worst[~inside], ".", color="0.6", label="norm outside")
ax.axhline(twin.bound, color="0.2", lw=1, label=f"bound {twin.bound:.1e}")
ax.axvspan(0.5, 1.5, color="tab:red", alpha=0.07)
ax.set(xlabel="norm of an input", ylabel="its largest error", title="No pair exceeds the bound within the range")
ax.legend(frameon=False, loc="upper center")
plt.show()
