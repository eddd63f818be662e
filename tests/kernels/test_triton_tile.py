"""The Triton program of kernel tiles against tiles of plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import interpret_triton, ulps
from notsodeep.kernels import device
from notsodeep.kernels._limits import LIMITS
from notsodeep.kernels.pointwise import KernelSpec
from notsodeep.kernels.tiles import Points, fill_tiles

CUDA = torch.cuda.is_available()
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device, or TRITON_INTERPRET=1"
)
DOUBLE, SINGLE = torch.float64, torch.float32


class Arcsine:
    """The arcsine for the interpreter, which has no libdevice."""

    @staticmethod
    def asin(x):
        return tl.core.tensor(type(x.handle)(np.arcsin(x.handle.data), x.handle.dtype), x.type)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, small tiles, and what the interpreter lacks."""
    limits = dataclasses.replace(LIMITS, gpu_block=(64, 128), few_pairs=16)
    monkeypatch.setattr(device, "LIMITS", limits)
    if CUDA:
        return
    interpret_triton(monkeypatch)
    from notsodeep.kernels import triton_tile

    monkeypatch.setattr(triton_tile, "libdevice", Arcsine)


def rows(count, seed=0, columns=3):
    """Rows, of which two are duplicates, two opposite to each other, and two nearly duplicates."""
    X = np.random.default_rng(seed).standard_normal((count, columns)) / columns**0.5
    X[1] = X[0]
    X[3] = -1.2 * X[2]
    X[5] = X[4] + 1e-6 * X[6]
    return X


def fill(network, X, Y=None, dtype=DOUBLE, kernels=("ck", "ntk")):
    """Kernels by the program and by plain torch, the rows, the intervals, and how many entries were listed."""
    where = "cuda" if CUDA else "cpu"
    x, y = (None if v is None else torch.from_numpy(v).to(where, dtype) for v in (X, Y))
    points = Points(KernelSpec.of(network, kernels, None, False).detached, x, y)
    points.direct = 1  # a table for few pairs, too
    (part,) = points.parts(({}, (1.0, 0.0)), {})
    part.fill(lambda some, _: some.find_table(({}, (1.0, 0.0))))
    found, plain = ({name: x.new_full(points.shape, torch.nan) for name in kernels} for _ in range(2))
    gram = found[kernels[-1]]
    for block in device._blocks(points):
        device._product(points, gram, block)
    intervals = device.worthy(points, gram) if points.trusted < 1.0 else []
    listed, write = [], points.write_entries
    points.write_entries = lambda target, i, j, lack: listed.append(len(i)) or write(target, i, j, lack)
    assert device._run(points, points.table, found)
    del points.write_entries
    fill_tiles(points, plain, False)
    compare(points, found, plain, 1e-12 if dtype == DOUBLE else ulps(16, dtype))
    return points, intervals, listed


def compare(points, found, plain, room):
    """Entries of the program are those of plain torch, beside the diagonal, and mirror images to the bit."""
    off = ~torch.eye(*points.shape, dtype=torch.bool) if points.symmetric else ...
    along = [points.spec.diagonals(squares.cpu()) for squares in (points.sx, points.sy)]
    for name, values in found.items():
        beside = (along[0][name][:, None] * along[1][name]).sqrt()
        error = (values.double() - plain[name].double()).cpu().abs() / beside
        assert float(error[off].max()) < room, name
        if points.symmetric:
            assert torch.equal(values.cpu()[off], values.cpu().T[off]), name


@pytest.mark.parametrize(
    ("network", "signs"),
    [
        (nsd.DEQ("tanh", 0.1, 30.0), {1, -1}),  # odd orders alone
        (nsd.DEQ("gelu", 0.1, 30.0, 100.0), {1}),
        (nsd.DEQ("elu", 0.1, 1.0, 1e4), {1}),  # the table reaches none
        (nsd.DEQ("hard_swish", 0.1, 4.6, 15.7), {1}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_nearly_parallel_entries_have_series_of_their_own(network, signs, dtype):
    X, Y = rows(52), rows(33, 1)
    for given, kernels in (((X,), ("ntk",)), ((X, Y), ("ck", "ntk"))):
        _, intervals, listed = fill(network, *given, dtype=dtype, kernels=kernels)
        assert {interval.sign for interval in intervals} == signs
        assert sum(listed) < 0.1 * len(X) * len(given[-1])


@pytest.mark.parametrize("drives", [(3.0, 3.0), (30.0, 100.0)])
def test_tensor_cores_add_what_single_ranks_do(drives, monkeypatch):
    monkeypatch.setattr(device, "THIN", math.inf)
    _, intervals, _ = fill(nsd.DEQ("gelu", 0.1, *drives), rows(52), rows(33, 1), kernels=("ntk",))
    assert bool(intervals) == (drives == (30.0, 100.0))


@pytest.mark.parametrize("network", [nsd.DEQ("elu", 0.2, 3.0), nsd.DEQ("hard_swish", 0.2, 8.0)], ids=repr)
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_intervals_of_one_norm_are_sums_of_numbers(network, dtype):
    rng = np.random.default_rng(2)
    X = np.where(rng.random((52, 64)) < 0.05, -0.125, 0.125)  # of norm one, also in single precision
    points, intervals, _ = fill(network, X, dtype=dtype)
    assert points.table.one_function
    assert intervals


@pytest.mark.parametrize(
    "network",
    [nsd.DEQ("tanh", 0.2), nsd.DEQ("relu", 0.2, sigma_c2=0.3), nsd.DEQ("elu", 0.2), nsd.ENN(["cos"])],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_a_table_alone(network, dtype):
    for given in ((rows(70, columns=8),), (rows(40, columns=8), rows(33, 1, columns=8))):
        _, intervals, _ = fill(network, *given, dtype=dtype)
        assert not intervals  # for a few near duplicates, too


@pytest.mark.parametrize("name", ["elu", "hard_swish"])
def test_a_list_without_room_for_all_is_settled_in_rounds(name, monkeypatch):
    limits = dataclasses.replace(device.LIMITS, gpu_listed=30, gpu_share=1 << 30, gpu_series=1)
    monkeypatch.setattr(device, "LIMITS", limits)
    plain, blocks = [], device.fill_blocks
    monkeypatch.setattr(device, "fill_blocks", lambda *given: plain.append(given[-1]) or blocks(*given))
    X = rows(100)
    X[70:80] = X[70] * np.linspace(1.0, 1.2, 10)[:, None]  # too many in one block
    for given in ((X,), (X, X[60:])):
        _, intervals, listed = fill(nsd.DEQ(name, 0.1), *given, kernels=("ntk",))
        assert not intervals
        assert len(listed) > 1
    assert plain


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_listed_entries_with_series_are_one_program(dtype, monkeypatch):
    monkeypatch.setattr(device, "LIMITS", dataclasses.replace(device.LIMITS, gpu_series=1))
    signs = np.where(np.random.default_rng(2).random((52, 64)) < 0.05, -0.125, 0.125)  # of one norm
    for name, given in (("tanh", (rows(48),)), ("elu", (signs,)), ("elu", (rows(40), rows(33, 1)))):
        points, intervals, listed = fill(nsd.DEQ(name, 0.1, 30.0), *given, dtype=dtype)
        assert not intervals
        assert sum(listed) < 0.02 * points.pairs  # those that are left
        monkeypatch.setattr(device, "LIMITS", dataclasses.replace(device.LIMITS, gpu_numbers=1))  # then one by one


def test_parities_leave_out_orders():
    assert device.every_order((3, 2), "odd", 0) == [0, 3, 0, 2]
    assert device.every_order((3, 2), "even", 0) == [3, 0, 2, 0]
    assert device.every_order((3, 2), None, 0) == [3, 2]
