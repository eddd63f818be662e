"""One layer is enough: bounds by kinds of units, beside the largest error that pairs of inputs show.

Activations, both kernels, three sigma_a2, two ranges of norms, one to four kinds. The pairs have norms from the range
and directions from the sphere of 2 to 1,000 dimensions; a search goes on from the worst of them, and from parallel and
opposite inputs. What it shows can come near the bound, never above it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

import notsodeep as nsd

from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, MARKERS, by_setting, panels, shared_legend, word

SMOOTH = ("tanh", "erf", "arctan", "sin", "cos", "sigmoid", "softplus", "silu", "gelu", "mish")
KINKED = ("elu", "selu", "hard_tanh", "hard_swish")
HOMOGENEOUS = ("relu", "leaky_relu")
SHARES = (0.4, 0.8, 0.95)
"""Of the limit on sigma_a2."""
RANGES = ((0.5, 1.5), (0.1, 3.0))
KERNELS: tuple[str, ...] = ("ck", "ntk")
DIMENSIONS = (2, 3, 10, 100, 1000)
PAIRS = 100_000
_STEPS = (0.1, 0.02, 0.004)
"""Of the steps of the search, as shares of the range of log norms and of angles."""
_KEPT, _TRIED = 8, 8
_FEW = 100
"""Pairs, of which a search has 72 at most."""

Array = NDArray[np.float64]


def points(setup: Setup) -> list[Point]:
    """Every activation and kernel, each with all its sigma_a2, norms and kinds."""
    names = ("tanh", "silu", "relu") if setup.quick else (*SMOOTH, *KINKED, *HOMOGENEOUS)
    shares, ranges, most = ((0.8,), RANGES[:1], 3) if setup.quick else (SHARES, RANGES, 4)
    pairs = PAIRS // 10 if setup.quick else PAIRS
    return [
        _point(name, kernel, share, norms, 1 if name in HOMOGENEOUS else most, pairs)
        for name in names
        for kernel in KERNELS
        for share in shares
        for norms in (RANGES[1:] if name in HOMOGENEOUS else ranges)  # one kind for all norms
    ]


def _point(name: str, kernel: str, share: float, norms: tuple[float, float], most: int, pairs: int) -> Point:
    sigma_a2 = round(share * nsd.DEQ(name, 0.01).limit, 6)
    deq = nsd.DEQ(name, sigma_a2, 1.0 - min(sigma_a2, 0.5))
    settings = {
        "activation": name,
        "kernel": kernel,
        "share": share,
        "sigma_a2": sigma_a2,
        "sigma_b2": deq.variances[1],
        "norms": None if deq.homogeneous else norms,
        "kinds": most,
        "pairs": pairs,
        "searched": len(_STEPS),
    }
    key = f"{name}/{kernel}/{share}/{'all' if deq.homogeneous else '{}-{}'.format(*norms)}"
    return Point(key, settings, lambda: {"rows": _rows(deq, kernel, norms, most, random_pairs(pairs, norms))})


def _rows(deq: nsd.DEQ, kernel: str, norms: tuple[float, float], most: int, pairs: Array) -> list[dict[str, Any]]:
    exact = nsd.kernel_function(deq, kernel, norms)
    rows = []
    for kinds in range(1, most + 1):
        started = time.perf_counter()
        twin = nsd.match_one_layer(deq, kernel, norms, tol=1e-6 if deq.homogeneous else 1e-4, kinds=kinds)
        seconds = round(time.perf_counter() - started, 3)
        certificate: Any = twin.certificate
        errors = _errors(exact, twin, pairs)
        rows.append(
            {
                "kinds": kinds,
                "bound": twin.bound,
                "random": float(errors.max()),
                "seen": max(float(errors.max()), _searched(exact, twin, norms, pairs[:, np.argsort(errors)])),
                "proven": not certificate.assumes,
                "trains": twin.trains,
                "seconds": seconds,
            }
        )
    return rows


def _errors(exact: Any, twin: nsd.Twin, pairs: Array) -> Array:
    """Return the twin's error for each pair, relative to the diagonal of the DEQ's kernel.

    A pair is two rows in the plane, with norms s and t and an angle. A few pairs are the diagonal of one matrix; of
    many, those with the same s share one call.
    """
    s, t, angle = pairs
    X, Y = np.stack([s, 0.0 * s], 1), t[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    size = np.sqrt(exact.diagonal(X) * exact.diagonal(Y))
    if len(s) <= _FEW:
        return np.abs(np.diagonal(exact(X, Y) - twin.kernel_matrix(X, Y))) / size
    gaps = np.empty(len(s))
    for norm in np.unique(s):
        here = s == norm
        first = X[here][:1]
        gaps[here] = (exact(first, Y[here]) - twin.kernel_matrix(first, Y[here]))[0]
    return np.abs(gaps) / size


def _searched(exact: Any, twin: nsd.Twin, norms: tuple[float, float], pairs: Array) -> float:
    """Return the largest error that a search finds, from the last pairs and from parallel and opposite ones."""
    low, high = np.log(norms)
    s, angle = (v.ravel() for v in np.meshgrid(np.geomspace(*norms, 17), [0.0, np.pi]))
    found, random = np.concatenate([pairs[:, -2 * _KEPT :], np.stack([s, s, angle])], axis=1), np.random.default_rng(0)
    for width in _STEPS:
        near = found[:, np.argsort(_errors(exact, twin, found))[-_KEPT:], None]
        moves = width * np.array([high - low, high - low, np.pi])[:, None, None]
        moves = moves * random.standard_normal((3, _KEPT, _TRIED))
        tried = np.concatenate([near[:2] * np.exp(moves[:2]), near[2:] + moves[2:]])
        tried[1, :, : _TRIED // 2] = tried[0, :, : _TRIED // 2]  # equal norms, where the bound is attained
        tried[:2], tried[2] = np.clip(tried[:2], *norms), np.clip(tried[2], 0.0, np.pi)
        found = np.concatenate([near, tried], axis=2).reshape(3, -1)
    return float(_errors(exact, twin, found).max())


def random_pairs(count: int, norms: tuple[float, float], seed: int = 0) -> Array:
    """Return norms and angles of pairs, (3, count), as many of each dimension.

    The norms are drawn from 32 in geometric progression over the range. The cosine of two uniform directions is the
    first coordinate of one of them.
    """
    random = np.random.default_rng(seed)
    s, t = random.choice(np.geomspace(*norms, 32), (2, count))
    dimension = np.sort(np.resize(DIMENSIONS, count))
    first, others = random.standard_normal(count), random.chisquare(dimension - 1.0)
    return np.stack([s, t, np.arctan2(np.sqrt(others), first)])


# ---- figures -----

_SHARE = 0.8  # of the limit, for which the bounds are drawn; the tables hold the others


def draw(document: Document) -> dict[str, Figure]:
    """By kernel and range of norms the bounds against the kinds of units; all bounds beside what pairs show."""
    points = list(document["points"].values())
    usual = [point for point in points if point["settings"]["share"] == _SHARE and point["settings"]["norms"]]
    ranges = by_setting(usual, "norms").items()
    return {"bounds_{}_{}".format(*norms): _bounds(chosen, norms) for norms, chosen in ranges} | {"seen": _seen(points)}


def _bounds(points: Sequence[Document], norms: Sequence[float]) -> Figure:
    says = "Norms {:g} to {:g}: every kind of units multiplies the accuracy, kinks aside".format(*norms)
    figure, axes = panels((9.0, 5.4), says, 1, 2, sharey=True)
    names = list(by_setting(points, "activation"))
    for ax, kernel in zip(axes, ("ck", "ntk"), strict=True):
        for point in by_setting(points, "kernel").get(kernel, []):
            name, rows = point["settings"]["activation"], point["numbers"]["rows"]
            i = names.index(name)
            look = {"marker": MARKERS[i % len(MARKERS)], "color": f"C{i % 10}"}
            ax.semilogy([r["kinds"] for r in rows], [r["bound"] for r in rows], label=word(name), **look)
        ax.set(title=word(kernel), xlabel="kinds of units")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("bound on the error, relative to the diagonal")
    shared_legend(figure, axes[0], ncols=5)
    return figure


def _seen(points: Sequence[Document]) -> Figure:
    figure, ax = panels((6.4, 5.4), "No pair of inputs is further off than the bound says")
    for (kernel, marker), colour in zip((("ck", "o"), ("ntk", "s")), ("DEQ", "twin"), strict=True):
        rows = [r for p in points if p["settings"]["kernel"] == kernel for r in p["numbers"]["rows"]]
        look = {"color": COLOURS[colour], "markerfacecolor": "none", "label": word(kernel)}
        ax.loglog([max(r["seen"], 1e-16) for r in rows], [r["bound"] for r in rows], marker, **look)
    ends = ax.get_xlim()
    ax.loglog(ends, ends, color="0.5", linewidth=1.0, label="equal")
    ax.set(xlabel="largest error that random pairs of inputs show", ylabel="bound on the error")
    shared_legend(figure, ax)
    return figure


STUDY = Study(
    shows="one layer: bounds beside errors of random pairs",
    quick="40 s",
    full="3 h",
    points=points,
    draw=draw,
)
