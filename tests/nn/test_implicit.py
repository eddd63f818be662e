"""Derivatives through the equilibrium: finite differences, unrolled iterations, every torch.func transform."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import notsodeep as nsd
from helpers import differences, tolerance
from notsodeep._equilibrium import SolverMethod
from notsodeep.activations import Activation

# torch loads its own jvp decompositions through torch.jit on first use
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
CLOSE = {"rtol": tolerance(), "atol": tolerance()}


def small(phi: str | Activation = "silu", method: str = "auto", **options) -> nsd.nn.DEQ:
    solver = nsd.nn.SolverOptions(method, tol=1e-13)
    return nsd.nn.DEQ(nsd.DEQ(phi, sigma_a2=0.2), 3, 6, 2, dtype=torch.float64, solver=solver, **options)


def inputs(rows: int = 3) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def as_function(model: nsd.nn.DEQ) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    names = [name for name, _ in model.named_parameters()]
    weights = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    return lambda x, *w: functional_call(model, dict(zip(names, w, strict=True)), (x,)), weights


@pytest.mark.parametrize("method", get_args(SolverMethod))
def test_gradcheck_in_both_modes(method: str) -> None:
    f, weights = as_function(small(method=method))
    assert gradcheck(f, (inputs().requires_grad_(), *weights), check_forward_ad=True)


@pytest.mark.parametrize("phi", ["tanh", "relu", "gelu"])
def test_gradcheck_of_other_activations(phi: str) -> None:
    f, weights = as_function(small(phi))
    assert gradcheck(f, (inputs().requires_grad_(), *weights))


def test_gradgradcheck() -> None:
    f, weights = as_function(small())
    assert gradgradcheck(f, (inputs(2).requires_grad_(), *weights), check_fwd_over_rev=True)


def test_third_derivatives() -> None:
    """The linear equilibrium is closed under differentiation: any order works."""
    model = small("tanh")
    x = inputs(1).requires_grad_()
    (first,) = torch.autograd.grad(model(x)[0, 0], x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)

    def slope(point: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(model(point)[0, 0], point, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), point)
        return h

    (third,) = torch.autograd.grad(second.sum(), x)
    step = 1e-5
    for i in range(3):
        shift = torch.zeros_like(x)
        shift[0, i] = step
        difference = (slope((x + shift).detach().requires_grad_()) - slope((x - shift).detach().requires_grad_())).sum()
        assert float(third[0, i]) == pytest.approx(
            float(difference) / (2 * step), rel=differences(step), abs=differences(step)
        )


def test_gradient_is_that_of_the_unrolled_iteration() -> None:
    model, x = small("tanh"), inputs()
    model(x).square().sum().backward()
    A, B, a = (p.detach().clone().requires_grad_() for p in (model.recurrent, model.input, model.readout))
    z = torch.zeros(3, 6, dtype=torch.float64)
    for _ in range(120):
        z = torch.tanh(math.sqrt(0.2) * z @ A.mT + math.sqrt(0.8) * x @ B.mT) / math.sqrt(6)
    (z @ a.mT).square().sum().backward()
    for ours, theirs in ((model.recurrent, A), (model.input, B), (model.readout, a)):
        torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)


def test_per_sample_gradients_by_vmap() -> None:
    model, x = small(), inputs()
    weights = {k: v.detach() for k, v in model.named_parameters()}

    def loss(w: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, w, (row,)).square().sum()

    together = vmap(grad(loss), (None, 0))(weights, x)
    for i, row in enumerate(x):
        for name, value in grad(loss)(weights, row).items():
            torch.testing.assert_close(together[name][i], value, **CLOSE)


def test_jacobians_agree_and_hessians_are_symmetric() -> None:
    model, row = small(), inputs()[0]
    torch.testing.assert_close(jacrev(model)(row), jacfwd(model)(row), **CLOSE)
    H = hessian(lambda x: model(x)[0])(row)
    torch.testing.assert_close(H, H.mT, **CLOSE)
    _, tangent = jvp(model, (row,), (torch.ones_like(row),))
    torch.testing.assert_close(tangent, jacrev(model)(row).sum(-1), **CLOSE)


def test_ensembles_by_vmap_over_the_weights() -> None:
    """Both nestings of vmap over weights and samples, against a plain loop."""
    model, x = small(), inputs()
    members = [{k: (0.7 + 0.1 * i) * v.detach() for k, v in model.named_parameters()} for i in range(2)]
    stacked = {k: torch.stack([m[k] for m in members]) for k in members[0]}

    def slope(w: dict[str, Tensor], row: Tensor) -> dict[str, Tensor]:
        return grad(lambda v: functional_call(model, v, (row,)).sum())(w)

    outer = vmap(lambda w: vmap(lambda row: slope(w, row))(x))(stacked)
    inner = vmap(lambda row: vmap(lambda w: slope(w, row))(stacked))(x)
    for i, member in enumerate(members):
        for j, row in enumerate(x):
            for name, value in slope(member, row).items():
                torch.testing.assert_close(outer[name][i, j], value, **CLOSE)
                torch.testing.assert_close(inner[name][j, i], value, **CLOSE)


def test_memory_does_not_depend_on_the_iterations() -> None:
    """What autograd keeps for a backward pass: the same for a loose and for a tight tolerance."""

    def kept(tol: float) -> tuple[int, int]:
        model = nsd.nn.DEQ(
            nsd.DEQ("tanh", sigma_a2=0.2), 5, 50, 1, solver=nsd.nn.SolverOptions(tol=tol), dtype=torch.float64
        )
        sizes: list[int] = []

        def pack(t: Tensor) -> Tensor:
            sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(torch.ones(4, 5, dtype=torch.float64))
        return sum(sizes), model.solve(torch.ones(4, 5, dtype=torch.float64)).steps

    (loose, few), (tight, many) = kept(1e-2), kept(1e-12)
    assert many > 2 * few
    assert loose == tight


def test_a_failed_adjoint_speaks_up() -> None:
    """The forward equilibrium is found; its derivative, solved with too few steps, is not."""
    model = small("tanh")
    x = inputs().requires_grad_()
    out = model(x)
    fine = torch.autograd.grad(out.sum(), x)[0]
    model.solver = nsd.nn.SolverOptions(tol=1e-13, max_steps=3)
    with pytest.warns(nsd.errors.ConvergenceWarning, match="equilibrium was not reached"):
        out = model(x)
    with pytest.warns(nsd.errors.ConvergenceWarning, match="of the derivative was not reached"):
        rough = torch.autograd.grad(out.sum(), x)[0]
    assert float((rough - fine).abs().max()) > 1e-3  # three steps leave that much
