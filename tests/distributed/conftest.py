"""One small cluster for the tests of a file that harm none of its workers."""

from __future__ import annotations

import pytest

from clusters import small_cluster

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client():
    """Three workers for tests that harm none of them."""
    with small_cluster() as (_, made):
        yield made


@pytest.fixture
def fragile():
    """A cluster of a test's own."""
    with small_cluster() as made:
        yield made
