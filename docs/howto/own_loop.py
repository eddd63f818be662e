"""The table of parametrisations in module.md: five epochs of Adam, scikit-learn's digits, five seeds.

``python docs/howto/own_loop.py`` prints it, in under two minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import notsodeep as nsd

IMAGES, LABELS = load_digits(return_X_y=True)
X, X_TEST = (torch.from_numpy(rows).float() for rows in nsd.standardise(IMAGES[:1400], IMAGES[1400:]))
Y, Y_TEST = torch.from_numpy(LABELS[:1400]), torch.from_numpy(LABELS[1400:])
TWIN = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2), kernel="ntk")


def pasted(parametrisation: str, seed: int) -> nn.Module:
    """The module of the generated source."""
    names: dict = {}
    exec(nsd.pytorch_code(TWIN, 64, 256, 10, parametrisation=parametrisation), names)
    torch.manual_seed(seed)
    return names["Twin"]()


def ordinary(seed: int) -> nn.Module:
    """One hidden layer as everybody writes it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    '`nn.ENN(twin, ...)`, `parametrisation="ntk"`': lambda seed: nsd.nn.ENN(TWIN, 64, 256, 10, seed=seed),
    '`nn.ENN(twin, ...)`, `parametrisation="standard"`': lambda seed: nsd.nn.ENN(
        TWIN, 64, 256, 10, seed=seed, parametrisation="standard"
    ),
    'pasted source, `parametrisation="ntk"`': lambda seed: pasted("ntk", seed),
    'pasted source, `parametrisation="standard"`': lambda seed: pasted("standard", seed),
    "`nn.Linear`, `nn.ReLU`, `nn.Linear`": ordinary,
}


def train(model: nn.Module, lr: float, epochs: int = 5, seed: int = 0) -> float:
    """Test accuracy after a loop of five lines."""
    optimiser = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=lr)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=order).split(64):
            loss = nn.functional.cross_entropy(model(X[rows]), Y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return float((model(X_TEST).argmax(1) == Y_TEST).float().mean())


def main() -> None:
    """Print the table."""
    print("| network, width 256 | 1e-3 | 1e-2 | 1e-1 |\n|---|---|---|---|")
    for name, make in NETWORKS.items():
        cells = []
        for lr in (1e-3, 1e-2, 1e-1):
            found = 100 * np.array([train(make(seed), lr, seed=seed) for seed in range(5)])
            cells.append(f"{found.mean():.1f} ± {found.std(ddof=1) / 5**0.5:.1f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
