"""Training from the zero function: the initial outputs are subtracted, so that what training does is compared and not
the draw of the weights. All learners take gradient steps on half the mean of squares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

import notsodeep as nsd


def in_batches(function: Callable[[Tensor], Tensor], X: Tensor, size: int = 1024) -> Tensor:
    """Apply a function to rows, some at a time, without gradients."""
    with torch.no_grad():
        return torch.cat([function(rows) for rows in X.split(size)])


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Return one column per class, 1 for the class of a row and 0 elsewhere."""
    return torch.nn.functional.one_hot(y, classes).to(like)


class Learner:
    """A network minus its initial self, with an optimiser; ``readout=True`` trains the readout on frozen features."""

    def __init__(
        self, model: nsd.nn.Model, X: Tensor, targets: Tensor, X_test: Tensor, lr: float, readout: bool = False
    ) -> None:
        self.forward: Callable[[Tensor], Tensor] = model.read if readout else model
        self.X, self.X_test = (in_batches(model.features, rows) if readout else rows for rows in (X, X_test))
        self.targets = targets + in_batches(self.forward, self.X)
        self.start = in_batches(self.forward, self.X_test)
        self.optimiser = torch.optim.SGD([model.readout] if readout else model.parameters(), lr)

    def descend(self, batches: Sequence[Tensor]) -> None:
        """Take one step for each batch of row numbers."""
        for rows in batches:
            self.optimiser.zero_grad()
            loss = 0.5 * (self.forward(self.X[rows]) - self.targets[rows]).square().sum(-1).mean()
            loss.backward()
            self.optimiser.step()

    def outputs(self) -> Tensor:
        """Return what has been learned, on the test rows."""
        return in_batches(self.forward, self.X_test) - self.start


class Limit:
    """A DEQ of infinite width: the same gradient descent, in the functions that its tangent kernel spans."""

    def __init__(self, deq: nsd.DEQ, X: Tensor, targets: Tensor, X_test: Tensor, lr: float) -> None:
        self.kernel = nsd.ntk(deq, X.cpu(), torch.cat([X, X_test]).cpu()).to(X.device)
        self.values = X.new_zeros(len(X) + len(X_test), targets.shape[1])
        self.targets, self.lr = targets, lr

    def descend(self, batches: Sequence[Tensor]) -> None:
        """Take one step for each batch of row numbers."""
        for rows in batches:
            slope = (self.values[rows] - self.targets[rows]) / len(rows)
            self.values -= self.lr * self.kernel[rows].mT @ slope

    def outputs(self) -> Tensor:
        """Return what has been learned, on the test rows."""
        return self.values[len(self.targets) :].clone()


def in_step(
    learners: Mapping[str, Learner | Limit], n: int, batch_size: int, seed: int, epochs: int, looks: int
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Let all learners descend on the same batches; yield the number of steps and the outputs, ``looks`` per epoch."""
    device = next(iter(learners.values())).targets.device
    for epoch in range(epochs):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        batches = order.to(device).split(batch_size)
        length = -(-len(batches) // looks)
        for first in range(0, len(batches), length):
            part = batches[first : first + length]
            for learner in learners.values():
                learner.descend(part)
            yield len(part), {name: learner.outputs() for name, learner in learners.items()}
