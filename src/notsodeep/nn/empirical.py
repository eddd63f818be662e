"""The kernels of a network as it is: inner products of its gradients, and of its features."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._arguments import checked, not_negative, shown
from .._arrays import as_numbers, like
from .._maps import Gradients
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from .model import LIMITS, Model, as_batch, in_batches, naming
from .tangents import Tangents, check_mode, chosen, unchanged

Outputs = Literal["mean", "trace", "full"]


@checked
def empirical_ntk(
    model: nn.Module,
    X: Any,
    Y: Any = None,
    *,
    outputs: Outputs = "mean",
    parameters: Any = None,
    memory: float = LIMITS.gradient_bytes,
    progress: bool | None = None,
) -> Any:
    """Compute the inner products of the parameter gradients of any module's outputs, at its current weights.

    Gradient descent with small steps moves the outputs along this matrix. Only reverse mode is needed, so custom
    backward passes work, such as the implicit gradients of a DEQ.

    Parameters
    ----------
    model : nn.Module
        A map from rows or images to outputs, in which rows do not interact. Layers that average over the batch or drop
        units must be in evaluation mode.
    X, Y : arrays of shape (n, ...) and (m, ...)
        The inputs, taken to the dtype and the device of the parameters; Y is X unless given.
    outputs : {"mean", "trace", "full"}
        The mean or the sum of the kernels of the k outputs, or the kernels of all pairs of outputs.
    parameters : str, sequence of str, or callable, optional
        Names of parameters, with wildcards ("layer1.*"), or a function from a name to whether it is meant. By default
        all that train (``requires_grad``).
    memory : float
        The bytes that gradients may take at a time.
    progress : bool, optional
        Whether to show a progress bar; by default after two seconds, on a terminal or in a notebook.

    Returns
    -------
    array of shape (n, m), or (n, m, k, k) for ``outputs="full"``

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = torch.nn.Linear(2, 3)
    >>> nsd.empirical_ntk(model, torch.eye(2))  # x . y for the weights and 1 for the bias
    tensor([[2., 1.],
            [1., 2.]])
    """
    x, y, tangents = prepared(model, X, Y, parameters, memory)
    found = _contraction(tangents, x, y, outputs == "full", progress)
    return like(_finished(found, outputs, tangents.outputs), X)


@checked
def empirical_kernel(
    model: nn.Module, X: Any, names: list[str], rates: Mapping[str, float], progress: bool | None
) -> Tensor:
    """Return the mean over outputs with learning rates of parameters of their own."""
    x, _, tangents = prepared(model, X, None, names, LIMITS.gradient_bytes, rates)
    return _finished(_contraction(tangents, x, None, False, progress), "mean", tangents.outputs)


def prepared(
    model: nn.Module, X: Any, Y: Any, parameters: Any, memory: float, rates: Mapping[str, float] | None = None
) -> tuple[Tensor, Tensor | None, Tangents]:
    """Return the rows as the model takes them, and its gradients."""
    first = next(iter(chosen(model, parameters).values()))
    x, y = as_batch(X, "X", first), None if Y is None else as_batch(Y, "Y", first)
    if y is not None and y.shape[1:] != x.shape[1:]:
        raise InvalidInputError(f"X has rows of shape {tuple(x.shape[1:])} and Y of {tuple(y.shape[1:])}")
    if not not_negative("memory", memory):
        raise InvalidInputError("memory must be a positive number of bytes")
    return x, y, Tangents(model, x, parameters, memory, rates)


def _finished(found: Tensor, outputs: Outputs, count: int) -> Tensor:
    if not bool(torch.isfinite(found.sum())):
        raise ConvergenceError(
            f"the kernel is not finite: gradients of the model leave the range of {found.dtype}, or hold NaN. Look at "
            "its weights and at the scale of the rows"
        )
    return found.permute(0, 2, 1, 3).contiguous() if outputs == "full" else found / (count if outputs == "mean" else 1)


def _contraction(tangents: Tangents, x: Tensor, y: Tensor | None, full: bool, progress: bool | None) -> Tensor:
    """Sum the inner products of gradients over parameters, (n, m) or (n, k, m, k), for pairs of blocks."""
    other, count = x if y is None else y, tangents.outputs
    found = x.new_zeros((len(x), count, len(other), count) if full else (len(x), len(other)))
    units = tangents.units(max(len(x), len(other)), full)
    left, right = ([i for i, unit in enumerate(units) if unit[0].start < len(part)] for part in (x, other))
    pairs = [(i, j) for i in left for j in right if (full or units[i][1] == units[j][1]) and (y is not None or i <= j)]

    @functools.lru_cache(2)  # there is room for two blocks
    def gradients(second: bool, i: int) -> dict[str, Gradients]:
        return tangents.gradients((other if second else x)[units[i][0]], units[i][1])

    for i, j in track(pairs, len(pairs), "empirical kernel", progress):
        a, b, same = units[i], units[j], y is None and i == j
        mine, theirs = gradients(False, i), gradients(y is not None, j)
        part = sum((grads.inner(theirs[name], full) for name, grads in mine.items()), x.new_zeros(()))
        flipped = part.permute(2, 3, 0, 1) if full else part.mT
        _place(found, a, b, full).add_(0.5 * (part + flipped) if same else part)
        if y is None and not same:
            _place(found, b, a, full).add_(flipped)
    return found


def _place(found: Tensor, a: Any, b: Any, full: bool) -> Tensor:
    """Return the part of the result that belongs to two blocks of rows and outputs."""
    if not full:
        return found[a[0], b[0]]
    return found[a[0], a[1][0] : a[1][-1] + 1, b[0], b[1][0] : b[1][-1] + 1]


# ---- features ------------------------------------------------------------------------------------------------


@checked
def empirical_ck(model: nn.Module, X: Any, Y: Any = None, *, layer: str | None = None) -> Any:
    """Compute the Gram matrix of the features of any module, which is the kernel of its readout.

    Parameters
    ----------
    model, X, Y
        As in :func:`empirical_ntk`.
    layer : str, optional
        The name of a module (``model.named_modules()``) whose outputs are the features, flattened. By default they are
        what the last layer with parameters sees, and for the networks of ``nsd.nn`` what the readout sees.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 3))
    >>> nsd.empirical_ck(model, torch.tensor([[1.0, -1.0], [2.0, 1.0]]))
    tensor([[1., 2.],
            [2., 5.]])
    """
    check_mode(model)
    seen = features_of(model, X, "X", layer)
    if Y is None:
        found = seen @ seen.mT
        return like(_finished(0.5 * (found + found.mT), "trace", 1), X)
    return like(_finished(seen @ features_of(model, Y, "Y", layer).mT, "trace", 1), X)


def features_of(model: nn.Module, X: Any, name: str = "X", layer: str | None = None) -> Tensor:
    """Return the features of rows, (n, features), in batches."""
    rows = as_numbers(X, name)
    x = as_batch(rows, name, next(iter(model.parameters()), rows))
    if layer is None and isinstance(model, Model):
        return in_batches(model.features, x)
    watched = [model] if layer is None else [_named(model, layer)]
    if layer is None:
        watched = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    caught: list[Tensor] = []

    def hook(_: nn.Module, inputs: Any, output: Any) -> None:
        if inputs:  # a parametrised weight is a module that sees nothing
            caught.append(inputs[0] if layer is None else output)

    def one(batch: Tensor) -> Tensor:
        caught.clear()
        with naming("the model", batch):
            model(batch.clone())
        if not caught or not isinstance(caught[-1], Tensor) or len(caught[-1]) != len(batch):
            where = "no layer with parameters" if layer is None else f"the layer {layer!r}"
            raise InvalidInputError(
                f"{where} of {type(model).__name__} gives one row of features for each input; name another with layer="
            )
        return caught[-1].flatten(1).clone()

    hooks = [module.register_forward_hook(hook) for module in watched]
    try:
        with unchanged(model):
            return in_batches(one, x)
    finally:
        for handle in hooks:
            handle.remove()


def _named(model: nn.Module, layer: str) -> nn.Module:
    modules = dict(model.named_modules())
    if layer not in modules:
        raise InvalidInputError(f"layer must be one of {shown([name for name in modules if name])}, got {layer!r}")
    return modules[layer]


# ---- for solvers ---------------------------------------------------------------------------------------------


class EmpiricalKernel:
    """The empirical kernel of a module as a function of rows, and its products with vectors without the matrix.

    Parameters
    ----------
    model : nn.Module
    kernel : {"ntk", "ck"}
        The kernel of :func:`empirical_ntk`, with its mean over outputs, or of :func:`empirical_ck`.
    parameters, memory
        Options of :func:`empirical_ntk`.

    Examples
    --------
    >>> import torch
    >>> kernel = EmpiricalKernel(torch.nn.Linear(2, 3))
    >>> kernel.product(torch.eye(2), torch.eye(2), torch.ones(2, 1))
    tensor([[3.],
            [3.]])
    """

    check = True

    @checked
    def __init__(
        self,
        model: nn.Module,
        kernel: Literal["ntk", "ck"] = "ntk",
        *,
        parameters: Any = None,
        memory: float = LIMITS.gradient_bytes,
    ) -> None:
        self.network, self.kernel, self.parameters, self.memory = model, kernel, parameters, memory

    def __call__(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        """Return the matrix of rows X against rows Y, or of X with itself, in the type of X."""
        if self.kernel == "ck":
            return empirical_ck(self.network, X, Y).to(X)
        found: Tensor = empirical_ntk(self.network, X, Y, parameters=self.parameters, memory=self.memory).to(X)
        return found

    def diagonal(self, X: Tensor) -> Tensor:
        """Return k(x, x) of every row."""
        if self.kernel == "ck":
            return features_of(self.network, X).square().sum(1).to(X)
        x, _, tangents = prepared(self.network, X, None, self.parameters, self.memory)
        found = x.new_zeros(len(x))
        for rows, outputs in tangents.units(len(x)):
            found[rows] += sum(grads.squares() for grads in tangents.gradients(x[rows], outputs).values())
        return (found / tangents.outputs).to(X)

    def product(self, X: Tensor, Y: Tensor, v: Tensor, progress: bool | None = False) -> Tensor:
        """Return k(X, Y) v for columns v, (m, c), by the matrix, or without it if that is cheaper."""
        if self.kernel == "ck":
            left, right = (features_of(self.network, rows) for rows in (X, Y))
            return (left @ (right.mT @ v.to(right))).to(v)
        x, y, tangents = prepared(self.network, X, Y, self.parameters, self.memory)
        assert y is not None
        entries = sum(leaf.numel() for leaf in tangents.leaves.values())
        rows = len(x) + len(y)
        if len(x) * len(y) * tangents.product < rows * (2.0 * v.shape[1] * entries + 3.0 * tangents.forward):
            parts = [_contraction(tangents, part, y, False, progress) @ v.to(y) for part in x.split(2048)]
            return (torch.cat(parts) / tangents.outputs).to(v)
        return (_matrix_free(tangents, x, y, v.to(y), progress) / tangents.outputs).to(v)


def _matrix_free(tangents: Tangents, x: Tensor, y: Tensor, v: Tensor, progress: bool | None) -> Tensor:
    """Sum J_l(X) J_l(Y)' v over outputs l; the gradients of a block of rows at a time."""
    entries = sum(leaf.numel() for leaf in tangents.leaves.values())
    few = max(1, int(0.5 * tangents.memory / (x.element_size() * entries)))
    found = x.new_zeros(len(x), v.shape[1])
    blocks = [[rows for rows, some in tangents.units(len(part)) if some[0] == 0] for part in (y, x)]
    jobs = [(out, c) for out in range(tangents.outputs) for c in range(0, v.shape[1], few)]
    for out, c in track(jobs, len(jobs), "empirical kernel", progress):
        some = slice(c, c + few)
        pulled: dict[str, Tensor] = {}
        for rows in blocks[0]:
            for name, grads in tangents.gradients(y[rows], [out]).items():
                part = grads.pull(v[rows, some])
                pulled[name] = pulled[name] + part if name in pulled else part
        for rows in blocks[1]:
            for name, grads in tangents.gradients(x[rows], [out]).items():
                found[rows, some] += grads.push(pulled[name])[:, 0]
    return found
