"""Tables of kernels: as exact as entry by entry, the same whatever came before, kept, pickled and shared."""

import math
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep._chebyshev import Workspace, power_sum
from notsodeep.activations import Affine, Quadratic
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import pairwise, tabulate, tiles
from notsodeep.kernels._limits import LIMITS
from notsodeep.kernels.caps import Cap
from notsodeep.kernels.pointwise import KernelSpec

KINDS = ("ck", "ntk", "ntk_frozen")
NETWORKS = [
    nsd.DEQ("tanh", 0.2),
    nsd.DEQ("relu", 0.2),
    nsd.DEQ("silu", 0.1, sigma_c2=0.1),
    nsd.DEQ("elu", 0.2),
    nsd.ENN(["gelu", "tanh"]),
]


@pytest.fixture(scope="module")
def digits():
    """Real data with near-duplicates, multiples and opposite points among its first rows."""
    X = load_digits().data[:160].astype(float)
    X -= X.mean(0)
    X /= np.sqrt((X**2).sum(1).mean())
    X[1] = X[0]
    X[3] = X[2] * (1 + 1e-9)
    X[5] = 1.5 * X[4]
    X[7] = -X[6]
    X[9] = -X[8] + 1e-7 * X[20]
    X[11] = X[10] + 1e-5 * X[21]
    return X


def exact_products(X):
    """Inner products from differences to a long accumulator: exact where rows nearly coincide."""
    Z = X.astype(np.longdouble)
    return torch.from_numpy((Z @ Z.T).astype(float))


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_tables_agree_with_the_entrywise_reference_on_real_data(net, digits):
    few = np.r_[0:12, 40:60]
    S = exact_products(digits[few])
    s = S.diagonal()
    reference = pairwise(net, s[:, None], s[None, :], S, KINDS)
    found = nsd.kernels_of(net, digits)
    near = (S / (s[:, None] * s).sqrt()).abs().numpy() > 1 - 1e-8  # the reference itself moves by sqrt(rounding) there
    for kind in KINDS:
        K, R = found[kind][np.ix_(few, few)], reference[kind].numpy()
        scale = float(np.diagonal(K).max())
        assert np.abs(K - R)[~near].max() < tolerance() * scale, kind
        assert np.abs(K - R).max() < 2.0 * math.sqrt(ulps(1)) * scale, kind
        np.testing.assert_array_equal(found[kind], found[kind].T)


@pytest.mark.parametrize("net", NETWORKS[:2], ids=repr)
def test_parallel_rows_have_an_exact_angle(net, digits):
    """Duplicates and multiples: the kernel at angle zero follows from the norms alone."""
    K = nsd.ntk(net, digits)
    assert K[0, 1] == pytest.approx(K[0, 0], rel=ulps(2048), abs=0)
    if net.homogeneous:
        assert K[4, 5] == pytest.approx(1.5 * K[4, 4], rel=ulps(2048), abs=0)
        assert K[2, 3] == pytest.approx(K[2, 2], rel=2e-9)  # the two norms differ by 1e-9


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_single_precision_has_its_own_accuracy(net, digits):
    K = nsd.kernels_of(net, digits)
    for kind, low in nsd.kernels_of(net, digits.astype(np.float32)).items():
        assert low.dtype == np.float32
        assert np.abs(low - K[kind]).max() < ulps(16, np.float32) * np.diagonal(K[kind]).max()


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_tables_of_single_precision_are_smaller_and_exact_enough(net):
    scales = (tabulate.rounded_range(net, 0.75, 1.5),) * 2
    full, small = (
        tabulate.table_for(KernelSpec.of(net, KINDS, None, True), scales, 1e6, dtype)
        for dtype in (torch.float64, torch.float32)
    )
    t = torch.linspace(0.75, 1.5, 5, dtype=torch.float64)
    x = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)
    reference = pairwise(net, (t**2)[:, None, None], (t**2)[:, None], (t[:, None] * t)[:, :, None] * x, KINDS)
    for kind in KINDS:
        assert len(small.coefficients[kind]) < len(full.coefficients[kind])
        for table, room in ((full, tolerance()), (small, ulps(0.5, torch.float32))):
            level = table.level(kind, torch.float64)
            x2 = (torch.asin(x) if level.warped else x) * level.scale
            i, j, k = torch.cartesian_prod(*(torch.arange(n) for n in (5, 5, 7))).T
            found = level.at(table.side(level, kind, t[i]).T, table.side(level, kind, t[j]).T, x2[k])
            exact = reference[kind][i, j, k]
            assert float((found - exact).abs().max()) < room * float(exact.abs().max()), (kind, table.reach)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_function_of_the_angle_is_a_short_polynomial_on_each_part_of_its_range(dtype):
    net = nsd.DEQ("relu", 0.1)
    scales = (tabulate.rounded_range(net, 1.0, 1.0),) * 2
    table = tabulate.table_for(KernelSpec.of(net, ("ntk",), None, True), scales, 1e6)
    assert table is not None
    full = len(table.level("ntk", dtype).ranks)
    for low, high in ((-1.0, 1.0), (-0.7, 0.95), (0.0, 0.95), (0.5, 0.5), (1.0, 1.0), (-1.0, -1.0)):
        level = table.level("ntk", dtype, low, high)
        assert len(level.ranks) <= (full if (low, high) == (-1.0, 1.0) else 0.65 * full)
        r = torch.linspace(low, high, 9, dtype=torch.float64)
        powers = table.powers(level, "ntk", dtype)
        x2 = level.variable(r.to(dtype), Workspace())
        if powers is None:
            assert (low, high) == (-1.0, 1.0)
            continue
        found = power_sum(powers, x2, Workspace())
        one = torch.ones(9, dtype=torch.float64)
        exact = pairwise(net, one, one, r, ("ntk",))["ntk"]
        room = tolerance() if dtype == torch.float64 else ulps(8, torch.float32)
        assert float((found - exact).abs().max()) < room * float(table.diagonal("ntk", one[:1])), (low, high)


def test_tanh_has_a_table_far_beyond_its_features():
    """Long series of Hermite polynomials: norms from 0.3 to 6, cosines up to 1."""
    deq, t = nsd.DEQ("tanh", 0.2), torch.tensor([0.3, 2.0, 6.0], dtype=torch.float64)
    scales = (tabulate.rounded_range(deq, 0.3, 6.0),) * 2
    table = tabulate.table_for(KernelSpec.of(deq, KINDS, None, True), scales, 2e3)
    assert table is not None
    r = torch.tensor([-1.0, -0.99, 0.3, 0.9999, 1.0], dtype=torch.float64)
    reference = pairwise(deq, (t**2)[:, None, None], (t**2)[:, None], (t[:, None] * t)[:, :, None] * r, KINDS)
    i, j, k = torch.cartesian_prod(*(torch.arange(n) for n in (3, 3, 5))).T
    for kind in KINDS:
        level = table.level(kind, torch.float64)
        x2 = (torch.asin(r) if level.warped else r) * level.scale
        found = level.at(table.side(level, kind, t[i]).T, table.side(level, kind, t[j]).T, x2[k])
        own = table.diagonal(kind, t)
        assert float(((found - reference[kind][i, j, k]).abs() / (own[i] * own[j]).sqrt()).max()) < tolerance(), kind


def test_correlations_may_rise_above_those_of_the_inputs():
    network, norms = nsd.DEQ("softplus", 0.2, 1.0), tabulate.rounded_range(nsd.DEQ("softplus", 0.2), 0.6, 2.0)
    table, slow = tabulate.build_table(network, None, (norms, norms), torch.float64)
    assert table is not None
    assert not slow
    X = np.random.default_rng(0).standard_normal((50, 20)) / 20**0.5
    s, dots = (X**2).sum(1), X @ X.T
    i, j = np.triu_indices(50, 1)
    single = pairwise(network, *(torch.tensor(v) for v in (s[i], s[j], dots[i, j])), ("ntk",))["ntk"]
    np.testing.assert_allclose(nsd.ntk(network, X)[i, j], single, rtol=tolerance())


def test_results_do_not_depend_on_what_was_computed_before(digits):
    net = nsd.DEQ("tanh", 0.15, 1.0)
    nsd.clear_caches()
    first = nsd.ntk(net, digits)
    nsd.clear_caches()
    nsd.ck(net, 1.5 * digits)
    nsd.ck(net, digits[:80])
    assert np.array_equal(first, nsd.ntk(net, digits))
    assert tabulate.build_table.cache_info().currsize == 2  # the smaller set shares the table of the larger


def test_the_shelf_of_tables_is_bounded():
    assert tabulate.build_table.cache_info().maxsize == 64


def test_threads_share_tables(digits):
    net = nsd.DEQ("silu", 0.12)
    nsd.clear_caches()
    found = [None] * 4

    def work(i):
        found[i] = nsd.ntk(net, digits)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert tabulate.build_table.cache_info().currsize == 1


# ---- the object ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_a_kernel_function_is_the_kernel(net, digits):
    k = nsd.kernel_function(net, "ntk", norms=digits)
    K = nsd.ntk(net, digits)
    found = k(digits)
    np.testing.assert_allclose(found, K, rtol=0, atol=tolerance())
    np.testing.assert_allclose(
        k(digits[:3], digits), K[:3], rtol=0, atol=tolerance()
    )  # few pairs too come from the table
    np.testing.assert_allclose(k.diagonal(digits), np.diagonal(K), rtol=ulps())
    again = pickle.loads(pickle.dumps(k))
    assert repr(again) == repr(k)
    np.testing.assert_array_equal(again(digits), found)
    assert torch.equal(k(torch.from_numpy(digits)), torch.from_numpy(found))


def test_a_kernel_function_writes_where_it_is_told(digits):
    net, out = nsd.DEQ("tanh", 0.2), np.empty((160, 160))
    k = nsd.kernel_function(net, "ck", norms=(0.5, 2.0))
    assert k(digits, out=out) is out
    np.testing.assert_allclose(out, nsd.ck(net, digits), rtol=0, atol=tolerance())


def test_rows_beyond_the_range_are_served_by_a_wider_table(digits):
    net = nsd.DEQ("tanh", 0.2)
    k = nsd.kernel_function(net, "ck", norms=(0.9, 1.0))
    np.testing.assert_allclose(k(1.5 * digits), nsd.ck(net, 1.5 * digits), rtol=0, atol=tolerance())
    np.testing.assert_allclose(k.diagonal(1.5 * digits), np.diagonal(nsd.ck(net, 1.5 * digits)), rtol=tolerance())


def test_a_kernel_function_with_a_large_bias_has_the_table_of_the_kernel(digits):
    """Of rows with the bias as one more column: in the norms alone, all of them are nearly parallel."""
    net = nsd.DEQ("hard_tanh", 0.1, 1.0, 1e4)
    k = nsd.kernel_function(net, "ntk", norms=digits)
    assert k.ready[0] is not None
    np.testing.assert_array_equal(k(digits), nsd.ntk(net, digits))
    np.testing.assert_array_equal(k.diagonal(digits), np.diagonal(k(digits)))
    far = 1e-6 * digits  # the bias hides their angles: they are not lifted
    np.testing.assert_array_equal(k(far), nsd.ntk(net, far))
    np.testing.assert_array_equal(k.diagonal(far), np.diagonal(k(far)))


@pytest.mark.parametrize("net", NETWORKS[:2], ids=repr)
def test_rows_of_zeros_decide_nothing(net, digits):
    k, zeros = nsd.kernel_function(net, "ck"), np.zeros((3, 64))
    for pair in ((zeros,), (zeros, zeros[:2]), (digits[:0], zeros), (zeros, digits[:0])):
        np.testing.assert_array_equal(k(*pair), 0.0)
    np.testing.assert_array_equal(nsd.kernel_function(net, "ck", norms=zeros).diagonal(zeros), 0.0)
    np.testing.assert_allclose(k(digits), nsd.ck(net, digits), rtol=0, atol=ulps())


SOFTSIGN = nsd.Activation.from_callable(lambda x: x / (1.0 + x.abs()), kinks=(0.0,), name="softsign")
NEARLY_CONSTANT = nsd.ENN(
    [
        Quadratic(1.4057447699744168, 0.9940455917732147, -0.002535732410273344),
        "hard_swish",
        Affine(nsd.activation("silu"), gain=-0.47839114503211544, scale=0.8355282559993376),
        "erf",
    ]
)


@pytest.mark.parametrize(
    ("net", "dtype", "size"),
    [(nsd.DEQ(SOFTSIGN, 0.136, 0.0), np.float32, 1.0), (NEARLY_CONSTANT, np.float64, 2.9e-27)],
    ids=["no input", "constants"],
)
def test_networks_that_see_no_difference_have_one_number(net, dtype, size):
    rows = np.random.default_rng(0).standard_normal((120, 10))
    rows[1:40] = rows[0] + 1e-5 * rows[1:40]
    rows = (size * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
    for K in nsd.kernels_of(net, rows, kernels=("ck", "ntk"), check=False).values():
        assert np.ptp(K) <= tolerance(dtype) * K.max()


@pytest.mark.parametrize("phi", ["sin", "cos"])
def test_equal_rows_of_waves_far_out(phi):
    rows = np.random.default_rng(0).standard_normal((60, 50))
    rows = 7e5 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[1] = rows[0]
    K = nsd.ck(nsd.ENN([phi]), rows)
    assert K[0, 1] == pytest.approx(K[0, 0], rel=1e-3)  # what the rounding of products leaves
    assert K[0, 2] == pytest.approx(0.0, abs=1e-12)


def test_without_a_range_nothing_is_built_ahead(digits):
    k = nsd.kernel_function(nsd.DEQ("tanh", 0.2), "ck")
    assert "norms" not in repr(k)
    np.testing.assert_array_equal(k(digits), nsd.ck(nsd.DEQ("tanh", 0.2), digits))


def test_a_kernel_function_takes_images():
    net, images = nsd.ConvDEQ("relu", 0.2, image=(1, 4, 4)), np.random.default_rng(0).normal(size=(5, 1, 4, 4))
    k = nsd.kernel_function(net, "ntk")
    np.testing.assert_array_equal(k(images[:2], images), nsd.ntk(net, images[:2], images))
    np.testing.assert_allclose(k.diagonal(images), np.diagonal(nsd.ntk(net, images)), rtol=ulps())
    with pytest.raises(InvalidInputError, match="networks of vectors"):
        k.slopes(images)


@pytest.mark.parametrize("norms", [(2.0, 1.0), (-1.0, 1.0), (0.0, 0.0), (1.0, float("inf")), [[1.0, float("nan")]]])
def test_impossible_ranges_are_refused(norms):
    with pytest.raises(InvalidInputError):
        nsd.kernel_function(nsd.DEQ("tanh", 0.2), norms=norms)


def test_norms_over_a_factor_of_a_hundred():
    X = np.random.default_rng(1).standard_normal((60, 6))
    X *= (np.geomspace(0.02, 2.0, 60) / np.linalg.norm(X, axis=1))[:, None]
    S = torch.from_numpy(X @ X.T)
    s = S.diagonal()
    for net in (nsd.DEQ("tanh", 0.2), nsd.DEQ("silu", 0.1)):
        K = nsd.kernel_function(net, "ntk", norms=X)(X)
        R = pairwise(net, s[:, None], s[None, :], S, ("ntk",))["ntk"].numpy()
        d = np.sqrt(np.diagonal(R))
        assert (np.abs(K - R) / np.outer(d, d)).max() < tolerance()  # relative to the size of either point


@pytest.mark.parametrize("norms", [(0.7, 1.5), (1.2, 1.2)])
@pytest.mark.parametrize("net", [nsd.DEQ("elu", 0.2), nsd.DEQ("selu", 0.05, sigma_c2=0.1)], ids=repr)
def test_entries_beyond_the_table_come_from_series_of_the_layer(net, norms, monkeypatch):
    """Near duplicates and near opposites of kinked DEQs: a cone that no table follows."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((100, 30))
    X[50:] = X[:50] + np.geomspace(1e-3, 0.2, 50)[:, None] * rng.standard_normal((50, 30))
    X[75:] *= -1.0
    X *= (rng.uniform(*norms, 100) / np.linalg.norm(X, axis=1))[:, None]
    S = exact_products(X)
    s, (i, j) = S.diagonal(), (torch.arange(50), torch.arange(50, 100))
    reference = pairwise(net, s[i], s[j], S[i, j], KINDS)
    monkeypatch.setattr(KernelSpec, "pairwise", None)  # nothing is left to integrals entry by entry
    monkeypatch.setattr(tiles, "LIMITS", replace(LIMITS, few_pairs=0, few_slow_pairs=0))
    for kind, K in nsd.kernels_of(net, X).items():
        error = np.abs(K[i, j] - reference[kind].numpy())
        assert error.max() < tolerance() * np.diagonal(K).max(), kind


def test_series_of_nearly_parallel_points_are_for_many_points(monkeypatch):
    """Few entries are cheaper one by one."""
    rng = np.random.default_rng(3)
    X, deq = rng.standard_normal((100, 2)), nsd.DEQ("selu", 0.033)
    X *= rng.uniform(1.0, 1.1, (100, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    made = []
    monkeypatch.setattr(tiles, "Cap", lambda *given: made.append(Cap(*given)) or made[-1])
    nsd.clear_caches()
    few = nsd.ck(deq, X[:40])
    assert not made
    many = nsd.ck(deq, X)
    assert made
    assert np.abs(many[:40, :40] - few).max() < tolerance() * few.max()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "elu"])
def test_beyond_inputs_and_outputs_little_is_held(activation):
    """Input + output + 64 MB, for square and for cross kernels, in a process of its own."""
    script = f"""
import resource, torch, notsodeep as nsd
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
deq, x = nsd.DEQ({activation!r}, 0.15), torch.randn(6000, 100, dtype=torch.float64) / 10
y = torch.randn(60000, 100, dtype=torch.float64) / 10
K, C = torch.zeros(6000, 6000, dtype=torch.float64), torch.zeros(128, 60000, dtype=torch.float64)
before = peak()
nsd.ntk(deq, x, out=K)
nsd.ntk(deq, x[:128], y, out=C)
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 64 + 64  # the second half: code that is loaded on first use


def test_entries_that_the_table_leaves_open_are_written_last(monkeypatch):
    """Also those of a tile behind which the list is full."""
    rows = np.random.default_rng(0).standard_normal((150, 8))
    rows[75:] = rows[:75] + 1e-3 * rows[75:]
    network, i, j = nsd.DEQ("selu", 0.033, 10.0), np.arange(75), np.arange(75, 150)
    S = exact_products(rows)
    s = S.diagonal()
    exact = pairwise(network, s[i], s[j], S[i, j], ("ntk",))["ntk"].numpy()
    monkeypatch.setattr(tiles, "LIMITS", replace(tiles.LIMITS, open_entries=10))
    K = nsd.ntk(network, rows)
    # entries of the table are wrong by 1e-3 here; the tangent of nearly parallel rows loses a digit
    assert (np.abs(K[i, j] - exact) / np.sqrt(K[i, i] * K[j, j])).max() < tolerance(amplified=10.0)


def test_tiles_of_several_threads_are_those_of_one(digits):
    X = np.concatenate([digits, 1.1 * digits[::-1], 0.9 * digits])
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append([nsd.kernels_of(net, X) for net in NETWORKS[1:4]])
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    for one, several in zip(*found, strict=True):
        for kind in KINDS:
            np.testing.assert_allclose(several[kind], one[kind], rtol=0, atol=ulps())
            np.testing.assert_array_equal(several[kind], several[kind].T)


def decades(count):
    """Rows whose norms are of all sizes over eight decades."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, 20))
    return X * (10.0 ** rng.uniform(-4, 4, count) / np.linalg.norm(X, axis=1))[:, None]


def sizes(function, X, Y):
    """What errors are relative to: the kernels of the points with themselves."""
    return np.sqrt(np.outer(function.diagonal(X), function.diagonal(Y)))


def slow(name):
    """A case that takes seconds."""
    return pytest.param(name, marks=pytest.mark.slow)


SMOOTH = ["tanh", "sigmoid", "softplus", "arctan", "mish", "erf", "gelu", "silu"]
KINKED = ["elu", "selu", "hard_tanh", "hard_swish"]


@pytest.mark.parametrize("name", [*SMOOTH, "elu", "selu", *map(slow, ("hard_tanh", "hard_swish"))])
def test_a_function_of_norms_over_eight_decades_has_tables(name):
    """Beside a power of the norm that changes on the way short rows keep their digits."""
    X, network = decades(60), nsd.DEQ(name, 0.07)
    function = nsd.kernel_function(network, "ntk", norms=X)
    tables, _ = function.ready
    assert tables
    norms, size = np.linalg.norm(X, axis=1), sizes(function, X, X)
    dots = torch.from_numpy(X @ X.T)
    exact = pairwise(network, dots.diagonal()[:, None], dots.diagonal(), dots, ("ntk",))["ntk"].numpy()
    np.testing.assert_allclose(function(X) / size, exact / size, rtol=0, atol=10 * tolerance())
    slopes, alone = function.slopes(X), nsd.kernel_function(network, "ntk").slopes(X[:9], X[9:20])  # one by one
    units = size, size / np.outer(norms, norms), size / norms[:, None] ** 2
    for found, each, unit in zip(slopes, alone, units, strict=True):
        part = unit[:9, 9:20]
        np.testing.assert_allclose(found[:9, 9:20] / part, each / part, rtol=0, atol=1e3 * tolerance())  # 1e-9 claimed


@pytest.mark.parametrize("bias", [0.0, 3.0])
@pytest.mark.parametrize("name", ["arctan", "elu", "hard_tanh", *map(slow, ("softplus", "mish", "selu", "hard_swish"))])
def test_no_mixture_of_norms_is_evaluated_one_by_one(name, bias, monkeypatch):
    network, X = nsd.DEQ(name, 0.07, 3.0, bias), decades(250)
    nsd.clear_caches()
    K = nsd.kernels_of(network, X)
    i, j = np.random.default_rng(1).integers(0, 250, (2, 200))
    s, dots = torch.from_numpy((X**2).sum(1)), torch.from_numpy((X[i] * X[j]).sum(1))
    exact = pairwise(network, s[i], s[j], dots, KINDS)
    for kind in KINDS:
        size = np.sqrt(np.diagonal(K[kind])[i] * np.diagonal(K[kind])[j])
        np.testing.assert_allclose(K[kind][i, j] / size, exact[kind].numpy() / size, rtol=0, atol=10 * tolerance())
        np.testing.assert_array_equal(K[kind], K[kind].T)
    cross = nsd.ntk(network, X[:120], X[100:])
    size = np.sqrt(np.outer(np.diagonal(K["ntk"])[:120], np.diagonal(K["ntk"])[100:]))
    np.testing.assert_allclose(cross / size, K["ntk"][:120, 100:] / size, rtol=0, atol=10 * tolerance())
    alone, evaluated = [], tiles.Points._by_covariance
    monkeypatch.setattr(tiles.Points, "_by_covariance", lambda *a: alone.append(len(a[1])) or evaluated(*a))
    nsd.ntk(network, X)
    # blocks of few points have no tables; beside a bias short points are equal but for rounding
    assert sum(alone) <= (0.25 if bias and name in KINKED else 0.05) * 250 * 251 / 2


@pytest.mark.parametrize("name", ["selu", "elu", "hard_tanh"])
def test_equal_and_nearly_equal_long_rows_keep_their_digits(name):
    """Slopes of kinked functions fall with the angle, which the rounding of E[phi phi] hid, at norm 1e4 to 2e-9."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 20))
    X *= (1.3e4 * rng.uniform(0.5, 2.0, 100) / np.linalg.norm(X, axis=1))[:, None]
    network = nsd.DEQ(name, 0.07, 1.0)
    K = nsd.ntk(network, X)
    cross = nsd.ntk(network, X[:70], X[30:])
    own = np.diagonal(K)[30:70]
    np.testing.assert_allclose(cross[np.arange(30, 70), np.arange(40)], own, rtol=tolerance())
    if name == "selu":  # 1 - K / K(0) is linear in small angles
        points = tiles.Points(KernelSpec.of(network, ("ntk",), None, True), torch.from_numpy(X), None)
        lack, one = torch.tensor([1e-20, 1e-18, 1e-16, 1e-14], dtype=torch.float64), torch.zeros(4, dtype=torch.long)
        found = torch.empty(4, dtype=torch.float64)
        for which, kernels in points.entries(one, one, lack):
            found[which] = kernels["ntk"]
        fall = (1.0 - found / K[0, 0]) / lack.sqrt()
        np.testing.assert_allclose(fall, fall[-1], rtol=2e-3)  # 1 - K / K(0) is 1e-11 at the least, with 15 digits


def test_single_precision_keeps_its_digits_at_all_norms():
    network, X = nsd.DEQ("arctan", 0.1), decades(150)
    exact, single = nsd.ntk(network, X), nsd.ntk(network, X.astype(np.float32))
    size = np.sqrt(np.outer(np.diagonal(exact), np.diagonal(exact)))
    np.testing.assert_allclose(single / size, exact / size, rtol=0, atol=ulps(64, np.float32))
