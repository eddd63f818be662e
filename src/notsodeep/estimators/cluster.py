"""What an estimator does with a Dask client: it is shared, never copied, and what it computes is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .._arrays import as_device
from ..errors import InvalidInputError
from ..nn import ENN as Network
from ..solve import FeatureSums, KernelTiles, NetworkKernel
from .predictors import Expansion, Predictor

_WORTH = 1 << 24  # entries of a kernel from which sending rows to workers pays


class WithClient:
    """A connection cannot be copied or pickled: clones share it, files and other processes go without."""

    client: Any

    def __sklearn_clone__(self) -> Any:
        client, self.client = self.client, None
        try:
            twin = super().__sklearn_clone__()  # type: ignore[misc]
        finally:
            self.client = client
        twin.client = client
        return twin

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {**state, "client": None} if isinstance(state, dict) else state


def check_client(client: Any, device: Any, method: str = "kernel") -> None:
    """Refuse what a cluster would not change, or workers would not do."""
    if client is None:
        return
    if method == "equivalent":
        raise InvalidInputError("method='equivalent' is a matter of seconds in this process; leave out client=")
    if device is not None and getattr(as_device(device), "type", "cpu") != "cpu":
        raise InvalidInputError(f"workers compute on their CPUs; leave out device={device!r}, or client=")


@contextlib.contextmanager
def operator_on(client: Any, kernel: NetworkKernel, X: Tensor, **options: Any) -> Iterator[Any]:
    """The kernel in tiles, on the cluster of this client or without one here."""
    if client is None:
        yield KernelTiles(kernel, X, **options)
        return
    from ..distributed import ClusterKernel

    with ClusterKernel(client, kernel, X, **options) as operator:
        yield operator


def matrix_on(client: Any, kernel: NetworkKernel, X: Tensor, progress: bool | None = None) -> Tensor:
    """The kernel matrix; its tiles are computed by the workers if there is a client and enough of them."""
    if client is None or len(X) ** 2 < _WORTH:
        return kernel(X)
    with operator_on(client, kernel, X, store="none", progress=progress) as operator:
        found: Tensor = operator.matrix()
    return found


def sums_on(client: Any, model: Network, X: Tensor, T: Tensor, weights: Tensor) -> FeatureSums:
    """Sums over the features of these rows; each worker adds up some of them."""
    if client is not None and len(X) * model.width >= _WORTH:
        from ..distributed import feature_sums

        return feature_sums(client, model, X, T, weights)
    return FeatureSums.of(model, X, T, weights)


def predict_on(client: Any, predictor: Predictor, X: Tensor) -> Tensor:
    """Predictions; an expansion in many training rows is shared out."""
    if client is None or not isinstance(predictor, Expansion) or len(X) * len(predictor.X) < _WORTH:
        return predictor(X)
    from ..distributed import expand

    return expand(client, predictor.kernel, predictor.X, predictor.coefficients, X)
