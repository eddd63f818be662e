"""A DEQ and its one-layer twin on the digits of scikit-learn: random features with a ridge readout, test accuracy."""

import torch
from sklearn.datasets import load_digits

import notsodeep as nsd

X, y = load_digits(return_X_y=True)
X, X_test = nsd.standardise(X[:1400], X[1400:])
deq = nsd.DEQ("relu", sigma_a2=0.2)
networks = {"DEQ": nsd.nn.DEQ(deq, 64, 512, 10), "twin": nsd.nn.ENN(nsd.match_one_layer(deq), 64, 512, 10)}
for name, model in networks.items():
    nsd.nn.fit_readout(model, (X, y[:1400]), ridge=1e-4)
    with torch.no_grad():
        guesses = model(torch.from_numpy(X_test).float()).argmax(1).numpy()
    print(f"{name}: {100 * (guesses == y[1400:]).mean():.1f} % of the test rows are right")
