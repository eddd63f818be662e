"""
What the units of the layer look like
=====================================

A ReLU DEQ becomes ReLU units with thresholds. A tanh DEQ becomes two kinds of smooth units that see the norm of
their input.
"""

import matplotlib.pyplot as plt
import torch

import notsodeep as nsd

relu = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2)).network.activations[0]
tanh = nsd.match_one_layer(nsd.DEQ("tanh", sigma_a2=0.2), norms=(0.5, 1.5)).network.activations[0]
print(relu, tanh, sep="\n")

# %%
# ``units(W x, x)`` computes a layer. Every unit gets the same pre-activation here, so that each curve is one kind.


def curves(layer, norm, width):
    before = torch.linspace(-3, 3, 301, dtype=torch.float64)
    outputs = layer.units(norm * before[:, None].expand(-1, width), torch.full((301, 1), norm, dtype=torch.float64))
    return before, torch.unique(outputs.mul(1e9).round().div(1e9), dim=1)


figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
panels[0].plot(*curves(relu, 1.0, 512))
panels[0].set(title="ReLU: thresholds", ylabel="output of the unit, norm 1")
for norm, style in ((0.5, ":"), (1.0, "-"), (1.5, "--")):
    before, outputs = curves(tanh, norm, 8)
    for kind, colour in zip(outputs.T, ("tab:blue", "tab:orange"), strict=False):
        panels[1].plot(before, kind, style, color=colour, label=f"norm {norm}" if colour == "tab:blue" else None)
panels[1].set(title="tanh: two kinds that see the norm", ylabel="output of the unit")
panels[1].legend(frameon=False)
for ax in panels:
    ax.set_xlabel("pre-activation / norm of the input")
plt.show()
