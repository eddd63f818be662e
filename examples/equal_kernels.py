"""
When do equal kernels matter?
=============================

A plain layer classifies as well as a DEQ, so equality of kernels is not needed for that. It is needed where the numbers
themselves are used: the uncertainty of a Gaussian process, and the evidence by which models are compared.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import notsodeep as nsd

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))[:800]
X, y = nsd.standardise(images[order]), 2.0 * (labels[order] % 2) - 1  # odd digits or even ones
n = 500  # rows that are known; the other 300 are predicted

deq = nsd.DEQ("relu", sigma_a2=0.2)
K, plain = nsd.ntk(deq, X), nsd.ntk(nsd.ENN(["relu"]), X)
kernels = {
    "DEQ": K,
    "twin": nsd.match_one_layer(deq, kernel="ntk").kernel_matrix(X),
    "plain layer": plain,
    "plain layer, best factor": (K * plain).sum() / (plain**2).sum() * plain,
}
noise = 0.01 * np.diag(K).mean()


def posterior(kernel):
    """Means and deviations of the unknown rows, and the log evidence of the known ones, in nats."""
    root = np.linalg.cholesky(kernel[:n, :n] + noise * np.eye(n))
    cross, white = np.linalg.solve(root, kernel[:n, n:]), np.linalg.solve(root, y[:n])
    deviations = np.sqrt(np.diag(kernel)[n:] - (cross**2).sum(0))
    return cross.T @ white, deviations, -0.5 * white @ white - np.log(np.diag(root)).sum()


# %%
# All four are right about equally often. Only the twin has the DEQ's deviations and the DEQ's evidence.

found = {name: posterior(kernel) for name, kernel in kernels.items()}
means, deviations, evidence = found["DEQ"]
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (name, (mean, deviation, nats)), style in zip(found.items(), ("ok", "sr", "^g", "vy"), strict=True):
    right = np.mean(np.sign(mean) == y[n:])
    off = np.abs(deviation / deviations - 1)
    print(
        f"{name}: {100 * right:.1f} % right, deviations off by up to {off.max():.1e}, evidence {nats - evidence:+.4f}"
    )
    if name != "DEQ":
        ax.semilogy(deviations, off + 1e-7, style, ms=4, alpha=0.6, label=name)
ax.set(xlabel="posterior deviation of the DEQ", ylabel="relative difference to it")
ax.set_title("The twin's uncertainty is the DEQ's")
ax.legend(frameon=False, fontsize="small")
plt.show()
