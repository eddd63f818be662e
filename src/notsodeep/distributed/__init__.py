"""Kernels and solutions on a Dask cluster, of processes or of machines (``notsodeep[dask]``)."""

from ..errors import MissingExtraError

try:
    from distributed import Client as _Client  # noqa: F401 - a folder of that name has none
except ImportError:
    raise MissingExtraError("distributed", "dask") from None

from .operator import ClusterKernel

__all__ = ["ClusterKernel"]
