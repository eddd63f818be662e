"""From a DEQ to its shallow twin, with a certificate on the points themselves."""

import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=300)
X, y = mixture.sample(240, seed=0)
statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)

for name in ("tanh", "relu"):
    twin = nsd.match(nsd.DEQ(name, sigma_a2=0.2), statistics)
    print(twin)
    print(twin.verify(X), end="\n\n")
