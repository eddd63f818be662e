"""One small cluster for all tests that harm none of its workers."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec

import pytest

from clusters import small_cluster

collect_ignore_glob = ["test_*.py"]
with contextlib.suppress(ModuleNotFoundError):  # "distributed" alone could be this very folder
    if find_spec("distributed.client"):
        collect_ignore_glob = []


@pytest.fixture(scope="session")
def client():
    """Three workers."""
    with small_cluster() as (_, made):
        yield made


@pytest.fixture
def fragile():
    """A cluster of a test's own."""
    with small_cluster() as made:
        yield made
