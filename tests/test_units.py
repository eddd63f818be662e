"""Norm-conditioned units, block by block, against their definition and torch's own derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp, vmap

from helpers import differences
from notsodeep.activations.panels import Limits
from notsodeep.errors import InvalidInputError
from notsodeep.units import Basis, Conditioned, norm_units
from notsodeep.units.elementary import elementary, tail_gram

CASES = [
    Basis(0.5, 6),
    Basis(0.7, 3, parity="odd"),
    Basis(0.7, 13, parity="even"),
    Basis(0.2, 14),
    Basis(0.5, 4, singular=1, order=0),
    Basis(0.5, 4, singular=3, order=1),
    Basis(0.5, 15, singular=2, order=2),
    Basis(0.5, 2, singular=2, order=1, parity="odd"),
    Basis(0.5, 2, singular=1, order=0, parity="even"),
]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer(basis: Basis, groups: int = 2, orders: int = 3) -> Conditioned:
    coefficients = draw(groups, basis.size, orders, seed=1).tolist()
    return Conditioned(
        coefficients, basis.alpha, basis.degree, basis.singular, basis.order, basis.parity, low=0.5, high=1.5
    )


def composed(phi: Conditioned, before: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """As torch differentiates, compiles and exports it."""
    norm = x.norm(dim=-1)
    parts, rows = (before / norm.clamp_min(1e-18)[:, None]).tensor_split(phi.groups, -1), phi.rows(norm)
    return torch.cat([elementary(part, rows[:, h], *phi.basis.settings) for h, part in enumerate(parts)], -1)


@pytest.mark.parametrize("basis", CASES, ids=repr)
@pytest.mark.parametrize("width", [8, 7], ids=["equal groups", "unequal groups"])
def test_units_block_by_block_are_those_of_the_definition(basis, width, monkeypatch) -> None:
    monkeypatch.setattr(norm_units, "LIMITS", Limits(block=16))  # many blocks, the last one smaller
    phi, x = layer(basis), draw(11, 5)
    before = draw(11, width, seed=2).requires_grad_()
    expected = composed(phi, before, x)
    found = phi.units(before, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(phi.units(before.detach(), x), expected.detach())
    weights = draw(11, width, seed=3)
    slopes = [torch.autograd.grad((y * weights).sum(), before, retain_graph=True)[0] for y in (expected, found)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(
    "changed", [{"alpha": 2000.0}, {"alpha": 5e-324}, {"singular": 1e-300}, {"degree": 10**18}, {"order": 1.5}], ids=str
)
def test_functions_that_need_tables_without_end_are_refused(changed) -> None:
    with pytest.raises(InvalidInputError, match=r"degree|singular|alpha"):
        Basis(**({"alpha": 0.5, "degree": 4} | changed))


def test_derivatives_of_derivatives_and_of_inputs() -> None:
    phi, x = layer(Basis(0.5, 4, singular=2)), draw(3, 5).requires_grad_()
    w = draw(6, 5, seed=2).requires_grad_()
    fixed = x.detach()
    assert torch.autograd.gradcheck(lambda w: phi.units(fixed @ w.mT, fixed), w)
    assert torch.autograd.gradgradcheck(lambda w: phi.units(fixed @ w.mT, fixed), w)
    assert torch.autograd.gradcheck(lambda x: phi.units(x @ w.detach().mT, x), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of itself
def test_transforms_of_functions() -> None:
    phi, x, w = layer(Basis(0.5, 4)), draw(3, 5), draw(6, 5, seed=2)

    def units(row: torch.Tensor) -> torch.Tensor:
        return phi.units(row @ w.mT, row)

    torch.testing.assert_close(vmap(units)(x), units(x))
    change = draw(3, 5, seed=4)
    near = (units(x + 1e-6 * change) - units(x - 1e-6 * change)) / 2e-6
    small = differences(1e-6) * float(units(x).abs().max())  # the values are of order ten
    torch.testing.assert_close(jvp(units, (x,), (change,))[1], near, rtol=0.0, atol=small)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of itself
def test_gradients_per_sample() -> None:
    phi, x, w = layer(Basis(0.5, 4)), draw(3, 5), draw(6, 5, seed=2)

    def loss(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return phi.units(row @ w.mT, row).square().sum()

    together = vmap(grad(loss), (None, 0))(w, x)
    torch.testing.assert_close(together, torch.stack([grad(loss)(w, row) for row in x]))
    w.requires_grad_()
    torch.testing.assert_close(together[0], torch.autograd.grad(loss(w, x[0]), w)[0])
    outputs, slopes = vmap(torch.func.grad_and_value(loss, argnums=1), (None, 0))(w.detach(), x)
    assert outputs.shape == x.shape
    assert slopes.shape == (3,)


def test_what_is_the_callers_is_left_alone() -> None:
    phi, x = layer(Basis(0.5, 4)), draw(3, 5, dtype=torch.float32)
    before = draw(3, 6, seed=2, dtype=torch.float32)
    kept = before.clone()
    expected = phi.units(before, x)
    assert torch.equal(before, kept)
    with torch.inference_mode():
        torch.testing.assert_close(phi.units(before, x), expected)
    torch.testing.assert_close(phi.units(before, x), expected)  # the work space was not made in inference mode
    half = phi.units(kept.bfloat16(), x)  # as under autocast
    # eight bits of mantissa, and sums of a few
    torch.testing.assert_close(half.float(), expected, rtol=0.1, atol=0.1)


def test_orders_beyond_the_table_beside_smooth_functions_of_high_degree() -> None:
    basis = Basis(1.2, 24, singular=4, order=0)
    rows = torch.full((basis.size,), 50.0, dtype=torch.float64)
    rows[sum(basis.sizes[:-2]) :] = 0.01
    phi = Conditioned((tuple((float(c),) for c in rows),), basis.alpha, basis.degree, basis.singular, basis.order)
    one = torch.ones(1, dtype=torch.float64)
    units = phi.rows(one)
    found = phi.layer(one, one)._tail(units, units, one, False)
    # the expansion of the tail in 1/k ends
    torch.testing.assert_close(found, (rows @ tail_gram(basis, False) @ rows)[None], rtol=1e-2, atol=0.0)


def test_what_inference_mode_asks_for_first_has_gradients_later() -> None:
    phi, x = layer(Basis(0.5, 4, singular=2)), draw(3, 5).square().mean(-1)
    with torch.inference_mode():
        expected = phi.layer(x, x).both(0.5 * x)
    x.requires_grad_()
    torch.testing.assert_close(tuple(part.detach() for part in phi.layer(x, x).both(0.5 * x)), expected)
    assert torch.autograd.gradcheck(lambda q: phi.layer(q, q).both(0.5 * q), x)
