"""The loop and its solvers: known fixed points, rows that are done early, honest failure."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.optimize import root

import notsodeep as nsd
from helpers import solved, ulps
from notsodeep._equilibrium import SolverMethod, solve_equilibrium
from notsodeep._maps import Product
from notsodeep.errors import ConvergenceWarning, InvalidInputError
from notsodeep.nn import SolverOptions
from notsodeep.nn.deq import power_iteration

SOLVERS = get_args(SolverMethod)


def linear_problem(rows: int, m: int, rate: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """z = b + z M with spectral radius near ``rate``, and its solution."""
    g = torch.Generator().manual_seed(seed)
    M = rate * torch.randn(m, m, generator=g, dtype=torch.float64) / math.sqrt(m)
    b = torch.randn(rows, m, generator=g, dtype=torch.float64)
    return M, b, torch.linalg.solve(torch.eye(m, dtype=torch.float64) - M.mT, b.mT).mT


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_linear_fixed_points(solver: str, rate: float) -> None:
    M, b, solution = linear_problem(5, 40, rate)
    found = solve_equilibrium(lambda z: b + z @ M, b, SolverOptions(solver, tol=1e-12, max_steps=500))
    assert bool(found.converged.all())
    # the error is at most the residual over 1 - |M| in a norm that contracts; 100 leaves room for non-normality
    torch.testing.assert_close(found.value, solution, rtol=0, atol=100 * 1e-12 * float(solution.abs().max()))


@pytest.mark.parametrize("solver", SOLVERS)
def test_nonlinear_fixed_point_agrees_with_scipy(solver: str) -> None:
    g = torch.Generator().manual_seed(1)
    W = 0.4 * torch.randn(12, 12, generator=g, dtype=torch.float64) / math.sqrt(12)
    c = torch.randn(3, 12, generator=g, dtype=torch.float64)
    found = solve_equilibrium(lambda z: torch.tanh(c + z @ W.mT), torch.tanh(c), SolverOptions(solver, tol=1e-13))
    for row in range(3):
        expected = root(lambda z, row=row: z - np.tanh(c[row].numpy() + W.numpy() @ z), np.zeros(12), tol=1e-13).x
        np.testing.assert_allclose(found.value[row].numpy(), expected, rtol=0, atol=solved(1e-13))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_row_alone_is_the_row_in_a_batch(solver: str) -> None:
    """Quick and slow rows together: each ends on the image that met the tolerance first."""
    model = nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 6, 60, 2, solver=SolverOptions(solver, tol=1e-3), dtype=torch.float64)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.logspace(-3, 2, 40, dtype=torch.float64)[:, None] + 0.3
    together = model.solve(x)
    assert len(together.row_steps.unique()) > 1
    for row in range(40):
        alone = model.solve(x[row : row + 1])
        assert alone.steps == int(together.row_steps[row])
        torch.testing.assert_close(alone.value[0], together.value[row], rtol=ulps(1 << 14), atol=ulps())


def test_anderson_goes_where_picard_diverges() -> None:
    """One eigenvalue at -3: no contraction, yet a unique solution that a quasi-Newton method finds."""
    M, b, _ = linear_problem(4, 30, 0.2)
    M[0, 0] -= 3.0
    solution = torch.linalg.solve(torch.eye(30, dtype=torch.float64) - M.mT, b.mT).mT
    picard = solve_equilibrium(lambda z: b + z @ M, b, SolverOptions("picard", tol=1e-10, max_steps=100))
    assert not bool(picard.converged.any())
    found = solve_equilibrium(lambda z: b + z @ M, b, SolverOptions("anderson", tol=1e-10, max_steps=100))
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, solution, rtol=0, atol=solved(1e-10))


def test_slow_picard_is_finished_by_anderson() -> None:
    """A single slow direction, as training leaves it: auto needs far fewer steps than Picard."""
    M, b, _ = linear_problem(4, 30, 0.2)
    M[0, 0] += 0.97
    steps = {
        s: solve_equilibrium(lambda z: b + z @ M, b, SolverOptions(s, tol=1e-8, max_steps=2000)).steps
        for s in ("picard", "auto")
    }
    assert 3 * steps["auto"] < steps["picard"]


@pytest.mark.parametrize("solver", ["auto", "picard"])
def test_rows_that_are_done_leave_the_batch(solver: str) -> None:
    """Three quick rows and one slow one: the map is called on the slow one alone, and all end at their solutions."""
    rates = torch.tensor([0.01, 0.01, 0.01, 0.9], dtype=torch.float64)
    b = torch.ones(4, 3, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    sizes: list[int] = []

    def step_on(rows: torch.Tensor):
        def step(z: torch.Tensor) -> torch.Tensor:
            sizes.append(len(z))
            return b[rows] + rates[rows, None] * torch.sin(z)

        return step

    everyone = torch.arange(4)
    found = solve_equilibrium(
        step_on(everyone), b, SolverOptions(solver, tol=1e-10), restrict=lambda rows: step_on(rows)
    )
    assert sizes[0] == 4
    assert sizes[-1] == 1
    assert bool(found.converged.all())
    reference = solve_equilibrium(step_on(everyone), b, SolverOptions("picard", tol=1e-13, max_steps=2000)).value
    torch.testing.assert_close(found.value, reference, rtol=0, atol=solved(1e-10))


def test_residuals_are_those_of_the_map() -> None:
    M, b, _ = linear_problem(6, 20, 0.6)
    found = solve_equilibrium(lambda z: b + z @ M, b, SolverOptions("picard", tol=1e-6))
    assert float(found.residual.max()) <= 1e-6  # as asked
    image = b + found.value @ M
    after = (image - found.value).norm(dim=1) / image.norm(dim=1)
    assert bool((after <= found.residual).all())  # the value returned is one step further than the one measured


def test_zero_is_an_equilibrium() -> None:
    found = solve_equilibrium(torch.tanh, torch.zeros(2, 3), SolverOptions(tol=1e-6))
    assert bool(found.converged.all())
    assert float(found.value.abs().max()) == 0.0


@pytest.mark.parametrize("solver", SOLVERS)
def test_divergence_ends_early_and_is_reported(solver: str) -> None:
    def explode(z: torch.Tensor) -> torch.Tensor:
        return torch.exp(z * z) + 2.0  # no fixed point

    found = solve_equilibrium(
        explode, torch.ones(2, 1, dtype=torch.float64), SolverOptions(solver, tol=1e-8, max_steps=50)
    )
    assert not bool(found.converged.any())


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_row_that_is_not_finite_spoils_no_other(solver: str) -> None:
    M, b, solution = linear_problem(4, 20, 0.3)
    b[1, 3] = math.nan
    found = solve_equilibrium(lambda z: b + z @ M, b, SolverOptions(solver, tol=1e-10))
    assert found.converged.tolist() == [True, False, True, True]
    torch.testing.assert_close(found.value[[0, 2, 3]], solution[[0, 2, 3]], rtol=0, atol=solved(1e-10))


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e18, 1e30])
@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_whose_squares_leave_the_range_of_float32_are_solved_all_the_same(solver: str, scale: float) -> None:
    model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), 4, 40, 2, solver=SolverOptions(solver))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain, found = model.solve(x), model.solve(scale * x)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value / scale, plain.value, rtol=solved(1e-5), atol=solved(1e-5))
    expected, gradient = (torch.autograd.grad(model(x).sum() * factor, x)[0] / factor for factor in (1.0, scale))
    torch.testing.assert_close(gradient, expected, rtol=solved(1e-5), atol=10.0 * solved(1e-5))


def test_few_steps_are_too_few_at_every_scale() -> None:
    model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), 4, 40, 2, solver=SolverOptions(max_steps=3))
    for scale in (1e-30, 1e-24, 1.0, 1e18, 1e30):
        assert not bool(model.solve(scale * torch.ones(3, 4)).converged.any())


def unstable_model(**options) -> nsd.nn.DEQ:
    """tanh with weights ten times too large: chaotic, no equilibrium that an iteration finds."""
    return nsd.nn.DEQ(
        nsd.DEQ("tanh", sigma_a2=20.0, sigma_b2=1.0), 4, 40, 2, solver=SolverOptions(max_steps=30, **options)
    )


def test_non_convergence_warns_with_the_residual() -> None:
    with pytest.warns(ConvergenceWarning, match=r"not reached for 3 of 3 rows \(0, 1, 2\): relative residual \d"):
        unstable_model(method="picard")(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "newton"}, "one of 'auto', 'picard'"),
        ({"tol": 0.0}, "positive"),
        ({"tol": math.nan}, "number"),
        ({"max_steps": 0}, "whole number from 1 to 1000000"),
    ],
)
def test_options_are_checked(options: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        SolverOptions(**options)


def test_spectral_norm() -> None:
    A = torch.randn(60, 60, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(A, 2))
    near = 1e-3  # the next singular value is close: steps gain little
    assert power_iteration(Product(1.0), A)[0] == pytest.approx(exact, rel=near)
    assert power_iteration(Product(1.0), A)[0] <= exact * (1 + 1e-12)  # power iteration never exceeds it


def test_spectral_norm_of_zero() -> None:
    assert power_iteration(Product(1.0), torch.zeros(3, 3))[0] == 0.0


@pytest.mark.parametrize(
    ("looks", "seen"), [((2, 1, 4), [2, 3, 4, 6, 9, 13, 17, 20]), ((3, 2, 2), [*range(3, 20, 2), 20])]
)
def test_looks_are_where_they_are_asked_for(looks: tuple[int, int, int], seen: list[int]) -> None:
    taken, looked = [], []

    def step(z: torch.Tensor) -> torch.Tensor:
        taken.append(1)
        return 0.5 * z

    def never(z: torch.Tensor, image: torch.Tensor, *_: object) -> torch.Tensor:
        looked.append(len(taken))
        return torch.ones(len(z))

    solve_equilibrium(step, torch.ones(3, 2), SolverOptions("picard", max_steps=20), residual=never, looks=looks)
    assert looked == seen
