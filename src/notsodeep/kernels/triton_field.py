"""Convolutional kernels of ReLU-like networks as one Triton program: a warp per pair of images, fields in registers.

Imported only where Triton is there; ``convolution.py`` says the same in plain torch. Lanes hold columns, so that a row
is one register: a window adds registers along one direction and those of neighbouring lanes along the other. Fields
are divided by the roots of the variances on either side: cosines, and zeros outside the image. Averages before the
readout are a loop over shifts.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _moved(field, DOWN: tl.constexpr):
    """Move the rows of a field down or up by one: even rows become odd ones and odd rows even ones; zeros come in."""
    if field.shape[0] == 1:
        moved = tl.zeros_like(field)
    else:
        even, odd = tl.split(tl.permute(tl.reshape(field, [field.shape[0] // 2, 2, field.shape[1]]), (0, 2, 1)))
        rows = tl.join(_moved(odd, DOWN), even) if DOWN else tl.join(odd, _moved(even, DOWN))
        moved = tl.reshape(tl.permute(rows, (0, 2, 1)), field.shape)
    return moved


@triton.jit
def _neighbours(field, by: tl.constexpr, WIDTH: tl.constexpr):
    """Add the columns at a distance on both sides."""
    LANES: tl.constexpr = field.shape[1]
    column = tl.broadcast_to(tl.arange(0, LANES)[None, :], field.shape)
    after, before = tl.gather(field, (column + by) % LANES, 1), tl.gather(field, (column + LANES - by) % LANES, 1)
    if WIDTH + by > LANES:  # else the columns beyond the image are zeros, and those that come around are some of them
        after, before = tl.where(column + by < LANES, after, 0.0), tl.where(column >= by, before, 0.0)
    return after + before


@triton.jit
def _window(field, REACH: tl.constexpr, WIDTH: tl.constexpr):
    """The sum over the window."""
    rows, down, up = field, field, field
    for _ in tl.static_range(REACH):
        down, up = _moved(down, True), _moved(up, False)
        rows += down + up
    total = rows
    for by in tl.static_range(1, REACH + 1):
        total += _neighbours(rows, by, WIDTH)
    return total


@triton.jit
def _angle(rho):
    """Pi minus the angle whose cosine is rho (Abramowitz and Stegun, 4.4.46, error 2e-8)."""
    x = tl.minimum(tl.abs(rho), 1.0)
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
def _value(rho, tilt, CURVED: tl.constexpr, TILTED: tl.constexpr):
    """A multiple of E[phi(u) phi(v)] for phi with two slopes and variances of one.

    sqrt(1 - x^2) - x arccos(x) is sqrt(1 - x) times a polynomial, here the best of degree 6 (error 4e-8).
    """
    value = tl.zeros_like(rho)
    if CURVED:
        x = tl.minimum(tl.abs(rho), 1.0)
        p = 0.000662647502
        p = p * x - 0.00353545666
        p = p * x + 0.0102258994
        p = p * x - 0.0260942075
        p = p * x + 0.0895335974
        p = p * x - 1.07079241
        p = p * x + 0.999999963
        value = tl.sqrt(1.0 - x) * p + 3.14159265358979 * tl.maximum(rho, 0.0)
    if TILTED:
        value += tilt * rho
    return value


@triton.jit
def _step(now, before, source, gain, image, omega, relax):
    """A step of Chebyshev's method, see SemiIteration."""
    return omega * relax * (source + gain * image) + (omega * (1.0 - relax) * now + (1.0 - omega) * before)


@triton.jit
def _total(field):
    return tl.sum(tl.sum(field, axis=0), axis=0)


# fmt: off
@triton.jit
def _pair(
    x, y, ux, uy, i, j, down_by, across_by, sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep,
    relax, square, steps,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    REACH: tl.constexpr, TANGENT: tl.constexpr, CURVED: tl.constexpr, TILTED: tl.constexpr,
):
    # fmt: on
    """Kernels of image i of x with image j of y, of all positions of x with those of y moved by a shift."""
    a, b = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES)[None, :]
    moved, aside = a + down_by, b + across_by
    inside = (a < HEIGHT) & (b < WIDTH) & (moved >= 0) & (moved < HEIGHT) & (aside >= 0) & (aside < WIDTH)
    positions: tl.constexpr = HEIGHT * WIDTH
    mine, yours = i.to(tl.int64) * positions, j.to(tl.int64) * positions
    here, there = a * WIDTH + b, moved * WIDTH + aside
    drive = tl.zeros([ROWS, LANES], tl.float32)
    for c in range(CHANNELS):
        left = tl.load(x + (mine * CHANNELS + c * positions) + here, mask=inside, other=0.0)
        drive += left * tl.load(y + (yours * CHANNELS + c * positions) + there, mask=inside, other=0.0)
    drive = sigma_b2 * _window(drive, REACH, WIDTH) + sigma_c2
    sizes = tl.load(ux + mine + here, mask=inside, other=0.0) * tl.load(uy + yours + there, mask=inside, other=0.0)
    inverse = tl.where(sizes > 0, 1.0 / tl.where(sizes > 0, sizes, 1.0), 0.0)
    source, gain = inverse * drive, inverse * (scale * sigma_a2)

    # what the first step sees of ``before`` has the factor zero; two names of one value would not both be carried on
    rho, before, omega = source, tl.zeros([ROWS, LANES], tl.float32), 1.0
    for k in range(steps):
        image = _window(sizes * _value(rho, tilt, CURVED, TILTED), REACH, WIDTH)
        before, rho = rho, _step(rho, before, source, gain, image, omega, relax)
        omega = 4.0 / (4.0 - square * tl.where(k == 0, 2.0, omega))
    value = scale * _total(sizes * _value(rho, tilt, CURVED, TILTED)) / positions
    whole, rest = value, value
    if TANGENT:
        slope = tl.where(inside, straight + (steep - straight) * 0.318309886183791 * _angle(rho), 0.0)
        begin, gain = slope * (1.0 / positions), sigma_a2 * slope
        effect, before, omega = begin, tl.zeros([ROWS, LANES], tl.float32), 1.0
        for k in range(steps):
            image = _window(effect, REACH, WIDTH)
            before, effect = effect, _step(effect, before, begin, gain, image, omega, relax)
            omega = 4.0 / (4.0 - square * tl.where(k == 0, 2.0, omega))
        effect *= sizes
        whole = value + _total(effect * rho)
        rest = value + _total(effect * (rho - source))
    return value, whole, rest


# fmt: off
@triton.jit
def field_kernel(
    x, y, ux, uy, ck, ntk, frozen,  # inputs and results; ux, uy: roots of the variances
    moves, weights, shifts,  # of the averages before the readout
    ck_stride, ntk_stride, frozen_stride,
    sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep,  # of the network and its activation
    relax, square, steps,  # of Chebyshev's method, see SemiIteration
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    REACH: tl.constexpr, SYMMETRIC: tl.constexpr, TANGENT: tl.constexpr, CURVED: tl.constexpr, TILTED: tl.constexpr,
):
    """Kernels of image i of x with image j of y: sums over shifts."""
    i, j = tl.program_id(1), tl.program_id(0)
    if SYMMETRIC:  # noqa: SIM102  # the outer condition is decided at compile time
        if j < i:
            return
    value, whole, rest = 0.0, 0.0, 0.0
    for k in range(shifts):
        v, w, r = _pair(
            x, y, ux, uy, i, j, tl.load(moves + 2 * k), tl.load(moves + 2 * k + 1),
            sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep, relax, square, steps,
            CHANNELS, HEIGHT, WIDTH, ROWS, LANES, REACH, TANGENT, CURVED, TILTED,
        )
        weight = tl.load(weights + k)
        value, whole, rest = value + weight * v, whole + weight * w, rest + weight * r
    row = i.to(tl.int64)
    tl.store(ck + row * ck_stride + j, value)
    if TANGENT:
        tl.store(ntk + row * ntk_stride + j, whole)
        tl.store(frozen + row * frozen_stride + j, rest)
# fmt: on
