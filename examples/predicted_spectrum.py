"""The spectrum of a kernel matrix: predicted without sampling, and measured."""

import numpy as np

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=400)
X, y = mixture.sample(320, seed=0)
law = nsd.spectral_law(nsd.DEQ("relu", sigma_a2=0.2), mixture, n=320)
print(law.summary())

values = np.linalg.eigvalsh(nsd.ck(law.coefficients.network, X))
low, high = law.support[0]
print(f"exact kernel: bulk from {values[0]:.3f} to {values[-3]:.3f} (predicted {low:.3f} to {high:.3f})")
print(f"two largest eigenvalues {values[-2]:.3f}, {values[-1]:.3f}")
