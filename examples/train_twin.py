"""DEQ, twin and plain network on scikit-learn's digits: accuracy, time, agreement."""

from sklearn.datasets import load_digits

import notsodeep as nsd

X, y = load_digits(return_X_y=True)
X = nsd.standardise(X)
twin = nsd.match(nsd.DEQ("relu", sigma_a2=0.2), nsd.MixtureStatistics.estimate(X, y))
comparison = nsd.compare(twin.deq, twin, (X, y), width=128, seeds=2)
print(comparison)
print(f"a batch through the twin is {comparison.speedup():.1f} times faster than through the DEQ")
