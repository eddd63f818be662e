"""Kernels, solves and sweeps on a Dask cluster: a laptop's processes or many machines (``notsodeep[dask]``)."""

from ..errors import MissingExtraError

try:
    from distributed import Client as _Client  # noqa: F401 - a folder of that name has none
except ImportError:
    raise MissingExtraError("distributed", "dask") from None

from .calls import expand, feature_sums, sweep
from .cluster import Cluster
from .layout import Plan, Rates, plan
from .operator import ClusterKernel, kernel_to_npy, kernel_to_zarr

__all__ = [
    "Cluster",
    "ClusterKernel",
    "Plan",
    "Rates",
    "expand",
    "feature_sums",
    "kernel_to_npy",
    "kernel_to_zarr",
    "plan",
    "sweep",
]
