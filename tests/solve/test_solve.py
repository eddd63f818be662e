"""Solving with kernels: every way gives the same numbers, and says so when it cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import solved, tolerance, ulps
from notsodeep.errors import CheckpointError, ClusterError, ConvergenceError, InvalidInputError, NotSoDeepWarning
from notsodeep.solve import (
    NAMES,
    KernelTiles,
    NetworkKernel,
    factorise,
    iterative,
    leave_rows_out,
    nystrom,
    pivoted_cholesky,
    precondition,
    ridge_path,
    solve_dense,
    solve_kernel,
    solve_operator,
    top_eigenpairs,
    triangle_bytes,
)
from notsodeep.solve.iterative import SolveCheckpoint
from notsodeep.solve.operator import add_block, as_columns

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


def dense(problem, ridge):
    deq, X, targets, _ = problem
    K = nsd.ntk(deq, X)
    return torch.linalg.solve(K + ridge * torch.eye(len(K), dtype=K.dtype), targets)


@pytest.mark.parametrize("name", NAMES)
def test_every_preconditioner_leads_to_the_same_solution(problem, name):
    (deq, X, targets, y), tol = problem, 1e-10
    equivalent = nsd.equivalent(deq, nsd.MixtureStatistics.estimate(X, y), "ntk")
    found = solve_kernel(
        kernel_of(deq), X, targets, [0.3, 0.01], method="cg", preconditioner=name, rank=40, tol=tol,
        equivalent=equivalent if "equivalent" in name else None,
    )  # fmt: skip
    assert found.preconditioner == name
    assert float(found.residuals.max()) <= tol
    for ridge, coefficients in zip(found.ridges, found.coefficients, strict=True):
        assert torch.allclose(coefficients, dense(problem, ridge), rtol=SOLVED, atol=SOLVED)


def test_preconditioners_save_steps(problem):
    deq, X, targets, y = problem
    equivalent = nsd.equivalent(deq, nsd.MixtureStatistics.estimate(X, y), "ntk")
    steps = {
        name: solve_kernel(
            kernel_of(deq), X, targets, [0.01], method="cg", preconditioner=name, rank=75, equivalent=equivalent
        ).steps
        for name in NAMES
    }
    assert steps["rpcholesky"] < 0.8 * steps["none"]
    assert steps["equivalent"] < 0.8 * steps["none"]
    assert steps["equivalent+rpcholesky"] <= steps["equivalent"]


@pytest.mark.parametrize(("activation", "kind"), [("relu", "ntk"), ("tanh", "ck")])
def test_pivots_after_the_gram_part_of_the_equivalent_save_steps_on_real_data(activation, kind):
    images, y = load_digits(return_X_y=True)
    X, targets = torch.from_numpy(images[:400] / 60.0), torch.from_numpy(2.0 * np.eye(10)[y[:400]] - 1.0)
    deq = nsd.DEQ(activation, 0.2)
    equivalent = nsd.equivalent(deq, nsd.MixtureStatistics.estimate(X), kind, "own")
    steps = {
        name: solve_kernel(
            lambda a, b: nsd.kernels_of(deq, a, b, kernels=(kind,))[kind], X, targets, [1e-3], method="cg",
            preconditioner=name, rank=60, equivalent=equivalent,
        ).steps
        for name in ("rpcholesky", "equivalent+rpcholesky")
    }  # fmt: skip
    assert steps["equivalent+rpcholesky"] < steps["rpcholesky"]


@pytest.mark.parametrize("store", ["memory", "disk", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_in_memory_on_disk_or_never_kept(problem, tmp_path, store, dtype):
    deq, X, targets, _ = problem
    found = solve_kernel(
        kernel_of(deq), X, targets, [0.2], method="cg", store=store, folder=tmp_path, dtype=dtype, tol=1e-10, rank=75
    )
    assert torch.allclose(found.coefficients[0], dense(problem, 0.2), rtol=SOLVED, atol=SOLVED)
    assert (found.refinements > 0) == (dtype == "float32")


def test_residuals_of_many_rows_are_judged_on_a_sample(problem, monkeypatch):
    deq, X, targets, _ = problem
    options = {"method": "cg", "dtype": "float32", "tol": 1e-5, "rank": 75}
    whole = solve_kernel(kernel_of(deq), X, targets, [0.2], **options)
    monkeypatch.setattr(iterative, "_FEW", 100)
    every = solve_kernel(kernel_of(deq), X, targets, [0.2], **options)  # the sample holds all 150 rows
    # products in single precision
    assert torch.allclose(every.residuals, whole.residuals, rtol=1e-6, atol=0)
    assert torch.equal(every.coefficients, whole.coefficients)
    monkeypatch.setattr(iterative, "_SAMPLE", 100)
    part = solve_kernel(kernel_of(deq), X, targets, [0.2], **options)
    assert torch.allclose(part.residuals, whole.residuals, rtol=0.3, atol=0)  # 1/sqrt(200) is a standard error
    monkeypatch.setattr(iterative, "_CLEARLY", 0.0)  # a sample that is not good enough asks for all rows
    assert torch.equal(solve_kernel(kernel_of(deq), X, targets, [0.2], **options).residuals, whole.residuals)


@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 3))
def test_a_product_with_tiles_is_the_product_with_the_matrix(n, panel, columns):
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    v = torch.randn(n, columns, dtype=torch.float64, generator=generator)
    scale = torch.rand(n, dtype=torch.float64, generator=generator)
    tiles = KernelTiles(lambda a, b: torch.exp(a @ (a if b is None else b).T), X, scale=scale, panel=panel)
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
    found = pivoted_cholesky(lambda i: K[:, i], K.diagonal(), rank=50, seed=1)
    assert found.rank == 12
    assert torch.allclose(found.F @ found.F.T, K, rtol=0, atol=tolerance() * 50)
    part = pivoted_cholesky(lambda i: K[:, i], K.diagonal(), rank=5, seed=1)
    left = K - part.F @ part.F.T
    assert part.rank == 5
    assert len(set(part.pivots.tolist())) == 5
    assert torch.allclose(left.diagonal(), part.residual, rtol=0, atol=tolerance() * 50)
    assert float(torch.linalg.eigvalsh(left).min()) > -tolerance()
    assert float(left[part.pivots].abs().max()) < tolerance()  # pivot rows are reproduced exactly


def test_pivots_are_drawn_in_proportion_to_the_diagonal():
    d = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    K = torch.diag(d)
    first = [int(pivoted_cholesky(lambda i: K[:, i], d, 1, seed=s).pivots[0]) for s in range(2000)]
    shares = np.bincount(first, minlength=3) / len(first)
    assert np.abs(shares - d.numpy() / 8).max() < tolerance(samples=2000) / 2  # variances are at most 1/4


def test_nystrom_reproduces_its_rows():
    A = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K = A @ A.T
    found = nystrom(lambda i: K[:, i], K.diagonal(), rank=10)
    assert torch.allclose((found.F @ found.F.T)[found.pivots], K[found.pivots], rtol=0, atol=tolerance())
    with pytest.raises(InvalidInputError, match="rank must be"):
        nystrom(lambda i: K[:, i], K.diagonal(), rank=31)


def test_one_factor_serves_every_ridge(problem):
    deq, X, _, _ = problem
    tiles = KernelTiles(kernel_of(deq), X)
    chosen = precondition("rpcholesky", tiles, rank=40)
    low = pivoted_cholesky(tiles.columns, tiles.diagonal(), 40)
    R = torch.randn(len(X), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = chosen.solve(R, torch.tensor([0.1, 1e-4], dtype=torch.float64))
    for j, ridge in enumerate((0.1, 1e-4)):
        P = low.F @ low.F.T + (ridge + 0.5 * low.residual.mean()) * torch.eye(len(X), dtype=torch.float64)
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
    found = solve_kernel(kernel_of(deq), X, targets, [0.02], weights=w if weighted else None, loo=True)
    expected = brute_force(nsd.ntk(deq, X), targets, 0.02, w)
    assert torch.allclose(found.leave_one_out[0], expected, rtol=SOLVED, atol=SOLVED)


def test_rows_of_no_weight_are_not_there_and_rows_of_weight_two_are_there_twice(problem):
    deq, X, targets, _ = problem
    X, targets = X[:30], targets[:30]
    w = torch.ones(30, dtype=torch.float64)
    w[3], w[5] = 0.0, 2.0
    repeated = [i for i in range(30) if i != 3] + [5]
    new = nsd.ntk(deq, X[:4] + 0.1, X)
    expected = solve_kernel(kernel_of(deq), X[repeated], targets[repeated], [0.1]).coefficients[0]
    for method in ("cholesky", "cg"):
        found = solve_kernel(kernel_of(deq), X, targets, [0.1], weights=w, method=method, tol=1e-11)
        assert torch.allclose(new @ found.coefficients[0], new[:, repeated] @ expected, rtol=0, atol=solved(1e-11))
    loo = solve_kernel(kernel_of(deq), X, targets, [0.1], weights=w, loo=True)
    assert torch.allclose(loo.leave_one_out[0, 3], nsd.ntk(deq, X[3:4], X)[0] @ loo.coefficients[0])


def test_the_path_of_one_eigendecomposition(problem):
    deq, X, targets, _ = problem
    K = nsd.ntk(deq, X)
    path = ridge_path(K, targets)
    direct = solve_kernel(kernel_of(deq), X, targets, [0.3, 1e-3], loo=True)
    for i, ridge in enumerate((0.3, 1e-3)):
        assert torch.allclose(path.solution(ridge), direct.coefficients[i], rtol=SOLVED, atol=SOLVED)
        assert torch.allclose(path.leave_one_out(ridge), direct.leave_one_out[i], rtol=SOLVED, atol=SOLVED)
    with pytest.raises(InvalidInputError, match="positive ridges"):
        path.solution(0.0)


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


# ---- interruptions and refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_killed_solve_goes_on_and_ends_with_the_same_numbers(problem, tmp_path, monkeypatch, dtype):
    deq, X, targets, _ = problem
    options = {"method": "cg", "preconditioner": "none", "tol": 1e-9, "dtype": dtype}
    whole = solve_kernel(kernel_of(deq), X, targets, [0.1, 0.01], **options)
    monkeypatch.setattr(SolveCheckpoint, "due", lambda self: True)
    file, written = tmp_path / "solve.safetensors", itertools.count(1)
    write = SolveCheckpoint.write

    def killed(self, *state):
        write(self, *state)
        if next(written) == whole.steps * 2 // 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SolveCheckpoint, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        solve_kernel(kernel_of(deq), X, targets, [0.1, 0.01], checkpoint=file, **options)
    with pytest.raises(CheckpointError, match="another problem"):
        solve_kernel(kernel_of(deq), X, targets, [0.1, 0.02], checkpoint=file, **options)
    again = solve_kernel(kernel_of(deq), X, targets, [0.1, 0.01], checkpoint=file, **options)
    assert next(written) < 1.5 * whole.steps  # it did not start over
    assert again.steps == whole.steps
    assert again.history == whole.history
    assert torch.equal(again.coefficients, whole.coefficients)
    assert not file.exists()


def test_tiles_on_disk_are_used_again_and_belong_to_their_data(problem, tmp_path):
    deq, X, targets, _ = problem
    calls = itertools.count()

    def counted(a, b):
        next(calls)
        return nsd.ntk(deq, a, b)

    options = {"store": "disk", "folder": tmp_path, "panel": 64}
    first = KernelTiles(counted, X, **options) @ targets
    before = next(calls)
    second = KernelTiles(counted, X, **options) @ targets
    assert next(calls) - before == 2  # the fingerprint alone
    assert torch.equal(first, second)
    with pytest.raises(CheckpointError, match="other data, another kernel"):
        KernelTiles(counted, X + 1.0, **options)


def test_what_cannot_converge_says_so(problem):
    deq, X, targets, _ = problem
    with pytest.raises(ConvergenceError, match="stopped after 3 steps"):
        solve_kernel(kernel_of(deq), X, targets, [0.01], method="cg", preconditioner="none", max_steps=3)
    with pytest.raises(ConvergenceError, match="not positive definite"):
        solve_kernel(lambda a, b: -kernel_of(deq)(a, b), X, targets, [0.01], method="cg", preconditioner="none")
    with pytest.raises(ConvergenceError, match="refine=True"):
        solve_kernel(
            kernel_of(deq), X, targets, [1e-6], method="cg", preconditioner="none", dtype="float32", tol=1e-13,
            refine=False,
        )  # fmt: skip

    def gram(a, b):  # of rank 60: what of the targets lies beside it meets the ridge alone
        return a @ (a if b is None else b).T

    with pytest.raises(ConvergenceError, match="double precision carries no further"):
        solve_kernel(gram, X, targets, [1e-8], method="cg", preconditioner="none", tol=1e-13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridges": []}, "ridges must be"),
        ({"ridges": [0.0]}, "ridges must be"),
        ({"preconditioner": "magic"}, "preconditioner must be"),
        ({"preconditioner": "equivalent", "method": "cg"}, "needs equivalent="),
        ({"tol": 2.0}, "tol must"),
        ({"weights": torch.full((150,), -1.0)}, "weights must"),
        ({"dtype": "float16", "method": "cg"}, "dtype must"),
        ({"store": "disk", "method": "cg"}, "needs folder="),
        ({"store": "tape", "method": "cg"}, "store must"),
    ],
)
def test_refusals(problem, change, message):
    deq, X, targets, _ = problem
    arguments = {"ridges": [0.1], **change}
    with pytest.raises(InvalidInputError, match=message):
        solve_kernel(kernel_of(deq), X, targets, **arguments)


def test_auto_tries_the_candidates_and_solves(problem):
    deq, X, targets, y = problem
    equivalent = nsd.equivalent(deq, nsd.MixtureStatistics.estimate(X, y), "ntk")
    found = solve_kernel(kernel_of(deq), X, targets, [0.05], method="cg", equivalent=equivalent, tol=1e-10, rank=5)
    assert found.preconditioner in ("equivalent", "equivalent+rpcholesky")  # truly high-dimensional data, low rank
    assert torch.allclose(found.coefficients[0], dense(problem, 0.05), rtol=SOLVED, atol=SOLVED)
    plain = solve_kernel(kernel_of(deq), X, targets, [0.05], method="cg")
    assert plain.preconditioner == "rpcholesky"


# ---- what products alone can tell ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 6, 150])
def test_the_largest_eigenvalues_are_those_of_the_matrix(problem, count):
    (deq, X, _, _), tol = problem, 1e-9
    K = nsd.ntk(deq, X)
    found = top_eigenpairs(KernelTiles(kernel_of(deq), X), count, tol=tol)
    values = torch.linalg.eigvalsh(K).flip(0)[:count]
    assert torch.allclose(found.values, values, rtol=0, atol=tolerance() * float(values[0]))
    off = K @ found.vectors - found.vectors * found.values
    assert float(off.abs().max()) <= 2.0 * tol * float(values[0])
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(count, dtype=K.dtype), rtol=0, atol=tolerance())
    assert count == 150 or found.products < 40
    with pytest.raises(ConvergenceError, match="more max_products"):
        top_eigenpairs(KernelTiles(kernel_of(deq), X), 6, tol=1e-12, max_products=2)
    with pytest.raises(InvalidInputError, match="count must be between"):
        top_eigenpairs(KernelTiles(kernel_of(deq), X), 151)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_left_out_by_products_are_those_of_the_factorisation(problem, weighted):
    deq, X, targets, _ = problem
    weights = torch.linspace(0.5, 2.5, len(X), dtype=torch.float64) if weighted else None
    exact = solve_dense(nsd.ntk(deq, X), targets, [0.05], weights=weights, loo=True)
    tiles = KernelTiles(kernel_of(deq), X, scale=None if weights is None else weights.sqrt())
    rows = torch.tensor([3, 77, 149, 20])
    found = leave_rows_out(tiles, targets, exact.coefficients[0], 0.05, rows, block=3, tol=1e-10)
    assert torch.allclose(found, exact.leave_one_out[0][rows], rtol=SOLVED, atol=SOLVED)


def test_a_cluster_that_goes_while_residuals_are_computed_afresh_costs_no_step(tmp_path, monkeypatch):
    X, path = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 8))), tmp_path / "solve.safetensors"
    b = torch.ones(200, 1, dtype=torch.float64)
    tiles = KernelTiles(NetworkKernel(nsd.DEQ("relu", 0.2), "ck"), X, dtype=torch.float32, store="memory")
    exact = solve_operator(tiles, b, [0.01], tol=1e-9, rank=20)
    assert exact.refinements > 0
    inner, asked, steps = KernelTiles.exact, [], []

    def gone(self, v):
        asked.append(1)
        if len(asked) == 2:
            raise ClusterError("the scheduler does not answer")
        return inner(self, v)

    monkeypatch.setattr(KernelTiles, "exact", gone)
    with pytest.raises(ClusterError):
        solve_operator(tiles, b, [0.01], tol=1e-9, rank=20, checkpoint=path)
    product = KernelTiles.__matmul__
    monkeypatch.setattr(KernelTiles, "__matmul__", lambda self, v: (steps.append(1), product(self, v))[1])
    found = solve_operator(tiles, b, [0.01], tol=1e-9, rank=20, checkpoint=path)
    assert (found.steps, found.refinements, len(steps)) == (exact.steps, exact.refinements, 0)
    assert torch.equal(found.coefficients, exact.coefficients)
