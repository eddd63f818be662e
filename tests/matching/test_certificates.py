"""Every bound holds for the units as they are shipped: an oracle that knows nothing of how they were fitted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import pairwise
from notsodeep.units import Basis, Conditioned
from oracle_units import aligned, between, error, largest_error

SMOOTH = ["tanh", "erf", "gelu", "silu", "sin", "cos", "arctan", "mish", "sigmoid", "softplus"]
ALL = [*SMOOTH, "relu", "leaky_relu", "elu", "selu"]


# once the errors were 3.9e-6, 1.0e-3, 9.4e-5 and 5.1e-4, beyond the orders that bound and kernel knew
@pytest.mark.parametrize(
    ("deq", "kernel", "norms", "kinds", "reach"),
    [
        (nsd.DEQ("gelu", 0.09, 1.15), "ck", (1.0, 1.0), 1, 1.5e-7),
        (nsd.DEQ("mish", 0.0855, 0.926), "ntk", (2.0, 4.0), 1, 4.1e-4),
        (nsd.DEQ("arctan", 0.2, 0.8), "ntk", (2.0, 4.0), "auto", 2.9e-5),
        pytest.param(nsd.DEQ("mish", 0.1328, 0.6), "ntk_frozen", (0.1, 3.0), "auto", 2.5e-5, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_functions_of_high_degree_keep_their_bounds(deq, kernel, norms, kinds, reach):
    twin = nsd.match_one_layer(deq, kernel, norms, kinds=kinds)
    seen = max(error(twin, s, s, 1.0) for s in np.geomspace(*norms, 5 if norms[0] < norms[1] else 1))
    assert 0.5 * twin.bound <= seen <= twin.bound <= reach
    assert seen == pytest.approx(twin.residual, rel=0.2)  # between the norms of the grid errors differ by as much


@pytest.mark.parametrize("basis", [Basis(1.2, 28), Basis(3.0, 12), Basis(10.0, 3), Basis(1.2, 28, 2, 1)], ids=repr)
def test_the_kernel_has_every_order_at_parallel_and_opposite_inputs(basis):
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((2, basis.size, 1)) / basis.size).tolist()
    phi = Conditioned(tuple(tuple(map(tuple, group)) for group in rows), basis.alpha, *(basis.degree, basis.singular))
    one, signs = torch.ones(2, dtype=torch.float64), (1.0, -1.0)
    found = pairwise(nsd.ENN([phi]), one, one, torch.tensor(signs, dtype=torch.float64), ("ck", "ntk"), check=False)
    for trained, kernel in enumerate(found):
        exact = np.array([aligned(phi, 1.0, 1.0, sign, bool(trained)) for sign in signs])
        off = np.abs(found[kernel].numpy() - exact) / exact[0]
        assert off.max() <= tolerance(amplified=1e3)  # the panels at a singularity


@pytest.mark.parametrize("rho", [-0.9, 0.999])
def test_the_kernel_between(rho):
    rows = (np.random.default_rng(0).standard_normal((2, 58, 3)) / 58.0).tolist()
    groups = tuple(tuple(map(tuple, group)) for group in rows)
    phi = Conditioned(groups, 1.2, 28, low=2.0, high=4.0, logarithmic=True)
    at = [torch.tensor([v], dtype=torch.float64) for v in (4.0, 9.0, 6.0 * rho)]
    found = float(pairwise(nsd.ENN([phi]), *at, check=False)["ck"])
    assert found == pytest.approx(between(phi, 2.0, 3.0, rho), rel=tolerance())


def a_design(rng):
    """A twin of a random network, or ``None`` where none is within reach."""
    name = str(rng.choice(ALL))
    sigma_a2 = float(rng.uniform(0.05, 0.95)) * min(nsd.DEQ(name, 0.0).limit, 1.0)
    low = 10.0 ** rng.uniform(-1.5, 0.6)
    norms = (low, low * float(rng.choice([1.0, 2.0, 10.0 ** rng.uniform(0.1, 1.5)])))
    kernel, kinds = str(rng.choice(["ck", "ntk", "ntk_frozen"])), rng.choice(["auto", 1, 2, 3])
    deq = nsd.DEQ(name, sigma_a2, float(rng.uniform(0.5, 1.2)))
    kinds = "auto" if kinds == "auto" or deq.homogeneous else int(kinds)
    trains = "all" if kernel == "ntk" and rng.random() < 0.3 else "auto"
    try:
        return nsd.match_one_layer(deq, kernel, norms, float(10.0 ** rng.uniform(-6.0, -3.0)), kinds, trains=trains)
    except NotSoDeepError:
        return None


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 400))])
def test_random_designs(seed):
    rng = np.random.default_rng([38, seed])
    twin = a_design(rng)
    if twin is not None:
        # the kernels that are compared are computed to rounding
        assert largest_error(twin, rng) <= twin.bound + tolerance()


@pytest.mark.parametrize(("kernel", "trains"), [("ntk", "all"), ("ntk", "readout"), ("ck", "readout")])
def test_the_error_that_is_seen_has_all_orders(kernel, trains):
    """At cosine +-1 the orders beyond the longest table count, too."""
    deq = nsd.DEQ("relu", 0.2)
    twin = nsd.match_one_layer(deq, kernel=kernel, trains=trains, units="conditioned")
    name = "ntk" if trains == "all" else "ck"
    one, rho = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    wanted = pairwise(deq, one, one, rho, (kernel,))[kernel]
    have = pairwise(twin.network, one, one, rho, (name,), check=False)[name]
    largest = float((wanted - have).abs().max() / wanted[0])
    assert twin.certificate.residual == pytest.approx(largest, rel=1e-5)  # the bound itself is coarser
