"""
The papers' route: four numbers
===============================

On high-dimensional mixtures a kernel depends on the network through four numbers alone. ``nsd.match`` gives two
ordinary Leaky-ReLU layers the four numbers of a ReLU DEQ, whose activation is shifted to have mean zero.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=400)
X, y = mixture.sample(320, seed=0)
statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
twin = nsd.match(nsd.DEQ("relu", sigma_a2=0.2), statistics)
print(twin)
print(twin.verify(X))

# %%
# The spectra of both exact kernels on one draw of the mixture, with the law that is predicted without sampling.

law = nsd.spectral_law(twin.deq, mixture, n=320)
display = nsd.plots.SpectrumDisplay.from_kernel(nsd.ck(twin.deq, X), law, title="DEQ and two layers: one spectrum")
display.plot(beside={"twin": np.linalg.eigvalsh(twin.kernel_matrix(X))})
plt.show()
