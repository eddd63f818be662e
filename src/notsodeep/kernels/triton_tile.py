"""A tile of a kernel matrix as one Triton program over a tile of the Gram product, in place: entries are written once.

Imported only where Triton is there; ``device.py`` launches it, and ``Points.lookup`` says the same in plain torch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _add_ranks(b0, left, right, left_stride, right_stride, i, j, start, end, AT_ONCE: tl.constexpr, DOT: tl.constexpr):
    """Add sum_k left_k right_k' for the ranks k from start to end, AT_ONCE at a time, by tensor cores if DOT."""
    for k in range(start, end, AT_ONCE):
        if DOT:
            q = k + tl.arange(0, AT_ONCE)
            a = tl.load(left + q[None, :] * left_stride + i[:, None], mask=(q < end)[None, :], other=0.0)
            b = tl.load(right + q[:, None] * right_stride + j[None, :], mask=(q < end)[:, None], other=0.0)
            b0 = tl.dot(a, b, acc=b0, input_precision="ieee", out_dtype=b0.dtype)
        else:
            b0 += tl.load(left + k * left_stride + i)[:, None] * tl.load(right + k * right_stride + j)[None, :]
            for u in tl.static_range(1, AT_ONCE):
                a = tl.load(left + (k + u) * left_stride + i, mask=k + u < end, other=0.0)
                b = tl.load(right + (k + u) * right_stride + j, mask=k + u < end, other=0.0)
                b0 += a[:, None] * b[None, :]
    return b0


@triton.jit
def _list(outside, gi, gj, lack, rows, columns, lacks, count, capacity, BM: tl.constexpr, BN: tl.constexpr):
    """Write down the entries that the table does not settle, as long as there is room."""
    slot = tl.atomic_add(count + tl.zeros([BM, BN], tl.int32), tl.full([BM, BN], 1, tl.int64), mask=outside)
    kept = outside & (slot < capacity)
    tl.store(rows + slot, tl.broadcast_to(gi[:, None], [BM, BN]), mask=kept)
    tl.store(columns + slot, tl.broadcast_to(gj[None, :], [BM, BN]), mask=kept)
    tl.store(lacks + slot, lack, mask=kept)


@triton.jit
def _lack(given, beside, r, share, other):
    """What cosines lack of +-1, with their signs, as Points.lack has it."""
    square = share[:, None] + (1.0 - share)[:, None] * other[None, :] - given * (r + beside)
    lack = tl.maximum(square, 0.0) / (1.0 + tl.abs(r))
    return lack * tl.where(r < 0, -1.0, 1.0).to(lack.dtype)  # zeros have signs, too, which 0 - lack would lose


# fmt: off
@triton.jit
def _series(
    x2, left, right, ends, terms, left_stride, right_stride, i, j,
    PARITY: tl.constexpr, SCALAR: tl.constexpr, AT_ONCE: tl.constexpr, DOT: tl.constexpr,
):
    # fmt: on
    """sum_m T_m(x) left_m right_m', left with its signs, at ``x2`` = 2 x; PARITY 1: odd orders, 2: even ones."""
    y2 = x2
    if PARITY > 0:
        y2 = x2 * x2 - 2.0
    b1 = tl.zeros_like(x2)
    b2 = tl.zeros_like(x2)
    end = tl.load(ends + terms)
    for step in range(terms):
        m = terms - 1 - step
        b0 = y2 * b1 - b2
        if SCALAR:
            b0 += tl.load(left + m)
        else:
            start = tl.load(ends + m)
            b0 = _add_ranks(b0, left, right, left_stride, right_stride, i, j, start, end, AT_ONCE, DOT)
            end = start
        b2 = b1
        b1 = b0
    # the sum is c_0 + y b_1 - b_2, and x (b_0 - b_1) for odd orders
    return 0.5 * x2 * (b1 - b2) if PARITY == 1 else b1 - 0.5 * y2 * b2


@triton.jit
def _write(out, stride, values, wanted, mirrored, gi, gj, SYMMETRIC: tl.constexpr):
    """Write the entries that are wanted, and their mirror images."""
    tl.store(out + gi.to(tl.int64)[:, None] * stride + gj[None, :], values, mask=wanted)
    if SYMMETRIC:
        tl.store(out + gj.to(tl.int64)[:, None] * stride + gi[None, :], tl.trans(values), mask=mirrored)


@triton.jit
def _norms(fx, fy):
    """The products of both norms, from their inverses."""
    nx = tl.where(fx > 0, 1.0 / tl.where(fx > 0, fx, 1.0), 0.0)
    ny = tl.where(fy > 0, 1.0 / tl.where(fy > 0, fy, 1.0), 0.0)
    return nx[:, None] * ny[None, :]


# fmt: off
@triton.jit
def tile_kernel(
    gram, out, gram_stride, out_stride,  # matrices
    wx, wy, tx, ty, blur_x, blur_y,  # of rows and columns: inverse norms, shares of what is given, blurs (see Points)
    left, right, ends, numbers,  # factors of norms, for whole tiles; where orders begin; scale, trusted, reach, lift
    caps, spans, intervals,  # of each interval: sign, least and largest lack, middle, scale; where it begins, orders
    found_i, found_j, lacks, count, row0, column0, rows, columns, left_stride, right_stride, terms, capacity,
    SYMMETRIC: tl.constexpr, WARPED: tl.constexpr, PARITY: tl.constexpr, SCALAR: tl.constexpr,
    HOMOGENEOUS: tl.constexpr, CAPPED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, AT_ONCE: tl.constexpr, DOT: tl.constexpr,
):
    # fmt: on
    """One tile: by the table up to ``trusted``, beyond by series on intervals of the angle if CAPPED.

    AT_ONCE ranks are added at a time, by tensor cores if DOT.
    """
    first, second = tl.program_id(1) * BM, tl.program_id(0) * BN
    if SYMMETRIC:  # noqa: SIM102  # the outer condition is decided at compile time
        if column0 + second + BN - 1 <= row0 + first:
            return
    i, j = first + tl.arange(0, BM), second + tl.arange(0, BN)
    inside_i, inside_j = i < rows, j < columns
    gi, gj = row0 + i, column0 + j
    wanted = inside_i[:, None] & inside_j[None, :]
    if SYMMETRIC:
        wanted = wanted & (gj[None, :] > gi[:, None])
    scale, trusted, reach = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    factor, constant = tl.load(numbers + 3), tl.load(numbers + 4)
    fx, fy = tl.load(wx + gi, mask=inside_i, other=0.0), tl.load(wy + gj, mask=inside_j, other=0.0)
    place = gi.to(tl.int64)[:, None] * gram_stride + gj[None, :]
    given = tl.load(gram + place, mask=wanted, other=0.0) * fx[:, None] * fy[None, :] * factor
    beside = constant * fx[:, None] * fy[None, :]
    r = given + beside

    outside = wanted & (tl.abs(r) > trusted)
    which = tl.where(outside, -1, 0)  # the interval that holds an entry, 0: the table, -1: none
    beyond = tl.sum(tl.sum(outside.to(tl.int32), axis=1), axis=0)
    if beyond > 0:
        share, other = tl.load(tx + gi, mask=inside_i, other=0.0), tl.load(ty + gj, mask=inside_j, other=0.0)
        lack = _lack(given, beside, r, share, other)
        if CAPPED:
            bx, by = tl.load(blur_x + gi, mask=inside_i, other=0.0), tl.load(blur_y + gj, mask=inside_j, other=0.0)
            clear = outside & (tl.abs(lack) >= tl.maximum(bx[:, None], by[None, :]))
            for s in range(intervals):
                off = lack * tl.load(caps + 5 * s)
                within = clear & (off > tl.load(caps + 5 * s + 1)) & (off <= tl.load(caps + 5 * s + 2))
                which = tl.where(within, s + 1, which)
            outside = outside & (which < 0)
            # kept in memory: in registers they would take the room of the sum
            angle = 2.0 * libdevice.asin(tl.sqrt(0.5 * tl.abs(lack)))
            tl.store(out + gi.to(tl.int64)[:, None] * out_stride + gj[None, :], angle, mask=which > 0)
        _list(outside, gi, gj, lack, found_i, found_j, lacks, count, capacity, BM, BN)

    if CAPPED:
        wanted = wanted & (which == 0)
        some = tl.sum(tl.sum(wanted.to(tl.int32), axis=1), axis=0) > 0
    else:
        some = True
    if some:
        x = tl.minimum(tl.maximum(r, -reach), reach)
        if WARPED:
            x = libdevice.asin(x)
        values = _series(
            x * scale, left, right, ends, terms, left_stride, right_stride, i, j,
            PARITY, SCALAR, AT_ONCE, DOT,
        )  # fmt: skip
        if HOMOGENEOUS:
            values *= _norms(fx, fy)
        there = inside_j[:, None] & inside_i[None, :] & (gj[:, None] > gi[None, :])
        if CAPPED:
            there = tl.trans(wanted)
        _write(out, out_stride, values, wanted, there, gi, gj, SYMMETRIC)
    if CAPPED and beyond > 0:
        tl.debug_barrier()  # angles that other threads have written
        for s in range(intervals):
            here = which == s + 1
            if tl.sum(tl.sum(here.to(tl.int32), axis=1), axis=0) > 0:
                angle = tl.load(out + gi.to(tl.int64)[:, None] * out_stride + gj[None, :], mask=here, other=0.0)
                x2 = (angle - tl.load(caps + 5 * s + 3)) * tl.load(caps + 5 * s + 4)
                begin = tl.load(spans + 2 * s)
                part = left + begin if SCALAR else left
                values = _series(
                    tl.minimum(tl.maximum(x2, -2.0), 2.0), part, right, ends + begin, tl.load(spans + 2 * s + 1),
                    left_stride, right_stride, i, j, 0, SCALAR, AT_ONCE, DOT,
                )  # fmt: skip
                if HOMOGENEOUS:
                    values *= _norms(fx, fy)
                _write(out, out_stride, values, here, tl.trans(here), gi, gj, SYMMETRIC)


# fmt: off
@triton.jit
def entry_kernel(
    out, stride, rows, columns, lacks, done, total,  # a matrix and entries of it, what their cosines lack of +-1
    wx, wy, left, right, ends, caps, spans, intervals, width,  # as above, but a row of factors for each point
    SYMMETRIC: tl.constexpr, SCALAR: tl.constexpr, HOMOGENEOUS: tl.constexpr, SIZE: tl.constexpr, AT_ONCE: tl.constexpr,
):
    # fmt: on
    """Single entries by the series of the intervals that hold them; says which were done."""
    entry = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = entry < total
    i, j = tl.load(rows + entry, mask=inside, other=0), tl.load(columns + entry, mask=inside, other=0)
    lack = tl.load(lacks + entry, mask=inside, other=0.0)
    angle = 2.0 * libdevice.asin(tl.sqrt(0.5 * tl.abs(lack)))
    found, values = entry < 0, tl.zeros_like(lack)
    for s in range(intervals):
        off = lack * tl.load(caps + 5 * s)
        here = (off > tl.load(caps + 5 * s + 1)) & (off <= tl.load(caps + 5 * s + 2))
        if tl.sum(here.to(tl.int32), axis=0) > 0:
            x2 = (angle - tl.load(caps + 5 * s + 3)) * tl.load(caps + 5 * s + 4)
            x2 = tl.minimum(tl.maximum(x2, -2.0), 2.0)
            b1, b2 = tl.zeros_like(x2), tl.zeros_like(x2)
            begin, terms = tl.load(spans + 2 * s), tl.load(spans + 2 * s + 1)
            for step in range(terms):
                m = begin + terms - 1 - step
                b0 = x2 * b1 - b2
                if SCALAR:
                    b0 += tl.load(left + m)
                else:
                    for k in range(tl.load(ends + m), tl.load(ends + m + 1), AT_ONCE):
                        q = k + tl.arange(0, AT_ONCE)
                        held = here[:, None] & (q < tl.load(ends + m + 1))[None, :]
                        a = tl.load(left + i[:, None] * width + q[None, :], mask=held, other=0.0)
                        b = tl.load(right + j[:, None] * width + q[None, :], mask=held, other=0.0)
                        b0 += tl.sum(a * b, axis=1)
                b2 = b1
                b1 = b0
            values = tl.where(here, b1 - 0.5 * x2 * b2, values)
            found = found | here
    if HOMOGENEOUS:
        nx, ny = tl.load(wx + i), tl.load(wy + j)
        values /= tl.where(nx * ny > 0, nx * ny, 1.0)
    tl.store(out + i * stride + j, values, mask=found)
    if SYMMETRIC:
        tl.store(out + j * stride + i, values, mask=found)
    tl.store(done + entry, tl.full([SIZE], 1, tl.int8), mask=found)
