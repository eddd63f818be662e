"""The convolutional DEQ at finite width: derivatives, its matrix written out, kernels, files and training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import InvalidInputError

# torch loads its own jvp decompositions through torch.jit on first use
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
CLOSE = {"rtol": tolerance(), "atol": tolerance()}
SHAPE = (2, 3, 4)


def small(width: int = 3, phi: str = "silu", pool=1, stride=1, **options) -> nsd.nn.ConvDEQ:
    spec = nsd.ConvDEQ(phi, 0.2, 0.8, 0.1, image=SHAPE, pool=pool, stride=stride)
    solver = nsd.nn.SolverOptions(tol=1e-13)
    return nsd.nn.ConvDEQ(spec, width, 2, solver=solver, dtype=torch.float64, **options)


def inputs(rows: int = 2) -> Tensor:
    return torch.randn(rows, math.prod(SHAPE), generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def as_function(model):
    names = [name for name, _ in model.named_parameters()]
    weights = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    return lambda x, *w: functional_call(model, dict(zip(names, w, strict=True)), (x,)), weights


@pytest.mark.parametrize(("pool", "stride"), [(1, 1), (2, 1), (2, 2)])
def test_derivatives_in_both_modes_and_of_second_order(pool, stride):
    f, weights = as_function(small(2, pool=pool, stride=stride))
    assert gradcheck(f, (inputs().requires_grad_(), *weights), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, (inputs(1).requires_grad_(), *weights), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_it_is_the_equilibrium_of_its_convolutions(stride):
    model, x = small(4, stride=stride), inputs(3)
    spec, images = model.spec, x.reshape(3, *SHAPE)
    a, b, c = (math.sqrt(v) for v in spec.dense.variances)
    drive = b / 3 * torch.nn.functional.conv2d(images, model.input, stride=stride, padding=1)
    drive = drive + c * model.offset[:, None, None]
    z = torch.zeros_like(drive)
    for _ in range(100):
        z = spec.dense.activation(a / 3 * torch.nn.functional.conv2d(z, model.recurrent, padding=1) + drive) / 2.0
    truth = (z / math.sqrt(len(range(0, 3, stride)) * len(range(0, 4, stride)))).flatten(1) @ model.readout.mT
    torch.testing.assert_close(model(x), truth, **CLOSE)
    torch.testing.assert_close(model.solve(x).value, z.flatten(1), **CLOSE)
    for weight in (model.recurrent, model.input, model.readout):  # gradients of the unrolled network
        mine, expected = (
            torch.autograd.grad(out.square().sum(), weight, retain_graph=True)[0] for out in (model(x), truth)
        )
        torch.testing.assert_close(mine, expected, **CLOSE)


def test_transforms_of_torch_func():
    model, x = small(), inputs(3)
    f, weights = as_function(model)
    each = vmap(grad(lambda w, row: f(row[None], *w).square().sum()), in_dims=(None, 0))(weights, x)
    for i in range(3):
        alone = torch.autograd.grad(f(x[i : i + 1], *weights).square().sum(), weights)
        for mine, expected in zip(each, alone, strict=True):
            torch.testing.assert_close(mine[i], expected, **CLOSE)
    many = [torch.stack([w, 0.5 * w]).detach() for w in weights]  # an ensemble: filters with a dimension in front
    both = vmap(lambda *w: f(x, *w))(*many)
    torch.testing.assert_close(both[1], f(x, *(w[1] for w in many)), **CLOSE)


@pytest.mark.parametrize(("pool", "stride"), [(1, 1), (2, 1), ("global", 1), (2, 2), (1, 3)])
def test_its_gradients_have_the_kernel_of_finite_width(pool, stride):
    X, model, generator = inputs(3), small(5, "relu", pool, stride), torch.Generator().manual_seed(3)
    with torch.no_grad():  # the weights that finite_ntk draws, in its order
        for weight in (model.recurrent, model.input, model.readout[0], model.offset):
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    for kernel in ("ntk", "ntk_frozen"):
        model.set_kernel(kernel)
        trained = tuple(p for p in model.parameters() if p.requires_grad)
        rows = [torch.autograd.grad(value, trained, retain_graph=True) for value in model(X)[:, 0]]
        jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        found = nsd.finite_ntk(model.spec, X, width=5, seed=3, kernel=kernel)
        torch.testing.assert_close(found, jacobian @ jacobian.mT, **CLOSE)
    features = model.features(X).detach()
    torch.testing.assert_close(nsd.finite_ck(model.spec, X, width=5, seed=3), features @ features.mT, **CLOSE)


@pytest.mark.slow
def test_kernels_of_finite_width_approach_the_exact_ones():
    spec = nsd.ConvDEQ("relu", 0.2, 0.8, 0.1, image=(1, 4, 3))
    X = np.random.default_rng(0).standard_normal((4, 12)) * 0.5
    exact = nsd.kernels_of(spec, X)
    errors = {}
    for m in (16, 64):
        finite = {"ck": nsd.finite_ck(spec, X, m, draws=48)}
        finite |= {k: nsd.finite_ntk(spec, X, m, draws=48, kernel=k) for k in ("ntk", "ntk_frozen")}
        for kernel, mean in finite.items():
            bound = tolerance(samples=48 * m) * np.linalg.norm(exact[kernel])
            assert np.linalg.norm(mean - exact[kernel]) < bound, (kernel, m)
            single = [nsd.finite_ntk(spec, X, m, seed=s) for s in range(20)] if kernel == "ntk" else []
            errors[kernel, m] = math.sqrt(np.mean([np.sum((one - exact["ntk"]) ** 2) for one in single] or [0.0]))
    slope = math.log(errors["ntk", 64] / errors["ntk", 16]) / math.log(4)
    assert -0.8 < slope < -0.25  # a half, and the noise of 20 draws


def test_contraction_training_and_files(tmp_path):
    model = small(6, "tanh", pool=2, bias=True)
    units = torch.eye(6 * 12, dtype=torch.float64)
    matrix = model._layer.forward(model.recurrent, units).detach()
    exact = float(torch.linalg.matrix_norm(matrix, 2)) * math.sqrt(0.2) / (3 * math.sqrt(6))
    near = 1e-3  # the next singular value is close: steps of power iteration gain little
    assert model.contraction() == pytest.approx(exact, rel=near)
    X, y = inputs(24), torch.arange(24) % 2
    model.limit_contraction(0.5)
    history = nsd.nn.fit(model, (X, y), epochs=8, batch_size=8, lr=0.05, optimiser="adam", progress=False)
    assert history.last.loss < history.epochs[0].loss
    nsd.nn.save(model, tmp_path / "model.safetensors")
    again = nsd.nn.load(tmp_path / "model.safetensors").eval()
    assert isinstance(again, nsd.nn.ConvDEQ)
    assert again.contraction_limit == 0.5
    torch.testing.assert_close(again(X), model.eval()(X), rtol=0, atol=0)
    with pytest.raises(InvalidInputError, match="24"):
        model(torch.ones(2, 25, dtype=torch.float64))
    with pytest.raises(InvalidInputError, match="ConvDEQ"):
        nsd.nn.ConvDEQ(nsd.DEQ("relu", 0.2), 4, 2)
    with pytest.raises(InvalidInputError, match="not images"):
        nsd.finite_ck(model.spec, np.ones((2, 25)), width=4)
