"""Kernels, solves and sweeps on a Dask cluster: a laptop's processes or many machines (``notsodeep[dask]``)."""

from ..errors import MissingExtraError

try:
    import distributed as _dask  # noqa: F401
except ImportError:
    raise MissingExtraError("distributed", "dask") from None

from .cluster import Cluster
from .operator import ClusterKernel, ClusterStore

__all__ = ["Cluster", "ClusterKernel", "ClusterStore"]
