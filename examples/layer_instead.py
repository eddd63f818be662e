"""
The layer instead of the DEQ
============================

Random features with a ridge readout on scikit-learn's digits. The twin classifies as the DEQ of its width does and
computes one matrix product where the DEQ iterates. So does a plain layer.
"""

import statistics
import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd

images, labels = load_digits(return_X_y=True)
X, X_test = (torch.from_numpy(rows).float() for rows in nsd.standardise(images[:1400], images[1400:]))
y, y_test = torch.from_numpy(labels[:1400]), torch.from_numpy(labels[1400:])
deq = nsd.DEQ("relu", sigma_a2=0.2)
makers = {
    "DEQ": lambda width: nsd.nn.DEQ(deq, 64, width, 10, kernel="ck"),
    "twin": lambda width: nsd.nn.ENN(nsd.match_one_layer(deq), 64, width, 10),
    "plain layer": lambda width: nsd.nn.ENN(nsd.ENN(["relu"]), 64, width, 10, kernel="ck"),
}


@torch.no_grad()
def measure(model):
    """Accuracy on the test rows, and the median milliseconds for all of them."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        outputs = model(X_test)
        times.append(1e3 * (time.perf_counter() - start))
    return (outputs.argmax(1) == y_test).float().mean().item(), statistics.median(times)


# %%
# The readout is the minimiser of the squared error with a small ridge.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
widths = [32, 128, 512]
for (name, make), style in zip(makers.items(), ("o-k", "s-r", "^--g"), strict=True):
    found = []
    for width in widths:
        model = make(width)
        nsd.nn.fit_readout(model, (X, y), ridge=1e-3)
        found.append(measure(model))
        print(f"{name}, width {width}: {100 * found[-1][0]:.1f} % right, {found[-1][1]:.1f} ms for 397 rows")
    left.semilogx(widths, [100 * accuracy for accuracy, _ in found], style, label=name)
    right.loglog(widths, [ms for _, ms in found], style, label=name)
left.set(xlabel="width", ylabel="test accuracy, %", title="All three are as accurate")
right.set(xlabel="width", ylabel="ms for 397 rows", title="Only the DEQ iterates")
for ax in (left, right):
    ax.set_xticks(widths, map(str, widths))
    ax.minorticks_off()
    ax.legend(frameon=False)
plt.show()
