"""Convolutional kernels of ReLU-like networks as one Triton program: a few pairs of images, their fields in registers.

Imported only where Triton is there; ``convolution.py`` says the same in plain torch. The mean over a window is a
product with a band of ones on either side. The field is split into two parts of eleven bits each, and ones are exact,
so that tensor cores lose nothing that single precision has. Averages before the readout are a loop over shifts.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(field, band, PAIRS: tl.constexpr, SIDE: tl.constexpr):
    """Add up the window along the last axis of (PAIRS, SIDE, SIDE), and swap the last two axes."""
    flat = tl.reshape(field, [PAIRS * SIDE, SIDE])
    coarse = (flat.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    total = tl.dot(coarse, band, input_precision="tf32")
    total = tl.dot(flat - coarse, band, acc=total, input_precision="tf32")
    return tl.permute(tl.reshape(total, [PAIRS, SIDE, SIDE]), (0, 2, 1))


@triton.jit
def _window(field, across, down, share, PAIRS: tl.constexpr, SIDE: tl.constexpr):
    """The mean over the window, in both directions."""
    return share * _rows(_rows(field, across, PAIRS, SIDE), down, PAIRS, SIDE)


@triton.jit
def _angle(rho):
    """Pi minus the angle whose cosine is rho (Abramowitz and Stegun, 4.4.46, error 2e-8)."""
    x = tl.abs(rho)
    p = -0.0012624911
    p = p * x + 0.0066700901
    p = p * x - 0.0170881256
    p = p * x + 0.0308918810
    p = p * x - 0.0501743046
    p = p * x + 0.0889789874
    p = p * x - 0.2145988016
    p = p * x + 1.5707963050
    angle = tl.sqrt(1.0 - x) * p
    return tl.where(rho < 0, angle, 3.14159265358979 - angle)


@triton.jit
def _value(lam, inverse, sizes, bend, straight):
    """E[phi(u) phi(v)] for phi with two slopes."""
    rho = tl.minimum(tl.maximum(lam * inverse, -1.0), 1.0)
    return sizes * (bend * (tl.sqrt((1.0 - rho) * (1.0 + rho)) + _angle(rho) * rho) + straight * rho)


# fmt: off
@triton.jit
def _pair(
    x, y, ux, uy, i, j, down_by, across_by, columns, across, down,
    sigma_a2, sigma_b2, sigma_c2, share, bend, straight, steep, relax, square, steps,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PAIRS: tl.constexpr,
    TANGENT: tl.constexpr,
):
    # fmt: on
    """Kernels of image i of x with images j of y, of all positions of x with those of y moved by a shift."""
    a, b = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    moved, aside = a + down_by, b + across_by
    inside = ((a < HEIGHT) & (b < WIDTH) & (moved >= 0) & (moved < HEIGHT) & (aside >= 0) & (aside < WIDTH))[None]
    place, other = (a * WIDTH + b)[None], (moved * WIDTH + aside)[None]
    wanted = inside & (j < columns)[:, None, None]
    positions: tl.constexpr = HEIGHT * WIDTH
    drive = tl.zeros([PAIRS, SIDE, SIDE], tl.float32)
    there = j.to(tl.int64)[:, None, None]
    for c in range(CHANNELS):
        left = tl.load(x + (i.to(tl.int64) * CHANNELS + c) * positions + place, mask=inside, other=0.0)
        drive += left * tl.load(y + (there * CHANNELS + c) * positions + other, mask=wanted, other=0.0)
    source = sigma_b2 * _window(drive, across, down, share, PAIRS, SIDE) + tl.where(inside, sigma_c2, 0.0)
    root = tl.load(ux + i.to(tl.int64) * positions + place, mask=inside, other=0.0)
    sizes = root * tl.load(uy + there * positions + other, mask=wanted, other=0.0)
    inverse = tl.where(sizes > 0, 1.0 / tl.where(sizes > 0, sizes, 1.0), 0.0)

    # what the first step sees of ``before`` cancels; two names of one value would not both be carried by the loop
    lam, before, omega = source, tl.zeros([PAIRS, SIDE, SIDE], tl.float32), 1.0
    for k in range(steps):
        image = _window(_value(lam, inverse, sizes, bend, straight), across, down, share, PAIRS, SIDE)
        ahead = lam + relax * (source + sigma_a2 * image - lam)
        ahead = before + omega * (ahead - before)
        before, lam = lam, ahead
        omega = 4.0 / (4.0 - square * tl.where(k == 0, 2.0, omega))
    value = tl.sum(tl.sum(_value(lam, inverse, sizes, bend, straight), axis=2), axis=1) / positions
    whole, rest = value, value
    if TANGENT:
        rho = tl.minimum(tl.maximum(lam * inverse, -1.0), 1.0)
        slope = tl.where(inside, straight + (steep - straight) * _angle(rho) / 3.14159265358979, 0.0)
        begin = slope / positions
        effect, before, omega = begin, tl.zeros([PAIRS, SIDE, SIDE], tl.float32), 1.0
        for k in range(steps):
            image = begin + sigma_a2 * slope * _window(effect, across, down, share, PAIRS, SIDE)
            ahead = effect + relax * (image - effect)
            ahead = before + omega * (ahead - before)
            before, effect = effect, ahead
            omega = 4.0 / (4.0 - square * tl.where(k == 0, 2.0, omega))
        whole = value + tl.sum(tl.sum(effect * lam, axis=2), axis=1)
        rest = value + tl.sum(tl.sum(effect * (lam - source), axis=2), axis=1)
    return value, whole, rest


# fmt: off
@triton.jit
def field_kernel(
    x, y, ux, uy, ck, ntk, frozen, band_across, band_down,  # inputs, results, and the windows along both directions
    moves, weights, shifts,  # of the averages before the readout, if there are any
    columns, ck_stride, ntk_stride, frozen_stride,
    sigma_a2, sigma_b2, sigma_c2, share, bend, straight, steep,  # of the network, its filter and its activation
    relax, square, steps,  # of Chebyshev's method, see SemiIteration
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, PAIRS: tl.constexpr,
    SYMMETRIC: tl.constexpr, TANGENT: tl.constexpr, POOLED: tl.constexpr,
):
    """Kernels of image i of x with PAIRS images of y; ux, uy: roots of the variances."""
    i, first = tl.program_id(1), tl.program_id(0) * PAIRS
    if SYMMETRIC:  # noqa: SIM102  # the outer condition is decided at compile time
        if first + PAIRS - 1 < i:
            return
    a, b, j = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :], first + tl.arange(0, PAIRS)
    across, down = tl.load(band_across + a * SIDE + b), tl.load(band_down + a * SIDE + b)
    if POOLED:
        value, whole, rest = tl.zeros([PAIRS], tl.float32), tl.zeros([PAIRS], tl.float32), tl.zeros([PAIRS], tl.float32)
        for k in range(shifts):
            v, w, r = _pair(
                x, y, ux, uy, i, j, tl.load(moves + 2 * k), tl.load(moves + 2 * k + 1), columns, across, down,
                sigma_a2, sigma_b2, sigma_c2, share, bend, straight, steep, relax, square, steps,
                CHANNELS, HEIGHT, WIDTH, SIDE, PAIRS, TANGENT,
            )
            weight = tl.load(weights + k)
            value, whole, rest = value + weight * v, whole + weight * w, rest + weight * r
    else:
        value, whole, rest = _pair(
            x, y, ux, uy, i, j, 0, 0, columns, across, down,
            sigma_a2, sigma_b2, sigma_c2, share, bend, straight, steep, relax, square, steps,
            CHANNELS, HEIGHT, WIDTH, SIDE, PAIRS, TANGENT,
        )
    row = i.to(tl.int64)
    tl.store(ck + row * ck_stride + j, value, mask=j < columns)
    if TANGENT:
        tl.store(ntk + row * ntk_stride + j, whole, mask=j < columns)
        tl.store(frozen + row * frozen_stride + j, rest, mask=j < columns)
# fmt: on
