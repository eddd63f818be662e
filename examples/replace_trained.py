"""
Replace a trained DEQ
=====================

Weights that have been trained are no longer random, so no kernel knows them. ``nsd.replace`` trains a small student
of the DEQ. The student answers where it is sure; the DEQ answers the rest. How often the two together differ from
the DEQ is bounded.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd

images, labels = load_digits(return_X_y=True)
X = torch.tensor(images / 16 - 0.3, dtype=torch.float32)
model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), in_features=64, width=128, out_features=10, bias=True)
nsd.nn.fit(model, (X[:600], labels[:600]), optimiser="adam", lr=0.01, epochs=15)

# %%
# A promise must be kept with probability 0.95 over the draw of the rows on which it is measured. Smaller promises
# leave more rows to the DEQ.

promises, shares = (0.01, 0.02, 0.05), []
student = None
for promise in reversed(promises):
    options = nsd.nn.ReplaceOptions(steps=800 if student is None else 0)
    fast = nsd.replace(
        model, X[:1000], calibration=X[1000:], disagreement=promise, options=options, student=student, seed=0
    )
    student = fast.student
    shares.append(100 * fast.certificate.coverage)
    print(fast, end="\n\n")

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ticks = [f"at most {100 * promise:g} %" for promise in reversed(promises)]
ax.bar(ticks, shares, color="tab:red", label="the student answers")
ax.bar(ticks, [100 - share for share in shares], bottom=shares, color="0.3", label="the DEQ answers")
ax.set(xlabel="promised disagreement with the DEQ", ylabel="rows, %", ylim=(0, 118))
ax.set_title("The smaller the promise, the more rows the DEQ answers")
ax.legend(frameon=False, ncols=2, loc="upper center")
plt.show()
