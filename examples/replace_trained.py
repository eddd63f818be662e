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
# A promise must be kept with probability 0.95 over the draw of the rows on which it is measured. The certificate knows
# what other promises would have cost: the smaller the promise, the more rows the DEQ answers.

options = nsd.nn.ReplaceOptions(steps=800)
fast = nsd.replace(model, X[:1000], calibration=X[1000:], disagreement=0.01, options=options)
print(fast)

fast.plot().ax_.set_title("The smaller the promise, the more rows the DEQ answers")
plt.show()
