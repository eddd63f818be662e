"""
The papers' route: four numbers
===============================

On high-dimensional mixtures a kernel depends on the network through four numbers alone. ``nsd.match`` gives two
ordinary Leaky-ReLU layers the four numbers of a ReLU DEQ, whose activation is shifted to have mean zero.
"""

import matplotlib.pyplot as plt

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=400)
X, y = mixture.sample(320, seed=0)
statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
twin = nsd.match(nsd.DEQ("relu", sigma_a2=0.2), statistics)
print(twin)
print(twin.verify(X))

# %%
# Activations, and the spectra of both exact kernels on one draw of the mixture.

display = nsd.plots.TwinDisplay.from_twin(twin, X).plot()
plt.show()
