"""What every test run shares: one thread per worker, deterministic examples, no display."""

from __future__ import annotations

import hypothesis
import matplotlib
import torch

torch.set_num_threads(1)  # the workers of pytest-xdist share the cores; threads inside each would only compete
matplotlib.use("Agg")

# the same examples in every run: a failure in one run is a failure in the next
hypothesis.settings.register_profile("notsodeep", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("notsodeep")
