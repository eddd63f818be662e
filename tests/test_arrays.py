"""Rows of data: one validator with one wording, one rule for ``out=``, and no influence of ambient settings."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import notsodeep as nsd
from helpers import ulps
from notsodeep._arrays import as_rows, squared_norms
from notsodeep.errors import ConvergenceError, InvalidInputError

ROWS = np.arange(12.0).reshape(4, 3) / 7


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[1.0, 2.0], [3.0]], "rows of one length"),
        (np.array([[1.0, None]]), "numeric"),
        (np.array([["a"]]), "numeric"),
        (np.array([["2026-01-01"]], dtype="datetime64[D]"), "numeric"),
        (np.array([[1j]]), "real"),
        (torch.ones(2, 2, dtype=torch.complex64), "real"),
        (np.ma.masked_greater(ROWS, 1.0), "masked"),
        (scipy.sparse.eye(3, format="csr"), "toarray"),
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.empty(2, 2, device="meta"), "meta"),
        (np.ones(3), r"X\[None, :\]"),
        (np.ones((2, 2, 2)), "two dimensions"),
        (5.0, "two dimensions"),
        (np.array([[0.0], [1.0], [np.nan]]), "row 2"),
        (np.array([[0.0], [np.inf], [-np.inf]]), "row 1"),
        (np.array([[np.longdouble("1e4000")]]), "infinity"),
        (np.ones((0, 3)), "no data"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_rows_is_refused(X, words):
    with pytest.raises(InvalidInputError, match=words):
        as_rows(X)


@pytest.mark.parametrize(
    ("X", "dtype"),
    [
        (ROWS.tolist(), torch.float64),
        (ROWS.astype(np.float32), torch.float32),
        (ROWS.astype(np.float16), torch.float32),
        (ROWS.astype(">f8"), torch.float64),
        (ROWS.astype(">f4"), torch.float32),
        (ROWS.astype(np.longdouble), torch.float64),
        (np.ma.array(ROWS), torch.float64),
        (ROWS[::-1][::-1], torch.float64),
        (np.broadcast_to(ROWS, (4, 3)), torch.float64),
        (torch.from_numpy(ROWS).to(torch.bfloat16), torch.float32),
    ],
)
def test_containers_and_precisions(X, dtype):
    rows = as_rows(X)
    assert rows.dtype == dtype
    assert not rows.requires_grad
    # half precision keeps 8 or 11 bits of the entries
    np.testing.assert_allclose(rows.double().numpy(), ROWS, rtol=5e-3)


def test_whole_numbers_and_booleans_become_double():
    assert as_rows(np.eye(2, dtype=np.uint8)).dtype == torch.float64
    assert as_rows(np.eye(2, dtype=bool)).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_memory_is_shared_where_it_can_be():
    assert np.shares_memory(as_rows(ROWS).numpy(), ROWS)


def test_a_sum_that_overflows_is_not_taken_for_infinity():
    large = np.full((2, 2), 3e38, dtype=np.float32)
    assert bool(torch.isfinite(as_rows(large)).all())
    assert squared_norms(as_rows(large)).tolist() == pytest.approx([2 * 3e38**2] * 2, rel=ulps(2, np.float32))


def test_kernels_out_of_range_are_refused():
    network, X = nsd.ENN(["quadratic"]), (1e20 * ROWS).astype(np.float32)
    known = nsd.MixtureStatistics.from_mixture(nsd.GaussianMixture(np.zeros((1, 3)), [1.0]), X, np.zeros(4, dtype=int))
    calls = (
        lambda: nsd.ck(network, X),
        lambda: nsd.finite_ck(network, X, width=4),
        lambda: nsd.equivalent(network, known),
    )
    for call in calls:
        with pytest.raises(ConvergenceError, match=r"overflows torch\.float32 .* or give them in float64"):
            call()


def test_features_are_compared():
    with pytest.raises(InvalidInputError, match="5 features, got 3"):
        as_rows(ROWS, features=5)


# ---- out= ------------------------------------------------------------------------------------------------

ENN = nsd.ENN(["relu"])


def read_only() -> np.ndarray:
    out = np.zeros((4, 4))
    out.setflags(write=False)
    return out


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (read_only(), "read-only"),
        ([[0.0] * 4] * 4, "list"),
        (np.zeros((4, 4), dtype=">f8"), "byte order"),
        (np.zeros((4, 4), dtype=int), "floating"),
        (np.zeros((4, 4))[::-1], "reversed"),
        (np.zeros((4, 3)), "shape"),
        (torch.zeros(4, 1, dtype=torch.float64).expand(4, 4), "several"),
        (torch.zeros(10, dtype=torch.float64).as_strided((4, 4), (1, 2)), "several"),
        (torch.zeros(4, 4, requires_grad=True), "autograd"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_bad_targets_are_refused(out, words):
    with pytest.raises(InvalidInputError, match=words):
        nsd.ck(ENN, ROWS, out=out)


def test_views_whose_entries_have_places_of_their_own_are_written():
    K = nsd.ck(ENN, ROWS, ROWS)
    for out in (np.zeros((4, 9))[:, 2:6], np.zeros((8, 12))[::2, ::3], np.zeros((4, 4), order="F")):
        assert nsd.ck(ENN, ROWS, ROWS, out=out) is out
        np.testing.assert_array_equal(out, K)
    assert nsd.ck(ENN, ROWS[:0], ROWS, out=np.zeros((0, 4))).shape == (0, 4)


def test_a_memory_map_opened_for_reading_is_refused(tmp_path):
    np.save(tmp_path / "K.npy", np.zeros((4, 4)))
    with pytest.raises(InvalidInputError, match="mode 'r\\+'"):
        nsd.ck(ENN, ROWS, out=np.load(tmp_path / "K.npy", mmap_mode="r"))
    assert not np.load(tmp_path / "K.npy").any()


def test_the_input_is_not_overwritten():
    X = np.eye(4)
    for out in (X, X.T):
        with pytest.raises(InvalidInputError, match="shares memory"):
            nsd.ck(ENN, X, out=out)
    both = np.zeros((4, 4))
    with pytest.raises(InvalidInputError, match="shares memory"):
        nsd.kernels_of(ENN, X, kernels=("ck", "ntk"), out={"ck": both, "ntk": both})
    np.testing.assert_array_equal(X, np.eye(4))


def test_every_kernel_asked_for_needs_its_target():
    with pytest.raises(InvalidInputError, match="'ntk'"):
        nsd.kernels_of(ENN, ROWS, kernels=("ck", "ntk"), out={"ck": np.zeros((4, 4))})


# ---- ambient settings ------------------------------------------------------------------------------------


def test_autocast_changes_nothing():
    X = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    plain = nsd.kernels_of(nsd.DEQ("tanh", 0.1), X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = nsd.kernels_of(nsd.DEQ("tanh", 0.1), X)
        drawn = nsd.finite_ck(ENN, X, width=5)
    for kernel, K in plain.items():
        assert torch.equal(cast[kernel], K)
    assert torch.equal(drawn, nsd.finite_ck(ENN, X, width=5))


@pytest.mark.parametrize("sigma_a2", [0.101, 0.102])  # values of their own: nothing is cached for them yet
def test_a_foreign_default_device_changes_nothing(sigma_a2):
    deq, X = nsd.DEQ(nsd.activation("silu").affine(scale=1.0 + sigma_a2), sigma_a2), ROWS
    with torch.device("meta"):
        found = nsd.kernels_of(deq, X)
        scale = deq.centred_scale(1.0)
    after = nsd.kernels_of(deq, X)  # what was cached under the other device still serves
    for kernel, K in after.items():
        np.testing.assert_array_equal(found[kernel], K)
    assert scale == deq.centred_scale(1.0)


@pytest.mark.parametrize("scale", [1.31, 1.32])
def test_expectations_asked_first_under_a_foreign_device(scale):
    """Panels, jumps and rules are kept for later: none may come from the device 'meta'."""

    def asked():
        phi = nsd.activation("elu").affine(scale=scale)
        own = nsd.Activation.from_callable(lambda x: torch.tanh(scale * x))
        return (
            nsd.gaussian.moments(phi, 1.0).square,
            nsd.gaussian.moments(own, scale).square,
            float(nsd.gaussian.hermite_coefficients(phi, 1.0, 4)[2]),
            phi.centred(1.0).shift,
        )

    with torch.device("meta"):
        found = asked()
    assert found == asked()


def test_columns_of_pandas_that_may_hold_missing_values():
    pandas = pytest.importorskip("pandas")
    frame, deq = pandas.DataFrame(np.arange(12).reshape(4, 3)), nsd.DEQ("tanh", 0.2)
    np.testing.assert_array_equal(nsd.ck(deq, frame.astype("Int64")), nsd.ck(deq, frame))
    for other in (frame.astype("Int64").where(frame > 2), frame.astype(str)):
        with pytest.raises(InvalidInputError, match="numeric"):
            nsd.ck(deq, other)
