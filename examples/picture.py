"""The picture of the README: ``python examples/picture.py docs/twin.png``."""

import sys

import matplotlib

matplotlib.use("Agg")
import notsodeep as nsd

mixture = nsd.GaussianMixture.two_class(p=400)
X, y = mixture.sample(320, seed=0)
twin = nsd.match(nsd.DEQ("relu", sigma_a2=0.2), nsd.MixtureStatistics.from_mixture(mixture, X, y))
display = nsd.plots.TwinDisplay.from_twin(twin, X).plot()
if len(sys.argv) > 1:
    display.figure_.savefig(sys.argv[1], dpi=90)
