"""Which worker owns which tiles of a symmetric matrix: equal work, few rows each, and few tiles that move.

Tiles of the upper triangle are ordered along a Z-shaped curve and the curve is cut into pieces. A piece is compact: a
worker of P needs about n sqrt(2 / P) of the rows, and as much of every vector, instead of all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Tile = tuple[int, int]
_SIZE = 2048
_MOST = 1024  # blocks of rows, half a million tiles: the client looks at each in every step
_EACH = 8  # tiles per worker at least, so that none waits long for another


def tile_size(n: int, workers: int) -> int:
    """Rows of a tile: 2,048; less where every worker would not have a few, more where they would be countless.

    >>> tile_size(60_000, 4), tile_size(800, 2)
    (2048, 134)
    """
    few = -(-n // math.ceil(math.sqrt(2 * _EACH * max(workers, 1))))
    return max(1, min(few, max(_SIZE, -(-n // _MOST))))


@dataclass(frozen=True)
class Grid:
    """n rows in blocks of ``size``; the last may be smaller."""

    n: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.n // self.size)

    def span(self, block: int) -> slice:
        return slice(block * self.size, min((block + 1) * self.size, self.n))

    def rows(self, block: int) -> int:
        span = self.span(block)
        return span.stop - span.start

    def work(self, tile: Tile) -> float:
        """Entries that are computed; a tile on the diagonal is symmetric itself."""
        i, j = tile
        return self.rows(i) * self.rows(j) * (0.5 if i == j else 1.0)

    def tiles(self) -> list[Tile]:
        """The upper triangle along the curve.

        >>> Grid(4, 1).tiles()
        [(0, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
        """
        return list(_curve(self.count))


@functools.lru_cache(8)
def _curve(count: int) -> tuple[Tile, ...]:
    spread = [_spread(k) for k in range(count)]
    triangle = ((i, j) for i in range(count) for j in range(i, count))
    return tuple(sorted(triangle, key=lambda tile: spread[tile[0]] << 1 | spread[tile[1]]))


def _spread(k: int) -> int:
    """The bits of k with a zero between any two; those of another number fit in."""
    return int(f"{k:b}", 4)


def blocks_of(tiles: Iterable[Tile]) -> list[int]:
    """The blocks of rows that these tiles need.

    >>> blocks_of([(0, 3), (0, 1)])
    [0, 1, 3]
    """
    return sorted({block for tile in tiles for block in tile})


def move(grid: Grid, owned: Mapping[Tile, str | None], strength: Mapping[str, float]) -> dict[Tile, str]:
    """A new owner for every tile whose owner is not among the workers in ``strength``, and for little else.

    Every worker's share is in proportion to its strength. Newcomers take from those who have more than theirs.
    """
    order = grid.tiles()
    total = sum(map(grid.work, order))
    fair = {name: total * s / sum(strength.values()) for name, s in strength.items()}
    held = dict.fromkeys(strength, 0.0)
    kept: dict[Tile, str] = {}
    for tile in order:  # along the curve, up to the share: what is left over lies at the end of a piece
        owner, work = owned.get(tile), grid.work(tile)
        if owner in held and held[owner] + 0.5 * work <= fair[owner]:
            kept[tile] = owner
            held[owner] += work
    free = [tile for tile in order if tile not in kept]
    lack = {name: max(fair[name] - held[name], 0.0) for name in strength}
    names = sorted(strength, key=lambda name: -lack[name])
    room, left, open_lack = 0.0, sum(map(grid.work, free)), sum(lack.values())
    name = ""
    for tile in free:
        work = grid.work(tile)
        while names and (not name or 0.5 * work > room):  # the next one, with its part of all that is left
            name = names.pop(0)
            room = left * lack[name] / open_lack if open_lack > 0.0 else left
            open_lack -= lack[name]
        kept[tile] = name
        room -= work
        left -= work
    return kept


def row_owners(grid: Grid, owned: Mapping[Tile, str], workers: Iterable[str]) -> dict[int, str]:
    """One worker for each block of rows, evenly, among those that hold it anyway."""
    holders: dict[int, set[str]] = {block: set() for block in range(grid.count)}
    for tile, name in owned.items():
        for block in tile:
            holders[block].add(name)
    load = dict.fromkeys(workers, 0)
    found = {}
    for block in sorted(holders, key=lambda b: len(holders[b])):
        name = min(holders[block] or load, key=lambda w: (load[w], w))
        found[block] = name
        load[name] += 1
    return found
