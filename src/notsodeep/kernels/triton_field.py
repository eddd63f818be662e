"""Convolutional kernels of ReLU-like networks as one Triton program: a warp per pair of images, fields in registers.

Imported only where Triton is there; ``convolution.py`` says the same in plain torch. Lanes hold columns, so that a row
is one register: a window adds registers along one direction and those of neighbouring lanes along the other. Fields
are divided by the roots of the variances on either side: cosines, and zeros outside the image. Averages before the
readout are a loop over shifts; a launch has those that leave the same number of rows, and no instruction is spent on
others.
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
def _three(field):
    """Sum every row and those above and below: an even and an odd row have a sum in common."""
    if field.shape[0] == 1:
        total = field
    else:
        even, odd = tl.split(tl.permute(tl.reshape(field, [field.shape[0] // 2, 2, field.shape[1]]), (0, 2, 1)))
        both = even + odd
        rows = tl.join(both + _moved(odd, True), both + _moved(even, False))
        total = tl.reshape(tl.permute(rows, (0, 2, 1)), field.shape)
    return total


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
    if REACH == 1:
        rows = _three(field)
    else:
        rows, down, up = field, field, field
        for _ in tl.static_range(REACH):
            down, up = _moved(down, True), _moved(up, False)
            rows += down + up
    total = rows
    for by in tl.static_range(1, REACH + 1):
        total += _neighbours(rows, by, WIDTH)
    return total


@triton.jit
def _live(field, HIGH: tl.constexpr):
    """Set the rows that the shift has not got to zeros; the compiler drops all that is done to them."""
    return tl.where(tl.arange(0, field.shape[0])[:, None] < HIGH, field, 0.0)


@triton.jit
def _share(rho):
    """One minus the angle whose cosine is rho, over pi: best polynomial times sqrt(1 - |rho|), error 4e-9."""
    t = 1.0 - tl.abs(rho)
    p = 0.0004588376614
    p = p * t - 0.0009055646951
    p = p * t + 0.0014665746130
    p = p * t + 0.00016567041166
    p = p * t + 0.0027386052534
    p = p * t + 0.0084016406909
    p = p * t + 0.037516139448
    p = p * t + 0.45015808940
    angle = tl.sqrt(tl.abs(t)) * p
    return tl.where(rho < 0, angle, 1.0 - angle)


@triton.jit
def _value(rho, tilt, CURVED: tl.constexpr, TILTED: tl.constexpr):
    """A multiple of E[phi(u) phi(v)] for phi with two slopes and variances of one.

    (sqrt(1 - x^2) - x arccos(x)) / pi is sqrt(1 - x) times a polynomial, here the best of degree 6 (error 7e-9).
    """
    value = tl.zeros_like(rho)
    if CURVED:
        t = 1.0 - tl.abs(rho)  # rounding below zero does no harm, as the polynomial has a zero there
        p = 0.00023506229627
        p = p * t - 0.00021936092526
        p = p * t + 0.00089211290469
        p = p * t + 0.0022603550460
        p = p * t + 0.015039561316
        p = p * t + 0.30010205507
        p = p * t + 9.617866681e-08
        value = tl.sqrt(tl.abs(t)) * p + tl.maximum(rho, 0.0)
    if TILTED:
        value += tilt * rho
    return value


@triton.jit
def _inverse(x):
    """1 / x by one step of Newton's method: full division costs three times as much."""
    root = tl.rsqrt(x)
    start = root * root
    return start * (2.0 - x * start)


@triton.jit
def _begin(source, gain, relax, tilt, CURVED: tl.constexpr, TILTED: tl.constexpr):
    """Solve relax rho = source + gain value(rho) at each position, for a parabola that is close to the value."""
    low, half, bend = 0.0, 0.0, 0.0
    if CURVED:
        low, half, bend = 0.31785137, 0.24514684, 0.18549342
    if TILTED:
        half += 0.5 * tilt
    c, b = source + low * gain, 0.5 * relax - half * gain
    root = tl.rsqrt(tl.maximum(b + tl.sqrt(tl.abs(b * b - bend * gain * c)), 1e-6))
    return tl.minimum(c * root * root, 1.0)


@triton.jit
def _step(now, drift, source, gain, image, relax, plan, k):
    """A step of Chebyshev's method, see SemiIteration; source and gain are multiplied by relax."""
    drift = tl.load(plan + 2 * k + 1) * drift + (gain * image + source - relax * now)
    return now + tl.load(plan + 2 * k) * drift, drift


# fmt: off
@triton.jit
def _pair(
    x, y, ux, uy, i, j, down_by, across_by, sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep,
    relax, plan, steps, tangent_steps,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    HIGH: tl.constexpr, SPARE: tl.constexpr, REACH: tl.constexpr,
    TANGENT: tl.constexpr, FROZEN: tl.constexpr, CURVED: tl.constexpr, TILTED: tl.constexpr,
):
    # fmt: on
    """Kernels of image i of x with image j of y, of all positions of x with those of y moved by a shift; by columns."""
    a, b = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES)[None, :]
    rows = (a < HIGH) & ((a < HIGH - SPARE) | (a < HEIGHT - tl.abs(down_by)))
    inside = rows & (b < WIDTH) & (b + across_by >= 0) & (b + across_by < WIDTH)
    positions: tl.constexpr = HEIGHT * WIDTH
    mine, yours = i.to(tl.int64) * positions, j.to(tl.int64) * positions
    here = tl.maximum(-down_by, 0) * WIDTH
    there = tl.maximum(down_by, 0) * WIDTH + across_by
    place = a * WIDTH + b
    drive = tl.zeros([ROWS, LANES], tl.float32)
    for c in range(CHANNELS):
        left = tl.load(x + (mine * CHANNELS + c * positions + here) + place, mask=inside, other=0.0)
        drive += left * tl.load(y + (yours * CHANNELS + c * positions + there) + place, mask=inside, other=0.0)
    drive = (relax * sigma_b2) * _window(_live(drive, HIGH), REACH, WIDTH) + relax * sigma_c2
    sizes = tl.load(ux + (mine + here) + place, mask=inside, other=0.0)
    sizes = _live(sizes * tl.load(uy + (yours + there) + place, mask=inside, other=0.0), HIGH)
    inverse = tl.where(sizes > 0, _inverse(tl.where(sizes > 0, sizes, 1.0)), 0.0)
    gain, source = inverse * (relax * scale * sigma_a2), inverse * drive
    rho = _live(_begin(source, gain * _window(sizes, REACH, WIDTH), relax, tilt, CURVED, TILTED), HIGH)
    drift = tl.zeros([ROWS, LANES], tl.float32)
    for k in range(steps):
        image = _window(sizes * _value(rho, tilt, CURVED, TILTED), REACH, WIDTH)
        rho, drift = _step(rho, drift, source, gain, image, relax, plan, k)
        rho, drift = _live(rho, HIGH), _live(drift, HIGH)
    if TANGENT:
        share, scaled = _share(rho), sizes * rho
        part = scale / positions
        value = tl.zeros([LANES], tl.float32)
        if CURVED:
            root = tl.sqrt(tl.abs(1.0 - rho * rho))
            value += part * tl.sum(scaled * share + (sizes * root) * 0.318309886183791, axis=0)
        if TILTED:
            value += (part * tilt) * tl.sum(scaled, axis=0)
        if FROZEN:
            past = scaled - (1.0 / relax) * source * sizes
        slope = _live(tl.where(inside, straight + (steep - straight) * share, 0.0), HIGH)
        gain, source = (relax * sigma_a2) * slope, (relax / positions) * slope
        # the solution if it were constant in every window
        root = tl.rsqrt(tl.maximum(relax - _window(gain, REACH, WIDTH), 1e-2))
        effect = source * root * root
        drift = tl.zeros([ROWS, LANES], tl.float32)
        for k in range(tangent_steps):
            image = _window(effect, REACH, WIDTH)
            effect, drift = _step(effect, drift, source, gain, image, relax, plan, k)
            effect, drift = _live(effect, HIGH), _live(drift, HIGH)
        whole = value + tl.sum(effect * scaled, axis=0)
        rest = value
        if FROZEN:
            rest += tl.sum(effect * past, axis=0)
    else:
        value = tl.sum(sizes * _value(rho, tilt, CURVED, TILTED), axis=0) * (scale / positions)
        whole, rest = value, value
    return value, whole, rest


# fmt: off
@triton.jit
def field_kernel(
    x, y, ux, uy, ck, ntk, frozen,  # inputs and results; ux, uy: roots of the variances
    moves, weights, shifts,  # of the averages before the readout
    ck_stride, ntk_stride, frozen_stride,
    sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep,  # of the network and its activation
    relax, plan, steps, tangent_steps,  # of Chebyshev's method, see SemiIteration
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    HIGH: tl.constexpr, SPARE: tl.constexpr, REACH: tl.constexpr, SYMMETRIC: tl.constexpr,
    TANGENT: tl.constexpr, FROZEN: tl.constexpr, CURVED: tl.constexpr, TILTED: tl.constexpr,
):
    """Add kernels of image i of x with image j of y: sums over shifts."""
    i, j = tl.program_id(1), tl.program_id(0)
    if SYMMETRIC:  # noqa: SIM102  # the outer condition is decided at compile time
        if j < i:
            return
    value = tl.zeros([LANES], tl.float32)
    whole, rest = value, value
    for k in range(shifts):
        v, w, r = _pair(
            x, y, ux, uy, i, j, tl.load(moves + 2 * k), tl.load(moves + 2 * k + 1),
            sigma_a2, sigma_b2, sigma_c2, scale, tilt, straight, steep, relax, plan, steps, tangent_steps,
            CHANNELS, HEIGHT, WIDTH, ROWS, LANES, HIGH, SPARE, REACH, TANGENT, FROZEN, CURVED, TILTED,
        )
        weight = tl.load(weights + k)
        value, whole, rest = value + weight * v, whole + weight * w, rest + weight * r
    row = i.to(tl.int64)
    place = ck + row * ck_stride + j
    tl.store(place, tl.load(place) + tl.sum(value, axis=0))
    if TANGENT:
        place = ntk + row * ntk_stride + j
        tl.store(place, tl.load(place) + tl.sum(whole, axis=0))
    if FROZEN:
        place = frozen + row * frozen_stride + j
        tl.store(place, tl.load(place) + tl.sum(rest, axis=0))
# fmt: on
