"""Transforms of torch.func against plain calls one by one; what has no derivative is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import notsodeep as nsd
from helpers import ulps
from notsodeep.errors import InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch about itself
NETWORKS = {"deq": nsd.DEQ("erf", 0.15, 0.7, 0.1), "enn": nsd.ENN(["relu"])}


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.7 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def entry(network: Any, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """A number that depends on two kernels at once."""
    found = nsd.kernels_of(network, x, y, kernels=("ck", "ntk"))
    return found["ck"][0, 1] * found["ntk"].sum()


def backward(network: Any, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(entry(network, leaf, y), leaf)
    return slope


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=ulps(64, torch.float64), atol=ulps(64, torch.float64))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_transforms_in_any_order_agree_with_plain_calls(network: Any) -> None:
    batch, other = rows(2, 2, 5), rows(2, 5, seed=1)
    values = torch.stack([entry(network, x) for x in batch])
    slopes = torch.stack([backward(network, x) for x in batch])
    equal(vmap(lambda x: entry(network, x))(batch), values)
    equal(vmap(lambda x: entry(network, x), in_dims=1)(batch.movedim(0, 1)), values)
    equal(grad(lambda x: entry(network, x))(batch[0]), slopes[0])
    equal(vmap(grad(lambda x: entry(network, x)))(batch), slopes)
    equal(grad(lambda b: vmap(lambda x: entry(network, x))(b).sum())(batch), slopes)
    equal(vjp(lambda x: entry(network, x), batch[0])[1](torch.tensor(2.0, dtype=torch.float64))[0], 2.0 * slopes[0])
    with_other = torch.stack([backward(network, x, other) for x in batch])
    equal(vmap(grad(lambda x, y: entry(network, x, y)), (0, None))(batch, other), with_other)
    leaf = batch.clone().requires_grad_()
    vmap(lambda x: entry(network, x))(leaf).sum().backward()
    equal(leaf.grad, slopes)
    matrix = jacrev(lambda x: nsd.ck(network, x))(batch[0])
    expected = torch.autograd.functional.jacobian(lambda x: nsd.ck(network, x), batch[0])
    equal(matrix, expected)


def test_variances_are_differentiated_with_and_without_the_rows() -> None:
    x = rows(4, 3)
    variances = [torch.tensor(v, dtype=torch.float64) for v in (0.2, 0.7, 0.1)]

    def value(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, at: torch.Tensor = x) -> torch.Tensor:
        return entry(nsd.DEQ("tanh", a, b, c), at)

    leaves = [v.clone().requires_grad_() for v in (*variances, x)]
    expected = torch.autograd.grad(value(*leaves), leaves)
    for found, wanted in zip(grad(value, (0, 1, 2, 3))(*variances, x), expected, strict=True):
        equal(found, wanted)
    for found, wanted in zip(grad(value, (0, 1, 2))(*variances), expected[:3], strict=True):
        equal(found, wanted)
    both = torch.stack([x, 0.5 * x])
    (first, second), moved = vmap(grad(value, (0, 3)), (None, None, None, 0))(*variances, both)
    equal(first, expected[0])
    equal(moved[0], expected[3])
    assert float((second - first).abs()) > 0.0
    with pytest.raises(InvalidInputError, match=r"sigma_a2.*one at a time"):
        vmap(lambda a: entry(nsd.DEQ("tanh", a, 0.7), x))(torch.stack(variances))


def test_what_was_recorded_is_not_used_for_other_rows() -> None:
    """One graph is kept for each call: two calls, two backward passes each, and rows that have changed meanwhile."""
    x, y = rows(3, 4).requires_grad_(), rows(3, 4, seed=1).requires_grad_()
    first, second = entry(NETWORKS["deq"], x), entry(NETWORKS["deq"], y)
    expected = backward(NETWORKS["deq"], x.detach()), backward(NETWORKS["deq"], y.detach())
    for _ in range(2):
        equal(torch.autograd.grad(second, y, retain_graph=True)[0], expected[1])
        equal(torch.autograd.grad(first, x, retain_graph=True)[0], expected[0])
    with torch.no_grad():
        x.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(first, x)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_other_derivatives_are_refused_in_words(network: Any) -> None:
    x = rows(3, 4)

    def value(z: torch.Tensor) -> torch.Tensor:
        return entry(network, z)

    def twice() -> Any:
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(leaf), leaf, create_graph=True)
        return torch.autograd.grad(slope.sum(), leaf)

    def dual() -> Any:
        with forward_ad.dual_level():
            return value(forward_ad.make_dual(x, x))

    for attempt in (
        twice,
        dual,
        lambda: jvp(value, (x,), (x,)),
        lambda: jacfwd(value)(x),
        lambda: jvp(lambda a: nsd.ck(nsd.DEQ("tanh", a), x), *[(torch.tensor(0.2),)] * 2),
        lambda: hessian(value)(x),
        lambda: grad(lambda z: grad(value)(z).sum())(x),
        lambda: jacrev(jacrev(value))(x),
        lambda: torch.autograd.functional.hessian(value, x),
    ):
        with pytest.raises(InvalidInputError, match="first derivatives only"):
            attempt()


def test_transforms_of_convolutional_kernels() -> None:
    deq, images = nsd.ConvDEQ("relu", 0.2, image=(1, 2, 3), filter=1), rows(2, 3, 6)
    equal(vmap(lambda x: nsd.ck(deq, x))(images), torch.stack([nsd.ck(deq, x) for x in images]))
    with pytest.raises(InvalidInputError, match="no gradients in the images"):
        grad(lambda x: nsd.ck(deq, x).sum())(images[0])
    with pytest.raises(InvalidInputError, match="no gradients in the variances"):
        nsd.ConvDEQ("relu", torch.tensor(0.2, requires_grad=True), image=(1, 2, 3))


def test_tensors_of_inference() -> None:
    x, network = rows(3, 4), NETWORKS["deq"]
    with torch.inference_mode():
        inside, made = nsd.ck(network, x.clone()), x.clone()
    equal(inside.clone(), nsd.ck(network, x))
    equal(nsd.ck(network, made), nsd.ck(network, x))


@pytest.mark.slow
def test_kernels_inside_a_compiled_function() -> None:
    x, network = rows(3, 4), NETWORKS["deq"]
    compiled = torch.compile(lambda z: 2.0 * nsd.ck(network, z).sum(), backend="eager")
    equal(compiled(x), 2.0 * nsd.ck(network, x).sum())
    leaf = x.clone().requires_grad_()
    compiled(leaf).backward()
    equal(leaf.grad, grad(lambda z: 2.0 * nsd.ck(network, z).sum())(x))
    torch.compiler.reset()
