"""Proven answers are those of plain iteration to the last digit, in double precision; what cannot be proven is said."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from helpers import ulps
from notsodeep.errors import ContractionError, InvalidInputError
from notsodeep.nn.decide import Proven, Search, norm_bound

P, M, CLASSES = 12, 48, 5
CELLS = {
    "relu": nsd.DEQ("relu", 0.2),
    "tanh": nsd.DEQ("tanh", 0.15, sigma_b2=0.7, sigma_c2=0.1, readout="pre-activation"),
    "gelu": nsd.DEQ("gelu", 0.1),
    "two layers": nsd.DEQ(["tanh", "relu"], sigma_a2=0.04),
}


def network(name: str, contraction: float | None = 0.9, **options) -> nsd.nn.DEQ:
    model = nsd.nn.DEQ(CELLS[name], P, M, CLASSES, bias=True, **options)
    if contraction is not None:
        model.recurrent.data.mul_(contraction / model.contraction())
    with torch.no_grad():
        model.bias.copy_(torch.linspace(-0.1, 0.1, CLASSES))
    return model


def plain_outputs(model: nsd.nn.DEQ, x: Tensor) -> Tensor:
    """Iterate in double precision until nothing changes any more."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        drive = wide._project(x.double())
        u = torch.zeros_like(drive)
        for _ in range(600):
            u = wide._step(u, drive)
        return wide.read(wide._read(u / wide.width**0.5, x.double()))


def rows(count: int, seed: int = 0) -> Tensor:
    x = torch.randn(count, P, generator=torch.Generator().manual_seed(seed))
    return x * torch.logspace(-2, 2, count)[torch.randperm(count)][:, None]


@pytest.mark.parametrize("options", [{}, {"parametrisation": "standard"}], ids=["ntk", "standard"])
@pytest.mark.parametrize("name", CELLS)
def test_proven_classes_are_those_of_the_equilibrium(name: str, options: dict) -> None:
    model, x = network(name, **options), rows(1000)
    found, truth = model.decide(x), plain_outputs(model, x)
    assert bool(found.proven.all())
    assert torch.equal(found.classes, truth.argmax(1))
    assert len(found.steps.unique()) > 2
    bound = model.bounded(x, 1e-4)
    assert bool(bound.proven.all())
    assert float((bound.outputs.double() - truth).abs().max()) <= 1e-4  # what was asked for
    assert bound.steps.double().mean() > found.steps.double().mean()


def test_the_radius_holds_the_equilibrium() -> None:
    model, x = network("relu"), rows(500)
    found = model.decide(x)
    reach = float((model.readout / 1.0).detach().double().norm(dim=1).max())
    off = (found.outputs.double() - plain_outputs(model, x)).abs().amax(1)
    assert bool((off <= reach * found.radius + ulps(1 << 12, torch.float32) * found.outputs.abs().amax(1)).all())


def test_rows_too_close_to_call_in_single_precision_are_finished_in_double() -> None:
    model, x = network("tanh"), rows(300)
    with torch.no_grad():  # two outputs that differ by one part in ten million
        model.readout[1] = model.readout[0] * (1.0 + 2e-7)
        model.bias[0] = model.bias[1] = 1.0
    found, truth = model.decide(x), plain_outputs(model, x)
    assert bool(found.proven.all())
    assert torch.equal(found.classes, truth.argmax(1))
    assert found.outputs.dtype == torch.float64


def check(model: nsd.nn.DEQ, x: Tensor) -> None:
    """All rows are proven, soon, and rightly."""
    found, truth = model.decide(x), plain_outputs(model, x)
    assert bool(found.proven.all())
    assert torch.equal(found.classes, truth.argmax(1))
    assert found.steps.double().mean() < 20


@pytest.mark.parametrize(
    "phi", [nsd.activation("sigmoid").affine(shift=-0.5), lambda x: torch.sigmoid(x) - 0.5], ids=["affine", "function"]
)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-7])
def test_numbers_that_cancel_inside_an_activation_count(phi, scale: float) -> None:
    """Its values are small, and rounded as numbers of one half are."""
    check(nsd.nn.DEQ(nsd.DEQ(phi, 0.3), P, M, CLASSES), scale * rows(300))


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e18, 1e30, 1e36])
def test_rows_whose_squares_leave_the_range_of_single_precision(scale: float) -> None:
    model = nsd.nn.DEQ(CELLS["relu"], P, M, CLASSES)
    model.recurrent.data.mul_(0.9 / model.contraction())
    check(model, scale * torch.randn(300, P, generator=torch.Generator().manual_seed(0)))


def test_distances_of_many_classes_are_bounded_from_above() -> None:
    """Also where torch.cdist would take squares apart, which cancel."""
    model = nsd.nn.DEQ(CELLS["tanh"], P, M, 60, dtype=torch.float64)
    with torch.no_grad():
        model.readout[30:] = model.readout[:30] * (1.0 + 1e-9)
    search = Search(Proven(model, 0.9))
    effect = search.problem.effect
    exact = (effect[:, None] - effect).norm(dim=2)
    assert bool((search.apart >= exact).all())
    assert float((search.apart - exact).max()) < ulps(64) * search.reach


@pytest.mark.parametrize("inputs", [112, 113, 700])
def test_the_rounding_of_many_inputs_is_bounded(inputs: int) -> None:
    model = nsd.nn.DEQ(CELLS["relu"], inputs, M, CLASSES)
    x = torch.randn(200, inputs, generator=torch.Generator().manual_seed(0))
    x[::2] += 1e4 * torch.sign(model.input[0].detach())  # long sums, which cancel in the other units
    problem = Proven(model, 0.9)
    drive = problem.start(x)[1]
    exact = copy.deepcopy(model).double()._project(x.double()).detach()
    found = (drive.double() - exact).norm(dim=1)
    bound = problem.errors(x, drive)[0].rest
    assert bool((found > 0.0).all())
    assert bool((found <= bound).all())


def test_ties_are_not_proven() -> None:
    model, x = network("tanh"), rows(200)
    with torch.no_grad():
        model.readout[1], model.bias[1] = model.readout[0], model.bias[0]
    found, truth = model.decide(x), plain_outputs(model, x)
    tied = truth[:, :2].amax(1) >= truth[:, 2:].amax(1)
    assert torch.equal(found.proven, ~tied)
    assert 10 < int(tied.sum()) < 190


def test_what_cannot_be_proven_is_refused() -> None:
    with pytest.raises(ContractionError, match=r"Train with limit_contraction"):
        network("relu", 1.2).decide(rows(5))
    with pytest.raises(InvalidInputError, match="has no Lipschitz constant"):
        nsd.nn.DEQ(nsd.DEQ("relu", 0.2, normalise=True), P, 8, 2).decide(rows(5))
    with pytest.raises(InvalidInputError, match="no classes to decide between"):
        nsd.nn.DEQ(nsd.DEQ("tanh", 0.1), P, 8, 1).decide(rows(5))
    with pytest.raises(InvalidInputError, match="X must have 12 features, got 3"):
        network("tanh").decide(rows(5)[:, :3])
    with pytest.raises(InvalidInputError, match="holds NaN"):
        network("tanh").decide(rows(5) * torch.nan)
    with pytest.raises(InvalidInputError, match="tol must be positive"):
        network("tanh").bounded(rows(5), 0.0)
    assert not bool(network("tanh").bounded(rows(5), 1e-25).proven.any())  # beyond double precision, and it ends


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    for name in ("recurrent", "input", "readout", "inner"):
        model = nsd.nn.DEQ(nsd.DEQ(["tanh", "relu"], 0.01), P, 8, 2)
        weight = model.inner[0] if name == "inner" else getattr(model, name)
        weight.data[0, 0] = value
        for call in (lambda: model.decide(rows(5)), model.contraction):  # noqa: B023
            with pytest.raises(InvalidInputError, match="hold NaN"):
                call()
    assert norm_bound(torch.full((1, 3, 3), value, dtype=torch.float64), value) == torch.inf
    assert norm_bound(torch.full((1, 3, 3), 1e200, dtype=torch.float64), 1e200) == torch.inf


def test_norms_are_found_from_any_estimate() -> None:
    tiny = 1e-150 * torch.randn(1, 9, 9, dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(tiny[0], 2))
    assert exact <= norm_bound(tiny, 0.0) <= 1.01 * exact


def test_arrays_and_no_rows() -> None:
    model = network("relu")
    found = model.decide(rows(20).numpy())
    assert isinstance(found.classes, np.ndarray)
    assert "20 of 20 rows proven" in repr(found)
    assert len(model.decide(rows(0)).classes) == 0
    model.bias = None  # what was prepared for the model with one is not used
    assert torch.equal(model.decide(rows(20)).classes, plain_outputs(model, rows(20)).argmax(1))


def test_threads_do_not_see_each_other() -> None:
    model, parts = network("relu"), [rows(count, count) for count in (1500, 700, 40, 900)]
    alone = [(model.decide(x), model.bounded(x, 1e-3)) for x in parts]
    with ThreadPoolExecutor(4) as threads:
        together = [list(threads.map(call, parts)) for call in (model.decide, lambda x: model.bounded(x, 1e-3))]
    for some, others in zip(zip(*together, strict=True), alone, strict=True):
        for one, other in zip(some, others, strict=True):
            for name in ("outputs", "steps", "proven", "radius"):
                assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution(stride: int) -> None:
    spec = nsd.ConvDEQ("relu", sigma_a2=0.1, image=(1, 5, 6), stride=stride)
    model = nsd.nn.ConvDEQ(spec, width=4, out_features=3)
    model.recurrent.data.mul_(0.8 / model._certified_contraction())
    x = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    wide = copy.deepcopy(model).double()
    wide.solver = nsd.nn.SolverOptions("picard", tol=1e-14, max_steps=2000)
    truth = wide(x.double())
    found = model.decide(x.reshape(-1, 1, 5, 6))
    assert bool(found.proven.all())
    assert torch.equal(found.classes, truth.argmax(1))


def test_norms_are_bounded_from_above_and_tightly() -> None:
    weights = torch.randn(60, 60, generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.matrix_norm(weights.double(), 2))
    for estimate in (0.5 * exact, 0.99999 * exact):
        assert exact <= norm_bound(weights.double()[None], estimate) <= 1.002 * exact
    model = nsd.nn.ConvDEQ(nsd.ConvDEQ("relu", sigma_a2=0.1, image=(1, 5, 6)), width=4, out_features=3).double()
    dense = model._layer.forward(model.recurrent, torch.eye(4 * 30, dtype=torch.float64)) * model._layer.gain
    exact = float(torch.linalg.matrix_norm(dense.detach(), 2))
    assert exact <= model._certified_contraction() <= 1.2 * exact  # the torus is larger than the image


def test_any_cell_can_be_wrapped() -> None:
    torch.manual_seed(0)
    W, U, R = nn.Linear(24, 24), nn.Linear(P, 24, bias=False), nn.Linear(24, CLASSES)
    with torch.no_grad():
        W.weight.mul_(0.7 / torch.linalg.matrix_norm(W.weight, 2))
    deq = nsd.nn.Contraction(lambda z, x: torch.tanh(W(z) + U(x)), R, lipschitz=0.7001, width=24)
    x, z = rows(1000), torch.zeros(1000, 24, dtype=torch.float64)
    found = deq.decide(x)
    wide = [copy.deepcopy(part).double() for part in (W, U, R)]
    with torch.no_grad():
        for _ in range(200):
            z = torch.tanh(wide[0](z) + wide[1](x.double()))
        truth = wide[2](z)
    assert float(found.proven.double().mean()) > 0.99
    assert torch.equal(found.classes[found.proven], truth.argmax(1)[found.proven])
    near = deq.bounded(x, 1e-3)
    assert float((near.outputs - truth).abs()[near.proven].max()) <= 1e-3  # what was asked for
    with pytest.raises(ContractionError, match="lipschitz lies in"):
        nsd.nn.Contraction(W, R, lipschitz=1.0, width=24)


@pytest.mark.parametrize("far", [1.0, 1e4, 1e5])
def test_inputs_of_a_cell_that_cancel_count(far: float) -> None:
    torch.manual_seed(0)
    U, R, x = nn.Linear(P, 24), nn.Linear(24, CLASSES), far + torch.randn(500, P)
    with torch.no_grad():
        U.bias.copy_(-far * U.weight.sum(1))
    near = nsd.nn.Contraction(lambda z, x: 0.5 * torch.tanh(z) + U(x), R, lipschitz=0.5, width=24).bounded(x, 1e-3)
    wide = [copy.deepcopy(part).double() for part in (U, R)]
    z = torch.zeros(500, 24, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(100):
            z = 0.5 * torch.tanh(z) + wide[0](x.double())
        off = (near.outputs - wide[1](z)).abs().amax(1)
    assert bool((off > 1e-3).any()) == (far > 1.0)  # what was asked for, and is more than rounding leaves
    assert not bool((off > 1e-3)[near.proven].any())
    assert bool(near.proven.all()) == (far == 1.0)


def test_cells_and_readouts_that_fail_or_are_not_affine_are_refused() -> None:
    R, X = nn.Linear(4, 2), torch.ones(3, 4)
    deq = nsd.nn.Contraction(lambda z, x: 0.1 * torch.tanh(z) + x, R, lipschitz=0.1, width=4)
    assert len(deq.decide(X[:0]).classes) == 0
    for cell, readout, rows_, match in (
        (lambda z, x: 0.1 * z + x, lambda z: z**2, X, "not affine"),
        (lambda z, x: 0.1 * z + x, R, X.double(), "torch.float64: mat1 and mat2 .* Give rows of the type"),
        (lambda z, x: 0.1 * z + x, R, torch.nan * X, "X holds NaN"),
        (lambda z, x: 0.1 * z + x, R, X[0], "must have two dimensions"),
        (lambda z, x: (z, x), R, X, r"a state of shape \(1, 4\) .* got tuple"),
        (lambda z, x: 0.1 * z + x, lambda z: z[:, 0], X, r"shape \(1, outputs\), got \(1, 4\), \(1,\)"),
        (lambda z, x: z @ x, R, X, r"for states of shape \(1, 4\), fails"),
        (3, R, X, "not callable"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            nsd.nn.Contraction(cell, readout, lipschitz=0.5, width=4).decide(rows_)
