"""
A DEQ as a Gaussian process
===========================

The exact kernels are scikit-learn estimators. A Gaussian process with the kernel of an infinitely wide DEQ fits a
curve and says where it does not know.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(-3, 3, 25))
y = np.sin(2 * x) + 0.1 * rng.standard_normal(25)
process = nsd.DEQGaussianProcess("erf").fit(x[:, None], y)
grid = np.linspace(-5, 5, 300)
mean, deviation = process.predict(grid[:, None], return_std=True)
print(process)

# %%
# Amplitude, noise and the variances of the DEQ are fitted to the likelihood of the data.

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(grid, np.sin(2 * grid), color="0.6", ls="--", label="truth")
ax.fill_between(grid, mean - 2 * deviation, mean + 2 * deviation, color="tab:red", alpha=0.15, label="two deviations")
ax.plot(grid, mean, color="tab:red", label="mean")
ax.plot(x, y, "o", color="0.2", label="data")
ax.set(xlabel="x", ylabel="y", ylim=(-3, 3), title="An infinitely wide DEQ fits a curve")
ax.legend(frameon=False, ncols=4, fontsize="small", loc="upper center")
plt.show()
