"""From what scikit-learn gives to what the library takes: a network, tensors, seeds, a client."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from .._arguments import check_settings, isolation
from .._arrays import as_device, as_numbers
from ..errors import InvalidInputError
from ..matching import Twin
from ..networks import DEQ, Specification
from ..networks.base import VARIANCES
from ..solve.network import Source
from ..solve.operators import available_bytes
from .standardise import Scale, Standardiser, refuse_dates

if TYPE_CHECKING:
    from .features import Features

Array = NDArray[np.float64]
FLOATS = [np.float64, np.float32]
P = ParamSpec("P")
R = TypeVar("R")


def all_or_nothing(fit: Callable[P, R]) -> Callable[P, R]:
    """Decorate ``fit``: apart from torch's settings, and a fit that fails leaves the estimator with its old model."""

    @functools.wraps(fit)
    @isolation()
    def safely(*args: P.args, **kwargs: P.kwargs) -> R:
        estimator: Any = args[0]
        before = dict(vars(estimator))
        try:
            return fit(*args, **kwargs)
        except BaseException:
            estimator.__dict__ = before
            raise

    return safely


def network_of(estimator: Any, activation: Any = None) -> Any:
    """Return the network of an estimator, or the DEQ of its parameters, with ``activation`` where it is to choose."""
    given = {**vars(estimator), **check_settings(estimator)}
    network = given["network"]
    if network is None:
        phi, a2, b2, c2 = activation or given["activation"], *(given[name] for name in VARIANCES)
        start = (None if b2 == "loo" else b2, 0.0 if c2 == "loo" else c2)
        deq = DEQ(phi, DEQ(phi, 0.0).usual_variance if a2 == "auto" else a2, *start)
        deq.check_contraction()
        return deq
    if isinstance(network, nn.Module):
        copied: Any = copy.deepcopy(network)  # as it is now: training may go on
        return copied
    if not isinstance(network, Specification | Twin):
        raise InvalidInputError(
            "network must be a DEQ, an ENN, a convolutional one of them, a twin or a torch module, got "
            f"{type(network).__name__}"
        )
    return network


def scales_of(scale: Scale, network: Source | nn.Module) -> tuple[Scale, ...]:
    """Return how rows may be scaled; "auto" is both ways, or one where the inputs of the network are not free."""
    if scale != "auto":
        return (scale,)
    return network.scales if isinstance(network, Specification) else (None,)


def sample_of(n: int, least: int, most: int) -> Tensor:
    """Return indices of a quarter of n rows, but within this range, in random order.

    They are among the last rows, which are a random sample where there are more than ``most``.
    """
    few = min(n, max(least, min(n // 4, most)))
    return torch.randperm(min(n, most), generator=torch.Generator().manual_seed(0))[:few] + max(n - most, 0)


def seed_of(random_state: Any) -> int:
    """Return a seed for torch from what scikit-learn calls a random state."""
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))


def validated(estimator: Any, *data: Any, **wanted: Any) -> Any:
    """Return X, or X and y, as scikit-learn checks them; sparse rows, where they are accepted, become dense."""
    data = tuple(_plain(given) for given in (flattened(estimator.network, data[0]), *data[1:]))
    if len(data) > 1 and is_classifier(estimator):
        _refuse_mixed(data[1])
    with _refused(data), np.errstate(over="ignore", invalid="ignore"):  # sums of large numbers are looked at again
        arrays = validate_data(estimator, *data, **wanted)
        if isinstance(arrays, tuple) and is_classifier(estimator):
            check_classification_targets(arrays[1])
        elif isinstance(arrays, tuple):  # objects become numbers, None among them NaN
            arrays = arrays[0], check_array(arrays[1], dtype=np.float64, ensure_2d=False, input_name="y")
    X = arrays[0] if isinstance(arrays, tuple) else arrays
    if not scipy.sparse.issparse(X):
        return arrays
    if 8 * math.prod(X.shape) > available_bytes(torch.device("cpu")):
        raise InvalidInputError(
            f"sparse rows {X.shape} do not fit into memory as dense ones; reduce the columns by sklearn's TruncatedSVD"
        )
    return (X.toarray(), *arrays[1:]) if isinstance(arrays, tuple) else X.toarray()


def _plain(part: Any) -> Any:
    """Return what scikit-learn reads as it is meant: it takes no gradients, no short floats, and ignores masks."""
    refuse_dates(part)
    if np.ma.is_masked(part):
        raise InvalidInputError("masked entries are no numbers; remove or impute these rows")
    if not isinstance(part, Tensor) or part.is_complex():
        return part
    return as_numbers(part, "a tensor").detach().resolve_neg() if part.is_floating_point() else part


def flattened(network: Any, X: Any) -> Any:
    """Return images as rows, where an estimator's network takes images."""
    return network.flattened(X) if isinstance(network, Specification) else X


def _refuse_mixed(y: Any) -> None:
    """Refuse labels that cannot be put in order: None, and text beside numbers."""
    flat = np.asarray(y, dtype=object).ravel() if isinstance(y, list | tuple) else np.asarray(y).ravel()
    if y is None or flat.dtype != object:
        return
    kinds = {"text" if isinstance(one, str) else "None" if one is None else "numbers" for one in flat}
    if len(kinds) > 1 or "None" in kinds:
        given = " and ".join(sorted(kinds))
        raise InvalidInputError(f"labels must be of one kind, all text or all numbers; got {given}")


def weights_of(sample_weight: Any, X: Any) -> Any:
    """Return one weight for each row, none of them negative."""
    with _refused((sample_weight,)):
        return _check_sample_weight(_plain(sample_weight), X, dtype=np.float64, ensure_non_negative=True)


@contextlib.contextmanager
def _refused(data: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    except (TypeError, OverflowError) as error:
        if isinstance(error, OverflowError) or any(isinstance(p, Tensor) or not isinstance(p, Iterable) for p in data):
            raise InvalidInputError(f"expected arrays of numbers: {error}") from error
        raise  # scikit-learn's own refusal
    except ValueError as error:
        text = str(error)
        hints = {
            "Input X contains NaN": "Impute missing values with sklearn's SimpleImputer",
            "convert string": "Encode names with sklearn's OneHotEncoder",
        }
        hint = next((f" {hint}" for word, hint in hints.items() if word in text), "")
        raise InvalidInputError(text.partition("\nDEQ")[0] + hint) from None  # without advice to take other estimators


def as_tensor(X: Any, device: Any) -> Tensor:
    """Return rows on the device of the estimator, where possible without a copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing here writes
        return torch.from_numpy(X if min(X.strides) >= 0 else X.copy()).to(as_device(device) or "cpu")


class Cloned:
    """A mixin whose clones have parameters of their own; tensors computed from others have no copies."""

    def __sklearn_clone__(self) -> Any:
        for name, value in self.get_params(deep=False).items():  # type: ignore[attr-defined]
            if isinstance(value, Tensor) and not value.is_leaf:
                raise InvalidInputError(
                    f"{name} is a tensor computed from others, of which there is no copy; give a number, as "
                    f"float({name}): estimators have no gradients"
                )
        return super().__sklearn_clone__()  # type: ignore[misc]


class KernelEstimator(Cloned):
    """What machines and processes share: learned features, and a Dask client.

    A client cannot be copied: clones share it, pickles go without it.
    """

    client: Any
    device: Any
    scaler_: Standardiser
    _features: Features | None

    @property
    def features_(self) -> Array | None:
        """M of trace p, (p, p), by which the columns of the scaled rows matter; None where nothing was learned."""
        check_is_fitted(self)
        return None if self._features is None else np.asarray(self._features.matrix.cpu())

    def _seen(self, X: Any, **options: Any) -> Tensor:
        """Return new rows as the kernel sees them."""
        check_is_fitted(self)
        rows = validated(self, X, dtype=FLOATS, reset=False, **options)
        scaled = self.scaler_.scaled(as_tensor(rows, self.device).double())
        return scaled if self._features is None else self._features(scaled)

    def __sklearn_clone__(self) -> Any:
        client, self.client = self.client, None
        try:
            copy = super().__sklearn_clone__()
        finally:
            self.client = client
        copy.client = client
        return copy

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {**state, "client": None} if isinstance(state, dict) else state

    def _check_client(self) -> None:
        if self.client is not None and getattr(as_device(self.device), "type", "cpu") != "cpu":
            raise InvalidInputError(f"workers compute on their CPUs; leave out device={self.device!r}, or client=")
