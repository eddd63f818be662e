"""From flat parameters to a network and its kernel."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from .._arguments import check_settings, whole
from .._arrays import as_device, squared_norms
from .._words import Init
from ..errors import InvalidInputError
from ..kernels import VARIANCES, DEQSlope, kernels_of
from ..matching import Twin, match_one_layer
from ..networks import DEQ, ENN, Kernel, is_tangent
from ..nn import ENN as Network
from ..solve import Source


def network_of(estimator: Any) -> Source:
    """The network of an estimator: ``network`` if it has one, else the DEQ of its flat parameters."""
    check_settings(estimator)
    network = estimator.network
    if network is None:
        deq = deq_of(estimator.activation, {name: getattr(estimator, name) for name in VARIANCES})
        deq.check_contraction()
        return deq
    if not isinstance(network, DEQ | ENN | Twin):
        raise InvalidInputError(f"network must be a DEQ, an ENN or a twin, got {type(network).__name__}")
    return network


def deq_of(activation: Any, values: Mapping[str, float | None]) -> DEQ:
    """The DEQ of these variances; those that are left out are zero, sigma_b2 is tied to sigma_a2."""
    return DEQ(activation, values.get("sigma_a2") or 0.0, values.get("sigma_b2"), values.get("sigma_c2") or 0.0)


def slopes_of(activation: Any, kernel: Kernel, values: Mapping[str, Any], X: Tensor) -> dict[str, Tensor]:
    """dK / d log(variance) on the rows of X, exactly, for all variances that may move.

    sigma_b2 moves with sigma_a2 where it is tied to it.
    """
    slope = DEQSlope(deq_of(activation, values), kernel, tied=values.get("sigma_b2") is None)
    found: Mapping[Any, Tensor] = kernels_of(slope, X, kernels=slope.kernels, check=False)
    return {name: values[name] * matrix for name, matrix in found.items()}


# ---- rows, seeds, random features --------------------------------------------------------------------------


_MARGIN = 1.1  # norms of new rows may leave the range of the first ones by this factor


def feature_model(
    source: Source, kernel: Kernel, X: Tensor, width: int, seed: int, *, init: Init = "gaussian", tol: float = 1e-4
) -> Network:
    """A finite network with phi(x) . phi(y) ~ k(x, y), of the precision and on the device of X.

    A DEQ becomes its one-layer twin, trained by the readout alone, on the range of norms found in X. An explicit
    network has its CK; a twin that trains its readout has the kernel it matches.
    """
    whole("width", width)
    network: Any = source
    if isinstance(source, DEQ):
        network = match_one_layer(source, kernel=kernel, norms=_norms(X), tol=tol, trains="readout")
    if isinstance(network, Twin) and network.trains != "readout":
        raise InvalidInputError(
            "random features are hidden states with a trained readout; this twin trains all weights. Give one with "
            "trains='readout', as match_one_layer makes it"
        )
    if isinstance(network, ENN) and is_tangent(kernel):
        raise InvalidInputError(f"the features of an explicit network have its CK; use kernel='ck', got {kernel!r}")
    return Network(
        network, X.shape[1], width, 1, seed, init=init, kernel="ck", dtype=X.dtype, device=X.device
    ).requires_grad_(False)


def _norms(X: Tensor) -> tuple[float, float]:
    squares = squared_norms(X)
    positive = squares[squares > 0]
    if not len(positive):
        raise InvalidInputError("all rows are zero: there is no norm to make features for")
    return float(positive.min().sqrt()) / _MARGIN, float(positive.max().sqrt()) * _MARGIN


def seed_of(random_state: Any) -> int:
    """A seed for torch from what scikit-learn calls a random state."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))


def validated(estimator: Any, *data: Any, **wanted: Any) -> Any:
    """X, or X and y, as scikit-learn checks them; what it leaves to NumPy and torch is refused here."""
    with _refused(data):
        return validate_data(estimator, *data, **wanted)


def weights_of(sample_weight: Any, X: Any) -> Any:
    """One weight per row, none of them negative."""
    with _refused((sample_weight,)):
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


@contextlib.contextmanager
def _refused(data: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    except (TypeError, OverflowError) as error:
        if isinstance(error, OverflowError) or any(isinstance(part, Tensor) for part in data):
            raise InvalidInputError(f"expected dense arrays of numbers: {error}") from error
        raise  # scikit-learn's own refusal


def as_tensor(X: Any, device: Any) -> Tensor:
    """Rows on the device of the estimator; those of a memory map stay on disk."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing here writes
        return torch.from_numpy(X if min(X.strides) >= 0 else X.copy()).to(as_device(device) or "cpu")
