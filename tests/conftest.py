"""What every test run shares: one thread per worker, deterministic examples, no display."""

from __future__ import annotations

import os

import hypothesis
import matplotlib
import pytest
import scipy.linalg  # noqa: F401  # with NumPy it brings the libraries whose threads are limited below
import torch
from threadpoolctl import threadpool_limits

# the workers of pytest-xdist share the cores: threads in them, or in the commands they start, would only compete
torch.set_num_threads(1)
threadpool_limits(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

matplotlib.use("Agg")

# the same examples in every run: a failure in one run is a failure in the next
hypothesis.settings.register_profile("notsodeep", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("notsodeep")


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Each test draws the same weights in every run, alone or among others."""
    torch.manual_seed(0)
