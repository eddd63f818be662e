"""Networks of finite width with cells of several layers, or normalised pre-activations."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import solved, tolerance

SPECS = [
    nsd.DEQ(["tanh", "relu"], 0.04, 0.9, 0.1),
    nsd.DEQ(["sin", "tanh", "silu"], 0.01),
    nsd.DEQ("relu", 0.15, normalise=True),
]
SOLVER = nsd.nn.SolverOptions(tol=1e-12, max_steps=500)


def model_of(spec, **options):
    return nsd.nn.DEQ(spec, 5, 24, 2, seed=3, dtype=torch.float64, solver=SOLVER, **options)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_plain_iteration_and_its_gradients(spec):
    """Sixty steps of the definition, differentiated through all of them."""
    model, x = model_of(spec), torch.randn(4, 5, dtype=torch.float64)
    a, b, c = (v**0.5 for v in spec.variances)
    offset = 0.0 if model.offset is None else c * model.offset
    z = torch.zeros(4, 24, dtype=torch.float64)
    for _ in range(60):
        u = a * z @ model.recurrent.T + b * x @ model.input.T + offset
        u = u / u.square().mean(1, keepdim=True).sqrt() if spec.normalise else u
        z = spec.activations[0](u) / 24**0.5
        for phi, weight in zip(spec.activations[1:], model.inner, strict=True):
            z = phi(z @ weight.T) / 24**0.5
    unrolled = z @ model.readout.T
    weights = list(model.parameters())
    expected = torch.autograd.grad(unrolled.square().sum(), weights)
    assert torch.allclose(model(x), unrolled, rtol=0, atol=solved(1e-11))
    for mine, theirs in zip(torch.autograd.grad(model(x).square().sum(), weights), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=solved(1e-10))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_parametrisations_are_the_same_function(spec):
    x = torch.randn(3, 5, dtype=torch.float64)
    first, second = (model_of(spec, parametrisation=name)(x) for name in ("ntk", "standard"))
    assert torch.allclose(first, second, rtol=0, atol=tolerance(torch.float32))  # weights are drawn in single precision


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_files(spec, tmp_path):
    model, x = model_of(spec), torch.randn(3, 5, dtype=torch.float64)
    nsd.nn.save(model, tmp_path / "model.safetensors")
    assert torch.equal(nsd.nn.load(tmp_path / "model.safetensors")(x), model(x))


def test_what_trains():
    models = {kernel: model_of(SPECS[0], kernel=kernel) for kernel in ("ck", "ntk_frozen", "ntk")}
    names = {kernel: [group["name"] for group in model.parameter_groups(0.1)] for kernel, model in models.items()}
    assert names["ck"] == ["readout"]
    assert names["ntk_frozen"] == ["recurrent", "inner.0", "readout"]
    assert names["ntk"] == ["input", "offset", *names["ntk_frozen"]]


def test_contraction_has_all_weights():
    model, (x, y) = model_of(SPECS[0]), torch.randn(2, 200, 24, dtype=torch.float64)
    drive = model._project(torch.randn(1, 5, dtype=torch.float64))
    with torch.no_grad():
        moved = (model._step(x, drive) - model._step(y, drive)).norm(dim=1) / (x - y).norm(dim=1)
    assert float(moved.max()) <= model.contraction() < 1.0
    with pytest.raises(nsd.errors.InvalidInputError, match="no Lipschitz"):
        model_of(SPECS[2]).contraction()


def test_training_lowers_the_error():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64)
    model = nsd.nn.DEQ(SPECS[0], 5, 64, 2, parametrisation="standard")
    rows, labels = torch.from_numpy(X), torch.from_numpy(y)
    losses = []
    for epochs in (0, 15):
        if epochs:
            nsd.nn.fit(model, (X, y), epochs=epochs, lr=0.1, seed=0)
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(model(rows), labels)))
    assert losses[1] < 0.8 * losses[0]


def test_first_derivatives_only():
    model, x = model_of(SPECS[0]), torch.randn(2, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.grad(model(x).sum(), model.input, create_graph=True)


def test_normalised_pre_activations_have_no_scale():
    """Squares of single precision end at 1e38; a row of zeros has no direction."""
    model = nsd.nn.DEQ(nsd.DEQ("relu", 0.15, normalise=True), 3, 16, 2, seed=0)
    far, near = model(torch.full((1, 3), 1e30)), model(torch.full((1, 3), 1e6))
    assert torch.allclose(far, near, rtol=0, atol=1e-4)  # the recurrent part is 1e-6 of the near row
    kernels = [nsd.finite_ck(model.spec, np.full((1, 3), scale), width=16, check=False) for scale in (1e200, 1e8)]
    assert kernels[0] == pytest.approx(kernels[1], abs=1e-6)  # here 1e-8
    for call in (model, model.solve):
        with pytest.raises(nsd.errors.InvalidInputError, match="row of zeros"):
            call(torch.zeros(2, 3))
