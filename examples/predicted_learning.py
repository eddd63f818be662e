"""
Accuracy, predicted before training
===================================

For kernel regression on a mixture, ``nsd.learning_curve`` computes the accuracy that training will reach. Dots are
machines that were trained; the line never saw their data.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=150, mu=2.0, cov=4.0)
deq = nsd.DEQ("relu", sigma_a2=0.2)
sizes = np.array([50, 100, 200, 400])
curve = nsd.learning_curve(deq, mixture, n=np.geomspace(50, 400, 9).astype(int), kernel="ntk", ridge=1e-2)

# %%
# Four trained machines for each number of samples. They take the rows as they are, as the prediction does.

test, truth = mixture.sample(2000, seed=99)
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.semilogx(curve.points, 100 * curve.accuracy[0], color="0.2", label="predicted")
for seed in range(4):
    machines = [nsd.DEQClassifier(network=deq, ridge=1e-2, scale=None, fit_intercept=False) for _ in sizes]
    scores = [m.fit(*mixture.sample(n, seed=seed)).score(test, truth) for m, n in zip(machines, sizes, strict=True)]
    ax.plot(sizes, [100 * score for score in scores], "o", color="tab:red", label=None if seed else "trained")
    print("trained:", np.round(scores, 3))
ax.set(xlabel="training samples", ylabel="test accuracy, %", title="The line was known before the dots")
ax.set_xticks(sizes, map(str, sizes))
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()
