"""Gradients of any module's outputs in its parameters, row by row, from backward passes of whole batches.

The gradient of a matrix at a row is the outer product of what the matrix sees and of the gradient behind it. Both are
recorded where torch multiplies by a parameter; gradients in other parameters are written out.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from .._arguments import shown
from .._maps import Gradients, Product
from ..activations import Activation
from ..errors import InvalidInputError, warn
from .implicit import equilibrium
from .model import LIMITS, naming

Parameters = str | Iterable[str] | Callable[[str], bool] | None
Leaves = dict[str, Tensor]
_AGREE = 0.01  # relative; a solver's tolerance is below it, and another function is not


@dataclass(eq=False)
class _Use:
    """A product with a parameter: the zeros added to its result, and what the parameter saw (None for a bias)."""

    tap: Tensor
    seen: Tensor
    windows: Callable[[Tensor], Tensor] | None  # from what was seen to (n, positions, i)
    behind: Callable[[Tensor], Tensor]  # from a gradient in the result to (n, o, positions)

    def sizes(self) -> tuple[int, int, int]:
        """Return the number of positions and the two sides of the outer product."""
        _, left, positions = self.behind(self.tap).shape
        return positions, left, 0 if self.windows is None else self.windows(self.seen).shape[-1]


class _Taps(TorchFunctionMode):
    """Record each product with one of these parameters, and cut it off from the parameter itself."""

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        self.names = {id(leaf): name for name, leaf in leaves.items()}
        self.uses: dict[str, list[_Use]] = {name: [] for name in leaves}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _RULES.get(func) if torch.is_grad_enabled() else None
        found = None if rule is None else rule(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found

    def record(
        self,
        result: Callable[..., Tensor],
        seen: Tensor,
        weights: Sequence[Any],
        windows: Callable[[Tensor], Tensor],
        behind: Callable[[Tensor], Tensor],
    ) -> Tensor | None:
        """Return the result with zeros added, whose gradients are wanted; ``weights`` are a matrix and its bias."""
        names = [self.names.get(id(weight)) for weight in weights]
        if not any(names) or seen.ndim < 2:
            return None
        out = result(*[w.detach() if name else w for w, name in zip(weights, names, strict=True)])
        tap = torch.zeros_like(out, requires_grad=True)
        copied = seen.detach().clone()  # the model may go on to change it in place
        for name, rule in zip(names, (windows, None), strict=False):
            if name:
                self.uses[name].append(_Use(tap, copied, rule, behind))
        return out + tap


def _linear(taps: _Taps, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    def rows(part: Tensor) -> Tensor:
        return part.reshape(len(part), -1, part.shape[-1])

    return taps.record(lambda w, b: functional.linear(x, w, b), x, (weight, bias), rows, lambda part: rows(part).mT)


def _conv2d(
    taps: _Taps,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    size, steps = weight.shape[2:], (dilation, dilation) if isinstance(dilation, int) else tuple(dilation)
    sides = [d * (k - 1) for d, k in zip(steps, size, strict=True)]
    if groups != 1 or x.ndim != 4 or (padding == "same" and any(side % 2 for side in sides)):
        return None
    around: Any = {"same": [side // 2 for side in sides], "valid": 0}[padding] if isinstance(padding, str) else padding

    def windows(part: Tensor) -> Tensor:
        return functional.unfold(part, size, dilation=steps, padding=around, stride=stride).mT

    def result(w: Tensor, b: Tensor | None) -> Tensor:
        return functional.conv2d(x, w, b, stride, padding, dilation)

    return taps.record(result, x, (weight, bias), windows, lambda part: part.flatten(2))


def _equilibrium(
    taps: _Taps, recurrent: Tensor, drive: Tensor, layer: Product, phi: Activation, options: Any
) -> Tensor | None:
    """Record u = phi(drive + gain A u): the gradient in A is that in the drive times what A sees of the equilibrium."""
    name = taps.names.get(id(recurrent))
    if name is None:
        return None
    tap = torch.zeros_like(drive, requires_grad=True)
    u = equilibrium(recurrent.detach(), drive + tap, layer, phi, options)

    def behind(part: Tensor) -> Tensor:
        return part.unflatten(1, (len(recurrent), -1))

    taps.uses[name].append(_Use(tap, u.detach(), lambda part: layer.gain * layer.windows(part, recurrent), behind))
    return u


_RULES: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    functional.conv2d: _conv2d,
    equilibrium: _equilibrium,
}


class Tangents:
    """The gradients of a module's outputs at rows, in the parameters that are chosen.

    ``x`` holds rows to look at the module with; they and all others have the dtype and device of the parameters.
    ``rates`` are learning rates by name, 1 where there is none: gradients are multiplied by their roots.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        parameters: Parameters = None,
        memory: float = LIMITS.gradient_bytes,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.model, self.memory, self.rates = model, memory, rates or {}
        check_mode(model)
        self.leaves: Leaves = {name: p.detach() for name, p in chosen(model, parameters).items()}
        with graphs(), unchanged(model):
            probe = torch.cat([x[:1], 0.5 * x[:1] if torch.equal(x[0], x[-1]) else x[-1:]])  # two different rows
            self.outputs = self._check_rows(probe)
            self._choose_tapped(probe)
            self._mapped = bool(self.written) and self._can_map(probe)

    # -- what the module is ------------------------------------------------------------------------------
    def call(self, leaves: Leaves, x: Tensor) -> Tensor:
        """Return the outputs at rows, (n, k), with these values of the parameters."""
        out = functional_call(self.model, leaves, (x.clone(),))  # the module may work in place
        return out.reshape(len(x), -1) if isinstance(out, Tensor) else out

    def _check_rows(self, probe: Tensor) -> int:
        """Return the number of outputs; refuse outputs that are no function of each row by itself."""
        seen = []
        for x in (probe[:1], probe):
            with naming("the model", x), torch.no_grad():
                seen.append(functional_call(self.model, self.leaves, (x.clone(),)))
            check_outputs(seen[-1], len(x))
        alone, both = (out.reshape(len(out), -1) for out in seen)
        if float((both[:1] - alone).norm()) > _AGREE * float(both.norm()):
            raise InvalidInputError(
                "the outputs of a row depend on the other rows of its batch, or on chance: the model must be a "
                "function of each row by itself. Call model.eval() if it has such layers"
            )
        return alone.shape[1]

    def _choose_tapped(self, probe: Tensor) -> None:
        """Find the parameters of products that see each row by itself and that are used nowhere else."""
        looks = [self._tapped_call(probe[:rows], self.leaves)[1] for rows in (1, 2)]
        names = [
            name
            for name in self.leaves
            if all(use.seen.shape[0] == rows for rows, uses in zip((1, 2), looks, strict=True) for use in uses[name])
        ]
        tracked = {name: leaf.clone().requires_grad_() for name, leaf in self.leaves.items()}
        out, uses = self._tapped_call(probe, {name: tracked[name] for name in names}, tracked)
        if not out.requires_grad:
            raise InvalidInputError(
                f"the outputs do not depend on the parameters {shown(list(tracked))} by a gradient; choose others"
            )
        found = torch.autograd.grad(out.sum(), list(tracked.values()), retain_graph=True, allow_unused=True)
        self.written = [name for name, grad in zip(tracked, found, strict=True) if grad is not None]
        self.tapped = [name for name in names if uses[name] and name not in self.written]
        if unused := [name for name in tracked if name not in (*self.written, *self.tapped)]:
            warn(
                f"no gradient of the outputs reaches {shown(unused)}; torchdeq's layers have gradients in training "
                "mode alone"
            )
        self._measure({name: uses[name] for name in self.tapped})

    def _measure(self, uses: dict[str, list[_Use]]) -> None:
        """Count the numbers held for an output and for a row, and the multiplications of an inner product."""
        written = float(sum(self.leaves[name].numel() for name in self.written))
        self.held, self.seen, self.kept, self.product, self.forward = 2.0 * written, 1.0, written, written, written
        for each in uses.values():
            positions, left, right = sum(use.sizes()[0] for use in each), *each[0].sizes()[1:]
            factored = positions == 1 and right > 0
            entries = left if factored else left * max(right, 1)
            self.held += 2.0 * positions * left + (0 if factored else entries)
            self.seen += positions * (left + right)
            self.product += entries
            self.kept += entries + (right if factored else 0)
            self.forward += positions * left * right

    def _can_map(self, probe: Tensor) -> bool:
        """Say whether torch's vmap takes the module, and gives the gradients of single rows."""
        looped = self._looped(probe, [0])
        with contextlib.suppress(Exception):  # of any kind: modules are free in what they do
            mapped = self._mapped_rows(probe, [0])
            return all(_near(mapped[name].left, looped[name].left) for name in looped)
        return False

    # -- gradients ---------------------------------------------------------------------------------------
    def _tapped_call(self, x: Tensor, tapped: Leaves, leaves: Leaves | None = None) -> tuple[Tensor, Any]:
        taps = _Taps(tapped)
        with taps:
            out = self.call(leaves or self.leaves, x)
        return out, taps.uses

    def gradients(self, x: Tensor, outputs: Sequence[int]) -> dict[str, Gradients]:
        """Return the gradients of these outputs at each row, by parameter; some rows are found at a time."""
        together = int(min(0.125 * self._numbers / (len(outputs) * self.held + self.seen), len(x)))
        parts = [self._found(part, outputs) for part in x.split(max(1, together))]
        if len(parts) == 1:
            return parts[0]
        found = {}
        for name in list(parts[0]):
            lefts, rights = zip(*(part.pop(name) for part in parts), strict=True)
            found[name] = Gradients(torch.cat(lefts), None if rights[0] is None else torch.cat(rights))
        return found

    def _found(self, x: Tensor, outputs: Sequence[int]) -> dict[str, Gradients]:
        with graphs(), unchanged(self.model):
            found = self._factored(x, outputs) if self.tapped else {}
            if self.written:
                found |= self._mapped_rows(x, outputs) if self._mapped else self._looped(x, outputs)
        for name in found.keys() & self.rates.keys():
            left, right = found[name]
            found[name] = Gradients(math.sqrt(self.rates[name]) * left, right)
        return found

    def _factored(self, x: Tensor, outputs: Sequence[int]) -> dict[str, Gradients]:
        out, uses = self._tapped_call(x, {name: self.leaves[name] for name in self.tapped})
        taps = list({id(use.tap): use.tap for name in self.tapped for use in uses[name]}.values())
        each = [torch.autograd.grad(out[:, i].sum(), taps, retain_graph=True, allow_unused=True) for i in outputs]
        behind = {id(tap): [grads[i] for grads in each] for i, tap in enumerate(taps)}
        return {name: _joined(name, uses[name], behind, len(x)) for name in self.tapped}

    def _mapped_rows(self, x: Tensor, outputs: Sequence[int]) -> dict[str, Gradients]:
        def one(part: Leaves, row: Tensor) -> Tensor:
            return self.call({**self.leaves, **part}, row[None])[0, list(outputs)]

        found = vmap(jacrev(one), (None, 0))({name: self.leaves[name] for name in self.written}, x)
        return {name: Gradients(grad.flatten(2)) for name, grad in found.items()}

    def _looped(self, x: Tensor, outputs: Sequence[int]) -> dict[str, Gradients]:
        leaves = {name: self.leaves[name].clone().requires_grad_() for name in self.written}
        found: list[list[Tensor]] = []
        for row in x:
            out = self.call({**self.leaves, **leaves}, row[None])[0]
            each = [torch.autograd.grad(out[i], list(leaves.values()), retain_graph=True) for i in outputs]
            found.append([torch.stack([grad.flatten() for grad in grads]) for grads in zip(*each, strict=True)])
        return {
            name: Gradients(torch.stack(grads)) for name, grads in zip(leaves, zip(*found, strict=True), strict=True)
        }

    # -- memory ------------------------------------------------------------------------------------------
    @property
    def _numbers(self) -> float:
        return self.memory / next(iter(self.leaves.values())).element_size()

    def units(self, rows: int, full: bool = False) -> list[tuple[slice, list[int]]]:
        """Return blocks of rows and of outputs, of which three quarters of the memory keep two.

        All pairs of outputs need them together. Otherwise so many go together that all rows can be kept.
        """
        few = self.outputs if full else int(0.75 * self._numbers / (rows * self.kept))
        few = max(1, min(few, self.outputs, int(0.125 * self._numbers / self.held)))
        block = max(1, int(0.375 * self._numbers / (few * self.kept)))
        outputs = list(range(self.outputs))
        return [
            (slice(i, i + block), outputs[j : j + few])
            for j in range(0, self.outputs, few)
            for i in range(0, rows, block)
        ]


def _joined(name: str, uses: list[_Use], behind: dict[int, list[Any]], rows: int) -> Gradients:
    """Put the uses of one parameter side by side, as positions of one."""
    reached = [(use, grads) for use in uses if (grads := behind[id(use.tap)])[0] is not None]
    if any(len(use.seen) != rows for use in uses):
        raise InvalidInputError(
            f"the model hands {name} some rows of a batch alone, so that gradients of single rows are lost; leave it "
            "out (parameters=)"
        )
    if not reached:
        like = uses[0]
        reached = [(like, [torch.zeros_like(like.tap)] * len(behind[id(like.tap)]))]
    lefts = [torch.stack([use.behind(grad) for grad in grads], 1) for use, grads in reached]
    if reached[0][0].windows is None:
        return Gradients(torch.cat(lefts, -1).sum(-1))
    rights = [use.windows(use.seen) for use, _ in reached if use.windows is not None]
    if len(reached) == 1:
        return Gradients.of(lefts[0], rights[0])
    return Gradients.of(torch.cat(lefts, -1), torch.cat(rights, 1))


def goes_forward(call: Callable[[Leaves], Tensor], leaves: Leaves) -> bool:
    """Say whether forward mode is there and is the transpose of reverse mode: <v, J w> = <J' v, w>, which is not 0."""
    generator = torch.Generator().manual_seed(0)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    with contextlib.suppress(Exception):  # of any kind: modules are free in what they do
        out, back = vjp(call, leaves)[:2]
        v = drawn(out)
        grads = back(v)[0]
        directions = {name: drawn(leaf) * (grads[name].norm() / leaf.numel() ** 0.5) for name, leaf in leaves.items()}
        along = jvp(call, (leaves,), (directions,))[1].detach()
        pulled = sum(float((grads[name] * directions[name]).detach().sum()) for name in leaves)
        size = float(v.norm() * along.norm())
        return size > 0.0 and abs(float((v * along).sum()) - pulled) <= _AGREE * size
    return False


def _near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= _AGREE * float(b.norm())


@contextlib.contextmanager
def graphs() -> Iterator[None]:
    """Let autograd work, whatever the caller has switched off."""
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        for words in ("There is a performance drop", "`torch.jit.script`"):  # of torch about itself: vmap, forward mode
            warnings.filterwarnings("ignore", message=words)
        yield


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put the parameters and buffers of a module back, which calls may change.

    torch's functional_call leaves its own tensors in a layer that a module holds under three names.
    """
    options: Any = {"recurse": False, "remove_duplicate": False}
    tables = [(m, [*m.named_parameters(**options), *m.named_buffers(**options)]) for m in model.modules()]
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, table in tables:
            for name, before in table:
                if getattr(module, name) is not before:
                    setattr(module, name, before)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):  # else graphs may go on to use it
                    buffer.copy_(value)


# ---- what is refused -----------------------------------------------------------------------------------------


def _are_names(given: Any) -> bool:
    return isinstance(given, Collection) and all(isinstance(one, str) for one in given)


def chosen(model: nn.Module, parameters: Parameters = None) -> Leaves:
    """Return the parameters that are asked for, by name; those that train unless asked otherwise."""
    every: dict[str, Tensor] = dict(model.named_parameters())
    given = [parameters] if isinstance(parameters, str) or getattr(parameters, "ndim", 1) == 0 else parameters
    if not every:
        raise InvalidInputError(f"{type(model).__name__} has no parameters: there is no gradient to take")
    if parameters is None:
        found = {name: p for name, p in every.items() if p.requires_grad}
        reason = "every parameter is frozen (requires_grad=False); thaw some, or name them with parameters="
    elif isinstance(given, nn.Module) or not (callable(given) or _are_names(given)):  # a module is no such function
        raise InvalidInputError(f"parameters must be names, patterns or a function of a name, got {shown(parameters)}")
    else:
        patterns: Any = given
        wanted = given if callable(given) else lambda name: any(fnmatch.fnmatch(name, one) for one in patterns)
        found = {name: p for name, p in every.items() if wanted(name)}
        reason = f"parameters={shown(parameters)} chooses none of {shown(list(every))}"
    found = {name: p for name, p in found.items() if p.is_floating_point()}
    if not found:
        raise InvalidInputError(reason)
    return found


def check_mode(model: nn.Module) -> None:
    """Refuse layers whose outputs depend on the batch or on chance."""
    for name, layer in model.named_modules():
        random = isinstance(layer, _DropoutNd) and layer.p > 0 and layer.training
        batch = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        if random or batch:
            what = "drops units at random" if random else "averages over the batch"
            raise InvalidInputError(
                f"{name or 'the model'} ({type(layer).__name__}) {what}: a kernel needs outputs that depend on one row "
                f"alone. Call {'model.eval()' if layer.training else 'it with track_running_stats=True'} first"
            )


def check_outputs(out: Any, rows: int) -> None:
    """Refuse what is no tensor of real outputs with one row for each input."""
    if not isinstance(out, Tensor):
        raise InvalidInputError(
            f"the model returns a {type(out).__name__}; wrap it in a module that returns one tensor of outputs"
        )
    if not out.is_floating_point():
        raise InvalidInputError(f"the model returns {out.dtype}, which has no gradient; return real outputs (logits)")
    if out.ndim < 1 or len(out) != rows or not out.numel():
        raise InvalidInputError(
            f"the model must return one row of outputs for each input, got shape {tuple(out.shape)} for {rows} rows"
        )
