"""Tiles are shared out evenly, each worker needs few rows, and few tiles move when workers come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.distributed import Rates, plan
from notsodeep.distributed.layout import Grid, blocks_of, move, row_owners

names = st.integers(1, 12).map(lambda k: [f"w{i}" for i in range(k)])


def work(grid, owned):
    total = Counter()
    for tile, name in owned.items():
        total[name] += grid.work(tile)
    return total


@given(st.integers(1, 5000), st.integers(1, 700), names)
def test_every_tile_has_one_owner_with_a_fair_share(n, size, workers):
    grid = Grid(n, max(size, n // 40 + 1))
    owned = move(grid, {}, dict.fromkeys(workers, 1.0))
    assert sorted(owned) == [(i, j) for i in range(grid.count) for j in range(i, grid.count)]
    held = work(grid, owned)
    fair, largest = sum(held.values()) / len(workers), max(map(grid.work, owned))
    assert max(held.values()) <= fair + 1.5 * largest
    assert set(row_owners(grid, owned, workers)) == set(range(grid.count))


def test_a_stronger_worker_gets_more():
    grid = Grid(4000, 100)
    held = work(grid, move(grid, {}, {"weak": 1.0, "strong": 3.0}))
    assert held["strong"] / held["weak"] == pytest.approx(3.0, rel=0.02)  # a tile among 820


@given(names.filter(lambda w: len(w) > 1), st.data())
def test_only_what_is_lost_moves(workers, data):
    grid = Grid(3000, 100)
    before = move(grid, {}, dict.fromkeys(workers, 1.0))
    lost = data.draw(st.sampled_from(workers))
    left = {name: 1.0 for name in workers if name != lost}
    after = move(grid, before, left)
    assert all(after[tile] == owner for tile, owner in before.items() if owner != lost)
    held = work(grid, after)
    assert max(held.values()) <= sum(held.values()) / len(left) + 1.5 * grid.size**2
    again = move(grid, after, {**left, "new": 1.0})
    taken = sum(again[tile] != owner for tile, owner in after.items())
    astray = sum(again[tile] not in (owner, "new") for tile, owner in after.items())
    assert astray <= len(workers)  # what rounding to whole tiles left
    assert taken <= len(after) / len(workers) + len(workers) + 1


def test_a_worker_needs_few_of_the_rows():
    grid = Grid(100_000, 1000)
    workers = [f"w{i}" for i in range(64)]
    owned = move(grid, {}, dict.fromkeys(workers, 1.0))
    needed = [len(blocks_of(t for t, w in owned.items() if w == name)) for name in workers]
    assert max(needed) <= 36  # of 100; a stripe of rows would need up to 100
    assert sum(needed) / 64 <= 25
    rows = Counter(row_owners(grid, owned, workers).values())
    assert max(rows.values()) <= 3


def test_a_plan_counts_the_factor_of_the_preconditioner():
    rates = Rates(build=1e8, product=1e9, latency=0.01, task=1e-3, bandwidth=1e9)
    without, told = (plan(60_000, 784, 4, rates, rank=rank) for rank in (0, 2000))
    rows = 8 * 2048  # of 30 blocks one has eight
    assert (without.factor_bytes, told.factor_bytes) == (0.0, rows * 2000 * 8.0)
    assert told.step_bytes - without.step_bytes == 2 * 8 * 10 * (60_000 + 4 * 2000)
    computing, messages = rows * 2000 * 2 / 1e9, 2 * (0.01 + 4e-3)
    traffic = (told.step_bytes - without.step_bytes) / 1e9
    assert told.step_seconds - without.step_seconds == pytest.approx(computing + messages + traffic)
    assert plan(60_000, 784, 4, rates, rank=2000, memory=told.tiles_bytes + told.rows_bytes).kept == "none"
