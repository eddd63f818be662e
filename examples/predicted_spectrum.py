"""
A spectrum, predicted without sampling
======================================

The eigenvalues of a kernel matrix on a Gaussian mixture follow from the network and the mixture alone: where the bulk
ends, its density, and the isolated eigenvalues that carry the classes.
"""

import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=400)
law = nsd.spectral_law(nsd.DEQ("relu", sigma_a2=0.2).centred(tau0=1.15), mixture, n=320)
print(law.summary())

# %%
# One draw of the data, and the exact kernel of the network that the law speaks of.

X, y = mixture.sample(320, seed=0)
exact = nsd.ck(law.network, X)
values = np.linalg.eigvalsh(exact)
low, high = law.support[0]
print(f"exact kernel: bulk from {values[0]:.3f} to {values[-3]:.3f} (predicted {low:.3f} to {high:.3f})")
print(f"two largest eigenvalues {values[-2]:.3f}, {values[-1]:.3f}")
display = nsd.plots.SpectrumDisplay.from_kernel(exact, law, title="The line was drawn before the data").plot()
plt.show()
