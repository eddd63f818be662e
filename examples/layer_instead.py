"""
The layer instead of the DEQ
============================

All weights of three networks train on scikit-learn's digits by Adam: a DEQ, the one-layer twin of its tangent kernel,
and a plain layer. They end equally accurate; only the DEQ solves an equation in every step.
"""

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd

images, labels = load_digits(return_X_y=True)
X, X_test = (torch.from_numpy(rows).float() for rows in nsd.standardise(images[:1400], images[1400:]))
y, y_test = torch.from_numpy(labels[:1400]), torch.from_numpy(labels[1400:])
deq = nsd.DEQ("relu", sigma_a2=0.2)
torch.set_num_threads(1)
networks = {
    "DEQ": lambda width: nsd.nn.DEQ(deq, 64, width, 10, parametrisation="standard"),
    "twin": lambda width: nsd.nn.ENN(nsd.match_one_layer(deq, "ntk"), 64, width, 10, parametrisation="standard"),
    "plain layer": lambda width: nsd.nn.ENN(nsd.ENN(["relu"]), 64, width, 10, parametrisation="standard"),
}


def train(model):
    """Accuracy on the test rows, and milliseconds of one core for a step of 64 rows and for the test rows."""
    start = time.process_time()
    nsd.nn.fit(model, (X, y), optimiser="adam", lr=3e-3, epochs=10, batch_size=64)
    trained = time.process_time()
    with torch.no_grad():
        right = (model(X_test).argmax(1) == y_test).float().mean().item()
    return right, 1e3 * (trained - start) / (10 * 22), 1e3 * (time.process_time() - trained)


# %%
# All of them have the same learning rate and the same order of rows.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
widths = [64, 256, 512]
for (name, make), style in zip(networks.items(), ("o-k", "s-r", "^--g"), strict=True):
    found = [train(make(width)) for width in widths]
    for width, (accuracy, step, rows) in zip(widths, found, strict=True):
        print(f"{name}, width {width}: {100 * accuracy:.1f} % right, a step {step:.1f} ms, 397 rows {rows:.1f} ms")
    left.semilogx(widths, [100 * accuracy for accuracy, *_ in found], style, label=name)
    right.loglog(widths, [step for _, step, _ in found], style, label=name)
left.set(xlabel="width", ylabel="test accuracy, %", title="All three are as accurate")
right.set(xlabel="width", ylabel="ms for a training step of 64 rows", title="Only the DEQ iterates")
for ax in (left, right):
    ax.set_xticks(widths, map(str, widths))
    ax.minorticks_off()
    ax.legend(frameon=False)
plt.show()
