"""What the DEQ and the explicit network have in common: seeded Gaussian weights, what of them trains, the readout."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import not_negative, shown, whole_seed
from .._arrays import as_device, as_numbers, as_rows
from .._words import Kernel, Parametrisation
from ..errors import ConvergenceError, InvalidInputError, NotSoDeepError
from ..kernels import kernels_of
from ..networks import KERNELS


@dataclass(frozen=True)
class NetworkLimits:
    """The tuning numbers of this room."""

    onnx_bytes: int = 1 << 30  # weights above this go to a second file: one ONNX file holds less than two GiB
    scores: tuple[str, ...] = ("margin", "softmax margin", "head", "own")  # by which a rung says how sure it is
    least_coverage: float = 0.05  # a student that answers less of the rows than that costs more than it saves
    most_rows: int = 100_000  # held of an iterable: 300 MB of MNIST's images, and more than any certificate needs
    noise: float = 0.1  # of mixed rows at most, over the standard deviation of the data: images stay recognisable
    least_pool: int = 8192  # mixed rows that the model answers before a student is trained, at least, ...
    pool_share: int = 4  # ... and for each row of the data
    head_steps: int = 600  # of a small network that learns a score from a few thousand rows: a second
    waiting: int = 1 << 26  # outputs that predict holds while it collects rows for the model: 256 MB
    gradient_bytes: float = 2.0**29  # of gradients held at a time: those of 100 rows and a million weights
    # where classes are proven: states shorter than the first number are looked at after so many steps, least and most
    looks: tuple[tuple[int, int, int], ...] = ((128, 2, 4), (512, 1, 4))
    batch: int = 1024  # rows that are evaluated together: enough to fill two cores or a GPU at width 1,024


LIMITS = NetworkLimits()


class Factory(TypedDict, total=False):
    """The type of the weights and where they lie, as torch's own modules take them."""

    dtype: torch.dtype | None
    device: torch.device | str | None


class Model(nn.Module):
    """A network of finite width, with one factor per weight matrix in its forward pass.

    With ``parametrisation="ntk"``, that of the theory, entries of a weight matrix have variance one. With
    ``"standard"`` they have variance 1 / fan-in and the factor sqrt(fan-in) moves to the inputs: the same function at
    the start, up to rounding, whose weights move at the usual rates, such as 1e-3 with Adam.

    ``readout`` has one row per output and one column per feature. The features are the last hidden layer, and also the
    inputs where the readout of a DEQ is a pre-activation. ``bias``, which the theory does without, starts at zero.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> isinstance(nsd.nn.ENN(nsd.ENN(["tanh"]), 3, 8, 2), nsd.nn.Model)
    True
    """

    spec: Any
    in_features: int
    width: int
    out_features: int
    kernel: Kernel
    parametrisation: Parametrisation
    readout: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()

    def features(self, x: Tensor) -> Tensor:
        """Return what the readout sees of inputs of shape (..., in_features)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, of shape (..., out_features)."""
        return self.read(self.features(x))

    def read(self, features: Tensor) -> Tensor:
        """Return the outputs, of shape (..., out_features), that belong to features."""
        return nn.functional.linear(self._spread(features, self.readout), self.readout, self.bias)

    def _factor(self, weight: Tensor) -> float:
        """Return what the inputs of a weight matrix are multiplied by: sqrt(fan-in) in the standard parametrisation."""
        return 1.0 if self.parametrisation == "ntk" else math.sqrt(weight.shape[1])

    def _spread(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the inputs of a weight matrix times their factor."""
        return x if self.parametrisation == "ntk" else self._factor(weight) * x

    def hidden_weights(self) -> list[tuple[str, nn.Parameter]]:
        """Return the hidden weights with their names, the input weights first."""
        raise NotImplementedError

    def set_kernel(self, kernel: Kernel) -> None:
        """Choose what trains: the readout ("ck"), every weight ("ntk"), all but the input weights ("ntk_frozen")."""
        if kernel not in KERNELS:
            raise InvalidInputError(f"kernel must be one of {KERNELS}, got {shown(kernel)}")
        self.kernel = kernel
        for index, (name, weight) in enumerate(self.hidden_weights()):
            inner = index > 0 and name != "offset"
            weight.requires_grad_(kernel == "ntk" or (kernel == "ntk_frozen" and inner))

    def _rates(self) -> Mapping[str, float]:
        """Return learning-rate multipliers by parameter name; 1 where there is none."""
        return {}

    def theory_rates(self) -> dict[str, float]:
        """Return the learning rates, by name, at which the empirical NTK approaches that of the specification."""
        rates = self._rates()
        weights = [*self.hidden_weights(), ("readout", self.readout)]
        fan = {name: w[0].numel() if self.parametrisation == "standard" and w.ndim > 1 else 1 for name, w in weights}
        return {name: rates.get(name, 1.0) / fan[name] for name in fan}

    def infinite_kernel(self, X: Any) -> Any:
        """Return the exact kernel of the specification, (n, n), for the weights that train."""
        rates = getattr(self, "learning_rates", None)
        return kernels_of(self.spec, X, kernels=(self.kernel,), learning_rates=rates, check=False)[self.kernel]

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return one group per trained weight matrix for ``torch.optim``; multiples of ``lr`` belong to ``"ntk"``."""
        rates = self._rates() if self.parametrisation == "ntk" else {}
        weights = [*self.hidden_weights(), ("readout", self.readout)]
        weights += [] if self.bias is None else [("bias", self.bias)]
        return [
            {"params": [weight], "lr": lr * rates.get(name, 1.0), "name": name}
            for name, weight in weights
            if weight.requires_grad
        ]

    def config(self) -> dict[str, Any]:
        """Return a JSON document from which the same architecture can be built."""
        plain = ("in_features", "width", "out_features", "kernel", "parametrisation")
        own = {name: getattr(self, name) for name in plain}
        return {"spec": self.spec.to_dict(), "bias": self.bias is not None, **own}

    def extra_repr(self) -> str:
        """Return what ``print`` shows between the brackets."""
        sizes = f"in_features={self.in_features}, width={self.width}, out_features={self.out_features}"
        trained = {"ck": "the readout alone", "ntk": "all weights", "ntk_frozen": "all but the input weights"}
        told = f"kernel={self.kernel!r} (trains {trained[self.kernel]})"
        return f"{self.spec!r}, {sizes}, {told}, parametrisation={self.parametrisation!r}"


class Gaussian:
    """Normal parameters from one seed: the same numbers on every device, of variance one or (standard) 1 / fan-in."""

    def __init__(
        self, seed: int, parametrisation: Parametrisation, dtype: torch.dtype | None = None, device: Any = None
    ) -> None:
        self._standard = parametrisation == "standard"
        self._generator = torch.Generator().manual_seed(whole_seed(seed))
        self._dtype, self._device = dtype or torch.get_default_dtype(), as_device(device)

    def parameter(self, *shape: int) -> nn.Parameter:
        return self._scaled(self._draw(*shape))

    def _scaled(self, draw: Tensor) -> nn.Parameter:
        size = draw.shape[1] if self._standard and draw.ndim == 2 else 1
        wide = draw.to(torch.promote_types(self._dtype, torch.float32)) / math.sqrt(size)  # rounded once
        return nn.Parameter(wide.to(self._device, self._dtype))

    def _draw(self, *shape: int) -> Tensor:
        try:
            return torch.randn(*shape, generator=self._generator, dtype=torch.float32)
        except (RuntimeError, TypeError, OverflowError):  # torch has no class of its own for it
            told = " x ".join(shown(size) for size in shape)
            raise InvalidInputError(f"{told} weights do not fit into memory; take a smaller width") from None

    def orthogonal(self, rows: int, columns: int) -> nn.Parameter:
        """Draw rows that are Gaussian vectors, each by itself exactly, but orthogonal in blocks (Yu et al. 2016)."""
        size = min(rows, columns)
        blocks = -(-rows // size)
        draw = self._draw(blocks, columns, size).to(torch.promote_types(self._dtype, torch.float32))
        q, r = torch.linalg.qr(draw)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        # R is independent of Q, so the lengths of the drawn vectors are right for the orthogonal ones
        rotated = (q * draw.norm(dim=1, keepdim=True)).mT.reshape(-1, columns)[:rows]
        return self._scaled(rotated.contiguous())

    def bias(self, size: int, wanted: bool) -> nn.Parameter | None:
        return nn.Parameter(torch.zeros(size, dtype=self._dtype, device=self._device)) if wanted else None


@contextlib.contextmanager
def naming(what: str, x: Tensor) -> Iterator[None]:
    """Turn what a function of somebody else raises into a refusal that names it and the rows it was given."""
    try:
        yield
    except NotSoDeepError:
        raise
    except Exception as error:
        hint = ""
        if isinstance(error, TypeError) and "argument" in str(error):
            hint = ". Rows are one array: a model of several inputs takes them joined, and splits them itself"
        elif "dtype" in str(error) or "scalar type" in str(error):
            hint = ". Give rows of the type that it needs, or let it convert them, as with x.long() or x.double()"
        told = f"{what} fails on rows of shape {tuple(x.shape)} and {x.dtype}: {error}{hint}"
        raise InvalidInputError(told) from error


def check_input(x: Tensor, in_features: int, dtype: torch.dtype) -> None:
    """Refuse what is no batch of rows for this network; under autocast rows may have another type."""
    if not isinstance(x, Tensor) or x.ndim < 1 or x.shape[-1] != in_features:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInputError(f"expected a tensor of shape (..., {in_features}), got {shape}")
    if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
        raise InvalidInputError(f"x is {x.dtype}, the weights are {dtype}: pass x.to({dtype}), or model.to({x.dtype})")


# ---- the readout in closed form ------------------------------------------------------------------------------


def in_batches(function: Callable[[Tensor], Tensor], X: Tensor, batch_size: int = LIMITS.batch) -> Tensor:
    """Apply a function to all rows, batch by batch, without derivatives."""
    with torch.no_grad():
        return torch.cat([function(batch) for batch in X.split(batch_size)])


def median_times(
    calls: Sequence[Callable[[Tensor], Any]], x: Tensor, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each call, measured in turns; the first turn, which warms up, is not counted."""
    wait = torch.cuda.synchronize if x.is_cuda else lambda: None
    times: list[list[float]] = [[] for _ in calls]
    with torch.no_grad():
        for _ in range(repeats + 1):
            for call, found in zip(calls, times, strict=True):
                wait()
                started = clock()
                call(x)
                wait()
                found.append(clock() - started)
    return [statistics.median(found[1:]) for found in times]


def ridge_readout(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return argmin_R |F R' - Y|^2 / n + ridge |R|^2, shape (outputs, width), by Cholesky in double precision."""
    if not_negative("ridge", ridge) == 0.0:
        raise InvalidInputError("ridge must be positive, got 0")
    n, width = features.shape
    F, Y = features.to(torch.float64), targets.to(torch.float64)
    if not bool(torch.isfinite(F).all()):
        raise InvalidInputError(
            f"the features leave the range of {features.dtype}; scale the data (notsodeep.standardise), or use float64"
        )
    primal = n >= width
    gram = F.mT @ F if primal else F @ F.mT
    gram.diagonal().add_(n * ridge)
    factor, failed = torch.linalg.cholesky_ex(gram)
    least = len(gram) * torch.finfo(gram.dtype).eps * gram.diagonal().max()  # pivots below are rounding
    if int(failed) or bool(factor.diagonal().square().min() <= least):
        raise ConvergenceError(
            f"the ridge problem is singular at double precision: a ridge of {ridge:.3g} is lost beside features of "
            f"mean square {float(F.square().mean()):.3g}. Scale the data (notsodeep.standardise) or raise the ridge"
        )
    solution = torch.cholesky_solve(F.mT @ Y, factor) if primal else F.mT @ torch.cholesky_solve(Y, factor)
    return solution.mT.to(features.dtype)


def set_readout(model: Model, features: Tensor, targets: Tensor, ridge: float) -> None:
    """Fit the readout in place; a bias, where the model has one, is not penalised."""
    with torch.no_grad():
        centred = 0.0 if model.bias is None else 1.0
        centre, middle = centred * features.mean(0), centred * targets.mean(0)
        readout = ridge_readout(features - centre, targets - middle, ridge)
        model.readout.copy_(readout / model._factor(model.readout))
        if model.bias is not None:
            model.bias.copy_(middle - readout @ centre)


# ---- data in, tensors out ------------------------------------------------------------------------------------


def as_batch(X: Any, name: str, like: Tensor) -> Tensor:
    """Return rows or images, (n, ...), as the parameters have them: in their dtype and on their device."""
    rows = as_numbers(X, name)
    as_rows(rows.flatten(1) if rows.ndim > 1 else rows, name)  # refuses what is no data
    return rows.detach().to(like.device, like.dtype)


def as_pair(data: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return a pair of arrays (X, y) as tensors of the type and on the device of ``like``; integer y are classes."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidInputError(f"data must be a pair of arrays (X, y), got {type(data).__name__}")
    given, y = as_numbers(data[0], "X"), _labels(data[1])
    rows = as_rows(given.flatten(1) if given.ndim == 4 else given)  # images stay images
    X = rows.reshape(given.shape).to(like.device, like.dtype)
    if not bool(torch.isfinite(X).all()):
        raise InvalidInputError(f"X leaves the range of {X.dtype}; scale it (notsodeep.standardise), or use float64")
    if y.shape[:1] != X.shape[:1]:
        raise InvalidInputError(f"X has {X.shape[0]} rows but y has shape {tuple(y.shape)}")
    if y.is_floating_point():
        if not bool(torch.isfinite(y).all()):
            raise InvalidInputError("targets contain NaN or infinite values")
        return X, (y if y.ndim == 2 else y.reshape(-1, 1)).to(like.device, like.dtype)
    if y.ndim != 1 or bool((y < 0).any()):
        raise InvalidInputError(f"classes must be non-negative whole numbers of shape (samples,), got {tuple(y.shape)}")
    return X, y.to(like.device, torch.long)


def _labels(y: Any) -> Tensor:
    """Return classes or targets as a tensor; refuse names, and say how they become classes."""
    if isinstance(y, Tensor):
        return y
    try:
        array = np.asarray(y)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"y must hold one class or one row of targets per point: {error}") from None
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"y must hold whole numbers (classes) or real targets, got {array.dtype}. Names become classes with "
            "names, y = np.unique(y, return_inverse=True)"
        )
    return torch.from_numpy(np.require(array, np.float64 if array.dtype.kind == "f" else np.int64, ["C", "W"]))


def one_hot(y: Tensor, outputs: int, like: Tensor) -> Tensor:
    """Return regression targets: classes become centred indicator vectors, other targets stay."""
    check_classes(y, outputs)
    if y.is_floating_point():
        return y
    return torch.nn.functional.one_hot(y, outputs).to(like.dtype) - 1.0 / outputs


def check_classes(y: Tensor, outputs: int) -> None:
    """Refuse classes beyond the outputs, and targets that have not one column per output."""
    if y.is_floating_point():
        if y.shape[1] != outputs:
            raise InvalidInputError(f"y has {y.shape[1]} columns, the network has {outputs} outputs")
    elif int(y.max()) >= outputs:
        raise InvalidInputError(
            f"class {int(y.max())} needs at least {int(y.max()) + 1} outputs, the network has {outputs}"
        )
