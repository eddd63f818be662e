"""The validator of arrays, and the conversion of results to the caller's type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._arguments import shown
from .errors import ConvergenceError, InvalidInputError

Array = NDArray[Any]

# ---- rows ------------------------------------------------------------------------------------------------


def as_rows(
    X: Any,
    name: str = "X",
    *,
    features: int | None = None,
    least: int = 1,
    tracked: bool = False,
    checked: bool = True,
) -> Tensor:
    """Return a finite float32 or float64 tensor (n, p) that shares memory with X where it can.

    float32 stays, half precision becomes float32, everything else float64. ``least``: the fewest rows and columns
    allowed; ``tracked``: keep the graph of gradients; ``checked=False``: finite by construction, so not scanned.
    """
    rows = as_numbers(X, name)
    if rows.ndim != 2:
        hint = f"; a single point is {name}[None, :]" if rows.ndim == 1 else ""
        raise InvalidInputError(
            f"{name} must have two dimensions (points, features), got shape {tuple(rows.shape)}{hint}"
        )
    if min(rows.shape) < least:
        raise InvalidInputError(
            f"{name} must have shape (n, p) with n, p >= {least}, got {tuple(rows.shape)}: there is no data"
        )
    if features is not None and rows.shape[1] != features:
        raise InvalidInputError(f"{name} must have {features} features, got {rows.shape[1]}")
    rows = rows if tracked else rows.detach()
    bad = bad_row(rows.detach()) if checked else None
    if bad is not None:
        raise InvalidInputError(f"{name} holds NaN or infinity (first in row {bad}); remove or impute these points")
    return rows


def bad_row(rows: Tensor) -> int | None:
    """Return the first row that holds NaN or infinity, if any does."""
    # one reduction, no mask: a sum is finite unless an entry is not, or the sum itself overflows
    if bool(torch.isfinite(rows.sum())):
        return None
    bad = torch.cat([(~torch.isfinite(part)).any(dim=1) for part in _blocks(rows)]).nonzero()
    return int(bad[0]) if len(bad) else None


def check_range(values: Tensor, kernel: str, network: Any) -> None:
    """Refuse a kernel (n, m) that has left the range of its precision."""
    if bad_row(values) is not None:
        more = ", or give them in float64" if values.dtype == torch.float32 else ""
        what = f"the {kernel} of {network!r} overflows {values.dtype}"
        raise ConvergenceError(f"{what} on these inputs; scale them down{more}")


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    entries = 1 << (20 if rows.is_cuda else 15)  # that are looked at together: 256 KB stay in a core's cache
    return rows.split(max(1, entries // max(1, rows.shape[1])))


def as_numbers(value: Any, name: str) -> Tensor:
    """Return real numbers in any shape as a tensor, in the precision that rows have."""
    numbers = _plain(value, name) if isinstance(value, Tensor) else _from_array(value, name)
    if numbers.dtype in (torch.float32, torch.float64):
        return numbers
    half = numbers.is_floating_point() and numbers.dtype.itemsize < 4
    return numbers.to(torch.float32 if half else torch.float64)


def as_floats(value: Any, name: str) -> tuple[float, ...]:
    """Return a sequence of finite numbers."""
    listed = value if hasattr(value, "ndim") or not isinstance(value, Iterable) else list(value)
    numbers = as_numbers(listed, name)
    if numbers.ndim != 1 or not bool(torch.isfinite(numbers).all()):
        raise InvalidInputError(f"{name} must be a sequence of finite numbers, got {shown(value)}")
    return tuple(numbers.tolist())


def as_labels(y: Any, n: int) -> np.ndarray:
    """Return one label per row, names or numbers, none of them missing."""
    try:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"y must hold one label per row: {error}") from None
    if labels.shape != (n,):
        raise InvalidInputError(f"labels must have shape ({n},), one per row, got {labels.shape}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidInputError("y holds NaN or infinity, which is no class; remove these rows from X and y")
    if labels.dtype.kind not in "fiubUS" and not all(isinstance(label, str) for label in labels):
        raise InvalidInputError(f"labels must be numbers or names, got {labels.dtype}")
    return labels


def same_columns(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` in the precision of ``x``; both must have as many features and lie on one device."""
    if x.shape[1] != y.shape[1]:
        raise InvalidInputError(f"X has {x.shape[1]} features and Y has {y.shape[1]}; they must agree")
    if x.device != y.device:
        raise InvalidInputError(f"X is on {x.device} and Y on {y.device}; move them to one device")
    return y.to(x.dtype)


def squared_norms(rows: Tensor) -> Tensor:
    """Return ||x||^2 of every row in double precision, or refuse norms whose products in kernels would overflow."""
    squares = torch.cat([(part.double() ** 2).sum(1) for part in _blocks(rows)])
    if len(squares) and not float(squares.detach().max()) <= 1e280:
        row = int((~(squares <= 1e280)).nonzero()[0])
        raise InvalidInputError(f"row {row} has a norm beyond 1e140; scale the inputs down")
    return squares


def as_device(device: Any) -> torch.device | None:
    """Return the device of this name, if torch can compute on it here; ``None`` stays."""
    if device is None:
        return None
    try:
        place = torch.empty(0, device=device).device
    except Exception as error:  # torch has a class of its own for every reason
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"device must be one that torch can use here, such as 'cpu', got {device!r}: {reason}"
        ) from error
    if place.type == "meta":
        raise InvalidInputError("the device 'meta' holds no numbers; give 'cpu', or 'cuda' where there is one")
    return place


def like(result: Tensor, given: Any) -> Any:
    """Return a torch result in the type of the input it came from."""
    return result if isinstance(given, Tensor) else result.detach().cpu().numpy()


def _plain(X: Tensor, name: str) -> Tensor:
    if X.layout != torch.strided or X.is_nested or X.is_quantized:
        kind = "a nested one" if X.is_nested else f"dtype {X.dtype}" if X.is_quantized else f"layout {X.layout}"
        call = ".dequantize()" if X.is_quantized else ".to_padded_tensor(0.0)" if X.is_nested else ".to_dense()"
        raise InvalidInputError(f"{name} must be a dense tensor, got {kind}; call {call} first")
    if X.device.type == "meta":
        raise InvalidInputError(f"{name} is on the device 'meta', which holds no numbers")
    if X.dtype.is_complex:
        raise InvalidInputError(f"{name} must be real, got dtype {X.dtype}")
    return X


def _from_array(X: Any, name: str) -> Tensor:
    if hasattr(X, "toarray"):  # SciPy's sparse classes, without importing them
        raise InvalidInputError(f"{name} must be a dense array, got {type(X).__name__}; call .toarray() first")
    if np.ma.is_masked(X):
        raise InvalidInputError(f"{name} has masked entries; remove or impute these points")
    try:
        array = np.asarray(X)
        if array.dtype == object and hasattr(X, "columns") and all(kind.kind in "fiub" for kind in X.dtypes):
            array = np.asarray(X, dtype=np.float64)  # columns of pandas that may hold missing values
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidInputError(f"{name} must be a numeric array with rows of one length: {error}") from None
    if array.dtype.kind not in "fiub":
        must = "real" if array.dtype.kind == "c" else "a numeric array"
        raise InvalidInputError(f"{name} must be {must}, got dtype {array.dtype}")
    kept = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes infinite, and is refused as such
        array = array.astype(array.dtype.newbyteorder("=") if kept else np.float64, copy=False)
    # torch shares memory with writable arrays; read-only ones (memory maps) and reversed ones are copied once
    if not array.flags.writeable or any(s < 0 or s % array.itemsize for s in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


# ---- where results are written ---------------------------------------------------------------------------


def check_target(out: Any, shape: tuple[int, int], inputs: Sequence[Tensor]) -> Tensor:
    """Return ``out=`` as a tensor that shares its memory: writable, of this shape, and apart from the inputs."""
    target = torch.from_numpy(out) if isinstance(out, np.ndarray) and _is_writable(out) else out
    good = isinstance(target, Tensor) and tuple(target.shape) == shape and target.dtype.is_floating_point
    good = good and target.itemsize > 1 and target.layout == torch.strided and not target.requires_grad
    if not good or not _apart(target):
        seen = f"{out.dtype} of shape {tuple(out.shape)}" if hasattr(out, "dtype") else type(out).__name__
        raise InvalidInputError(
            f"out= must be memory for floating numbers of shape {shape}: a tensor that autograd does not track, or an "
            "array in this machine's byte order that is no reversed view and not read-only (open a memory map with "
            f"mode 'r+'), without entries that stand for several; got {seen}"
        )
    if any(_overlap(target, other) for other in inputs):
        raise InvalidInputError("out= shares memory with the input, or with another out=; give it memory of its own")
    return target


def _is_writable(out: np.ndarray) -> bool:
    plain = out.dtype.isnative and out.dtype.kind == "f" and out.dtype.itemsize <= 8
    return plain and out.flags.writeable and all(s >= 0 and s % out.itemsize == 0 for s in out.strides)


def _apart(target: Tensor) -> bool:
    """Return whether each entry of a matrix has a place of its own: one axis steps over all of the other."""
    axes = sorted((step, size) for step, size in zip(target.stride(), target.shape, strict=True) if size != 1)
    reach = [0, *(step * (size - 1) for step, size in axes)]
    return not target.numel() or all(step > last for (step, _), last in zip(axes, reach, strict=False))


def _overlap(a: Tensor, b: Tensor) -> bool:
    known = {torch.float16, torch.float32, torch.float64}  # numpy has no others
    if a.device.type == b.device.type == "cpu" and {a.dtype, b.dtype} <= known:
        return np.may_share_memory(a.detach().numpy(), b.detach().numpy())
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
