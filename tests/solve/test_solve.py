"""Solving with kernels: every way gives the same numbers, and says so when it cannot."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import solved, tolerance, ulps
from notsodeep.errors import ConvergenceError, InvalidInputError, NotSoDeepWarning
from notsodeep.estimators.machine import choose_solver
from notsodeep.solve import CG, KernelTiles, operators, solve_dense, solve_operator
from notsodeep.solve.dense import factorise, leave_one_out_path
from notsodeep.solve.operators import add_block, as_columns, triangle_bytes
from notsodeep.solve.pivoted import pivoted_cholesky, preconditioner

SOLVED = 1e-8  # all ways agree to this; residuals are asked for at 1e-10 and K is well conditioned at these ridges


@pytest.fixture(scope="module")
def problem():
    mix = nsd.GaussianMixture.two_class(60)
    X, y = mix.sample(150, seed=0)
    deq = nsd.DEQ("relu", 0.2).centred(nsd.MixtureStatistics.estimate(X).tau0)
    targets = torch.from_numpy(np.stack([2.0 * y - 1.0, np.sin(X[:, 0])], axis=1))
    return deq, torch.from_numpy(X), targets, y


def kernel_of(network):
    return lambda a, b: nsd.ntk(network, a, b)


def iterated(kernel, X, targets, ridges, options, weights=None):
    scale = None if weights is None else weights.sqrt()
    tiles = KernelTiles(kernel, X, scale=scale, dtype=options.dtype, folder=options.folder)
    return solve_operator(tiles, targets, ridges, options)


def dense(problem, ridge):
    deq, X, targets, _ = problem
    K = nsd.ntk(deq, X)
    return torch.linalg.solve(K + ridge * torch.eye(len(K), dtype=K.dtype), targets)


# ---- conjugate gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 40, None])
def test_conjugate_gradients_solve_for_every_ridge_at_once(problem, rank):
    (deq, X, targets, _), tol = problem, 1e-10
    found = iterated(kernel_of(deq), X, targets, [0.3, 0.01], CG(tol=tol, rank=rank))
    assert found.rank == (25 if rank is None else rank)
    assert float(found.residuals.max()) <= tol
    for ridge, coefficients in zip(found.ridges, found.coefficients, strict=True):
        assert torch.allclose(coefficients, dense(problem, ridge), rtol=SOLVED, atol=SOLVED)


def test_the_preconditioner_saves_steps(problem):
    deq, X, targets, _ = problem
    steps = [iterated(kernel_of(deq), X, targets, [0.01], CG(rank=rank)).steps for rank in (75, 0)]
    assert steps[0] < 0.8 * steps[1]


@pytest.mark.parametrize("store", ["memory", "disk", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_in_memory_in_a_memory_map_or_never_stored(problem, tmp_path, monkeypatch, store, dtype):
    deq, X, targets, _ = problem
    monkeypatch.setattr(operators, "LIMITS", dataclasses.replace(operators.LIMITS, panel=64))
    if store == "none":
        monkeypatch.setattr(operators, "available_bytes", lambda device: 0)
    options = CG(tol=1e-10, rank=75, dtype=dtype, folder=tmp_path / "map" if store == "disk" else None)
    found = iterated(kernel_of(deq), X, targets, [0.2], options)
    assert torch.allclose(found.coefficients[0], dense(problem, 0.2), rtol=SOLVED, atol=SOLVED)
    assert (found.refinements > 0) == (dtype == "float32")
    assert not list(tmp_path.rglob("*.*"))  # the map goes with its last user


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_free_memory_is_guessed_where_the_system_does_not_tell(monkeypatch, system):
    assert operators.available_bytes(torch.device("cpu")) > 0

    def without_free_pages(name):
        raise ValueError("unrecognized configuration name")

    if system == "windows":
        monkeypatch.delattr(operators.os, "sysconf")
    else:
        monkeypatch.setattr(operators.os, "sysconf", without_free_pages)
    assert operators.available_bytes(torch.device("cpu")) == operators.LIMITS.assumed_memory


def test_a_folder_that_cannot_be_written_is_refused(problem, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InvalidInputError, match="taken cannot hold the kernel: File exists"):
        nsd.DEQRegressor(solver=CG(folder=tmp_path / "taken"), ridge=1e-2).fit(np.eye(9), np.ones(9))


def test_residuals_of_many_rows_are_judged_on_a_sample(problem, monkeypatch):
    deq, X, targets, _ = problem
    options = CG(dtype="float32", tol=1e-4, rank=75)
    tight = dataclasses.replace(options, tol=1e-5)  # products in float32 reach it, but not clearly
    whole, exact = (iterated(kernel_of(deq), X, targets, [0.2], each) for each in (options, tight))
    monkeypatch.setattr("notsodeep.solve.iterative.LIMITS", dataclasses.replace(operators.LIMITS, panel=14))
    part, again = (iterated(kernel_of(deq), X, targets, [0.2], each) for each in (options, tight))
    assert torch.equal(part.coefficients, whole.coefficients)
    assert not torch.equal(part.residuals, whole.residuals)
    assert torch.allclose(part.residuals, whole.residuals, rtol=0.8, atol=0)  # 1/sqrt(28) is a standard error
    assert torch.equal(again.residuals, exact.residuals)  # a sample that is not good enough asks for all rows


def test_many_rows_are_solved_by_what_is_predicted_to_be_quicker(monkeypatch):
    rows = torch.empty(10_001, 1)
    assert choose_solver("auto", rows[:10_000]) == (None, "up to 10000 rows")
    for seconds, found in (((2.0, 1.0), CG()), ((1.0, 2.0), None)):
        monkeypatch.setattr("notsodeep.estimators.machine.predicted_seconds", lambda n, s=seconds: s)
        options, reason = choose_solver("auto", rows)
        assert (options, "s predicted" in reason) == (found, True)
    monkeypatch.setattr("notsodeep.estimators.machine.available_bytes", lambda device: 8 * 10_001**2)
    assert choose_solver("auto", rows) == (CG(), "the matrix does not fit into the free memory")
    assert choose_solver("cholesky", rows) == (None, "as given")
    assert choose_solver(CG(tol=0.1), rows) == (CG(tol=0.1), "as given")
    with pytest.raises(InvalidInputError, match="solver must be"):
        choose_solver("magic", rows)


def test_what_cannot_converge_says_so(problem):
    deq, X, targets, _ = problem
    with pytest.raises(ConvergenceError, match="stopped after 3 steps"):
        iterated(kernel_of(deq), X, targets, [0.01], CG(rank=0, max_steps=3))
    with pytest.raises(ConvergenceError, match="not positive definite"):
        iterated(lambda a, b: -kernel_of(deq)(a, b), X, targets, [0.01], CG(rank=0))

    def gram(a, b):  # of rank 60: what of the targets lies beside it meets the ridge alone
        return a @ (a if b is None else b).T

    with pytest.raises(ConvergenceError, match="double precision carries no further"):
        iterated(gram, X, targets, [1e-8], CG(rank=0, tol=1e-13))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridges": []}, "ridges must be"),
        ({"ridges": [0.0]}, "ridges must be"),
        ({"weights": torch.zeros(150)}, "weights must"),
        ({"weights": torch.ones(149)}, "weights must"),
    ],
)
def test_refusals(problem, change, message):
    deq, X, targets, _ = problem
    arguments = {"ridges": [0.1], **change}
    with pytest.raises(InvalidInputError, match=message):
        solve_dense(nsd.ntk(deq, X), targets, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tol": 2.0}, "tol must"), ({"rank": -1}, "rank must"), ({"dtype": "float16"}, "dtype must")],
)
def test_options_that_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        CG(**change)


# ---- the kernel as an operator -----------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 3))
def test_a_product_with_tiles_is_the_product_with_the_matrix(n, panel, columns):
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    v = torch.randn(n, columns, dtype=torch.float64, generator=generator)
    scale = torch.rand(n, dtype=torch.float64, generator=generator)
    tiles = KernelTiles(lambda a, b: torch.exp(a @ (a if b is None else b).T), X, scale=scale)
    tiles.panel = min(panel, n)
    whole = scale[:, None] * torch.exp(X @ X.T) * scale
    close = {"rtol": tolerance(), "atol": tolerance() * float(whole.abs().max())}
    assert torch.allclose(tiles @ v, whole @ v, **close)
    assert torch.allclose(tiles.columns(torch.tensor([n - 1])), whole[:, -1:], **close)
    assert torch.allclose(tiles.diagonal(), whole.diagonal(), **close)


@pytest.mark.parametrize(("top", "left", "shape"), [(0, 700, (700, 2300)), (5, 5, (900, 900)), (3, 3000, (1, 1))])
def test_a_block_taken_in_pieces_counts_for_both_triangles(top, left, shape):
    rng = np.random.default_rng(0)
    block = torch.from_numpy(rng.standard_normal(shape))
    block = block + block.T if top == left else block
    K = torch.zeros(3001, 3001, dtype=torch.float64)
    K[left : left + shape[1], top : top + shape[0]] = block.T
    K[top : top + shape[0], left : left + shape[1]] = block
    v = torch.from_numpy(rng.standard_normal((3001, 3)))
    for laid in (v, as_columns(v, v.dtype)):
        out = torch.zeros_like(v)
        add_block(out, laid, top, left, block)
        np.testing.assert_allclose(out, K @ v, rtol=0.0, atol=100.0 * tolerance())


def test_memory_of_the_triangle():
    # four bytes for each of n^2 / 2 entries, and the tiles on the diagonal twice
    assert triangle_bytes(60_000, torch.float32) == pytest.approx(7.2e9, rel=0.04)


# ---- low rank --------------------------------------------------------------------------------------------


def test_pivoted_cholesky_is_exact_at_full_rank_and_bounds_what_it_leaves():
    A = torch.randn(50, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K = A @ A.T
    F, _, pivots = pivoted_cholesky(lambda i: K[:, i], K.diagonal(), rank=50, seed=1)
    assert F.shape[1] == 12
    assert torch.allclose(F @ F.T, K, rtol=0, atol=tolerance() * 50)
    F, residual, pivots = pivoted_cholesky(lambda i: K[:, i], K.diagonal(), rank=5, seed=1)
    left = K - F @ F.T
    assert F.shape[1] == len(set(pivots.tolist())) == 5
    assert torch.allclose(left.diagonal(), residual, rtol=0, atol=tolerance() * 50)
    assert float(torch.linalg.eigvalsh(left).min()) > -tolerance()
    assert float(left[pivots].abs().max()) < tolerance()  # pivot rows are reproduced exactly


def test_pivots_are_drawn_in_proportion_to_the_diagonal():
    d = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    K = torch.diag(d)
    first = [int(pivoted_cholesky(lambda i: K[:, i], d, 1, seed=s)[2]) for s in range(2000)]
    shares = np.bincount(first, minlength=3) / len(first)
    assert np.abs(shares - d.numpy() / 8).max() < tolerance(samples=2000) / 2  # variances are at most 1/4


def test_one_factor_serves_every_ridge(problem):
    deq, X, _, _ = problem
    tiles = KernelTiles(kernel_of(deq), X)
    F, residual, _ = pivoted_cholesky(tiles.columns, tiles.diagonal(), 40)
    R = torch.randn(len(X), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = preconditioner(F, residual)(R, torch.tensor([0.1, 1e-4], dtype=torch.float64))
    for j, ridge in enumerate((0.1, 1e-4)):
        P = F @ F.T + (ridge + 0.5 * residual.mean()) * torch.eye(len(X), dtype=torch.float64)
        assert torch.allclose(got[:, j], torch.linalg.solve(P, R[:, j]), rtol=0, atol=tolerance())


# ---- dense -----------------------------------------------------------------------------------------------


def brute_force(K, y, ridge, w):
    """Predictions of each row by a regression that saw one unit of it less."""
    out = torch.empty_like(y)
    for i in range(len(K)):
        less = w.clone()
        less[i] -= 1.0
        rest = less > 0
        A = K[rest][:, rest] + torch.diag(ridge / less[rest])
        out[i] = K[i, rest] @ torch.linalg.solve(A, y[rest])
    return out


@pytest.mark.parametrize("weighted", [False, True])
def test_leave_one_out_is_what_brute_force_gives(problem, weighted):
    deq, X, targets, _ = problem
    X, targets = X[:40], targets[:40]
    w = torch.linspace(0.5, 2.0, 40, dtype=torch.float64) if weighted else torch.ones(40, dtype=torch.float64)
    K = nsd.ntk(deq, X)
    found = solve_dense(K, targets, [0.02], weights=w if weighted else None, loo=True)
    expected = brute_force(K, targets, 0.02, w)
    assert torch.allclose(found.leave_one_out[0], expected, rtol=SOLVED, atol=SOLVED)


@pytest.mark.parametrize("n", [60, 300])
def test_a_factor_takes_the_place_of_its_matrix_and_knows_the_diagonal_of_the_inverse(n):
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K = A @ A.T
    expected = torch.linalg.inv(K + n * torch.eye(n)).diagonal()
    inside = K.clone()
    factor = factorise(inside, float(n), overwrite=True)
    assert factor.lower.data_ptr() == inside.data_ptr()
    assert torch.allclose(factor.inverse_diagonal(20), expected[-20:], rtol=tolerance(), atol=0)
    assert torch.allclose(factor.inverse_diagonal(n), expected, rtol=tolerance(), atol=0)
    with pytest.raises(ConvergenceError, match="not positive"):
        factorise(-torch.eye(3, dtype=torch.float64), overwrite=True)


def test_rows_of_weight_two_are_there_twice(problem):
    deq, X, targets, _ = problem
    X, targets = X[:30], targets[:30]
    w = torch.ones(30, dtype=torch.float64)
    w[5] = 2.0
    repeated = [*range(30), 5]
    new = nsd.ntk(deq, X[:4] + 0.1, X)
    expected = solve_dense(nsd.ntk(deq, X[repeated]), targets[repeated], [0.1]).coefficients[0]
    direct = solve_dense(nsd.ntk(deq, X), targets, [0.1], weights=w)
    for found in (direct, iterated(kernel_of(deq), X, targets, [0.1], CG(tol=1e-11), w)):
        assert torch.allclose(new @ found.coefficients[0], new[:, repeated] @ expected, rtol=0, atol=solved(1e-11))


def test_the_path_of_one_eigendecomposition(problem):
    deq, X, targets, _ = problem
    K = nsd.ntk(deq, X)
    path = leave_one_out_path(K, targets)
    direct = solve_dense(K, targets, [0.3, 1e-3], loo=True)
    for i, ridge in enumerate((0.3, 1e-3)):
        assert torch.allclose(path(ridge), direct.leave_one_out[i], rtol=SOLVED, atol=SOLVED)


def test_a_bad_pivot_is_retried_with_a_jitter_that_is_named():
    K = torch.ones(5, 5, dtype=torch.float64)
    with pytest.warns(NotSoDeepWarning, match="jitter of 1e-14"):
        factor = factorise(K)
    assert factor.jitter == pytest.approx(1e-14, rel=ulps(), abs=0)
    assert torch.isfinite(factor.solve(torch.ones(5, dtype=torch.float64))).all()
    single = torch.ones(5, 5)
    single.diagonal().add_(1e-9)  # lost in float32: the ridge brings it back in float64
    with pytest.warns(NotSoDeepWarning, match="float64 with a jitter of 0"):
        assert factorise(single, 1e-9).jitter == 0.0
    with pytest.raises(ConvergenceError, match="not positive definite"):
        factorise(-torch.eye(3))
    with pytest.raises(InvalidInputError, match="NaN"):
        factorise(torch.full((2, 2), float("nan")))
