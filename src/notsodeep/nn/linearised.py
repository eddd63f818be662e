"""A module to first order around its weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, jvp

from .._arguments import checked
from ..errors import InvalidInputError
from .model import naming
from .tangents import check_mode, check_outputs, chosen, goes_forward, graphs, unchanged


@checked
def linearise(model: nn.Module) -> LinearisedModel:
    """Return f(x; w0) + df/dw (w - w0) as a module: the model to first order around its weights w0.

    Before training its outputs equal those of the model. Training its weights w, a copy of the model's, shows what a
    fixed kernel learns: the empirical NTK of the model at w0.

    Parameters
    ----------
    model : nn.Module
        It needs forward-mode derivatives, which torch's functions and the networks of ``nsd.nn`` have. It is copied.

    Returns
    -------
    LinearisedModel
        With the weights w in ``.model`` and w0 in ``.start``.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), in_features=3, width=16, out_features=2)
    >>> x = torch.ones(4, 3)
    >>> bool(torch.allclose(nsd.linearise(model)(x), model(x)))
    True
    """
    return LinearisedModel(model)


class LinearisedModel(nn.Module):
    """Run a model to first order around its weights at the start.

    Parameters
    ----------
    model : nn.Module
        The model, of which two copies are kept: ``start`` never changes, the weights of ``model`` train.

    Examples
    --------
    >>> import torch
    >>> sum(p.requires_grad for p in LinearisedModel(torch.nn.Linear(2, 3)).parameters())
    2
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_mode(model)
        self._trained = list(chosen(model))
        self.start, self.model = copy.deepcopy(model).requires_grad_(False), copy.deepcopy(model)
        self._checked = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the model at the start, and their change to first order."""
        now, then = dict(self.model.named_parameters()), dict(self.start.named_parameters())
        at: dict[str, Tensor] = {name: then[name] for name in self._trained}

        def outputs(leaves: dict[str, Tensor]) -> Any:
            with unchanged(self.start):
                return functional_call(self.start, leaves, (x.clone(),))  # the model may work in place

        if not self._checked:
            with naming("the model", x):
                check_outputs(outputs(at), len(x))
            with graphs():
                if not goes_forward(outputs, at):
                    raise InvalidInputError(
                        "the model has no forward-mode derivatives that agree with its gradients (a custom backward "
                        "pass, as in torchdeq's layers?), or none at all; nsd.empirical_ntk needs no forward mode"
                    )
            self._checked = True
        value, change = jvp(outputs, (at,), ({name: now[name] - then[name] for name in self._trained},))[:2]
        return value + change

    def train(self, mode: bool = True) -> LinearisedModel:
        """Keep the mode in which the model was given."""
        self.training = mode
        return self
