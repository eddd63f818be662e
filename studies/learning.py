"""Learning predicted before training, held against exact kernels (theory section 15).

Settings are drawn by seed and none is left out. Further points show how the deviation falls with p, curves over n,
ridge and time, and where DEQ, twin and plain network differ.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.linalg
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import kernel_of, standard_error
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, QUANTITIES, SCHEDULES, panels, ticks_at, word

Settings = Mapping[str, Any]
_ACTIVATIONS = ("relu", "tanh", "silu", "gelu", "leaky_relu", "erf", "elu", "softplus", "sin", "hard_tanh")
_TESTS = 1500


# ---- settings ------------------------------------------------------------------------------------------------


def random_setting(seed: int, smallest: int = 200, largest: int = 600) -> dict[str, Any]:
    """Network, mixture, size and training rule of one random comparison; plain numbers only."""
    g = np.random.default_rng([15, seed])
    p = round(float(np.exp(g.uniform(np.log(smallest), np.log(largest)))))
    flow = bool(g.random() < 0.4)
    return {
        "seed": seed,
        "network": str(g.choice(["DEQ", "ENN"], p=[0.7, 0.3])),
        "activation": str(g.choice(_ACTIVATIONS)),
        "sigma_a2": round(float(g.uniform(0.05, 0.22)), 3),
        "centred": bool(g.random() < 0.5),
        "kernel": str(g.choice(["ck", "ntk", "ntk_frozen"], p=[0.3, 0.5, 0.2])),
        "classes": int(g.integers(2, 11)),
        "p": p,
        "n": min(round(p * float(g.uniform(0.5, 2.5))), 1000),
        "covariances": str(g.choice(["isotropic", "diagonal", "full"])),
        "balanced": bool(g.random() < 0.5),
        "separation": round(float(g.uniform(1.0, 4.0)), 3),
        "traces": round(float(g.uniform(0.0, 6.0)), 3),
        "rule": "times" if flow else "ridge",
        "value": float(f"{np.exp(g.uniform(*((-2.0, 3.0) if flow else (-7.0, 0.0)))):.4g}"),
        "draws": 8,
    }


def _network(settings: Settings) -> Any:
    phi = settings["activation"]
    network: Any = nsd.DEQ(phi, settings["sigma_a2"]) if settings["network"] == "DEQ" else nsd.ENN([phi, phi])
    return network.centred(1.0) if settings["centred"] else network


def _mixture(settings: Settings) -> nsd.GaussianMixture:
    """Random directions of the means, traces 1 + c_a/sqrt(p) scaled to a mean squared norm near one."""
    g = np.random.default_rng([16, settings["seed"]])
    classes, p = settings["classes"], settings["p"]
    means = g.standard_normal((classes, p)) * settings["separation"] / math.sqrt(p)
    traces = 1.0 + settings["traces"] * g.uniform(-0.5, 0.5, classes) / math.sqrt(p)
    shapes = [_shape(settings["covariances"], p, g) for _ in range(classes)]
    weights = None if settings["balanced"] else g.uniform(0.5, 2.0, classes)
    return nsd.GaussianMixture(means, [t * s for t, s in zip(traces, shapes, strict=True)], weights)


def _shape(kind: str, p: int, g: np.random.Generator) -> Any:
    """A covariance of trace p."""
    if kind == "isotropic":
        return 1.0
    if kind == "diagonal":
        variances = g.uniform(0.4, 1.6, p)
        return variances * (p / variances.sum())
    factor = g.standard_normal((p, 2 * p))
    matrix = factor @ factor.T
    return matrix * (p / np.trace(matrix))


# ---- measurements --------------------------------------------------------------------------------------------


def measure_learning(
    network: Any,
    mixture: nsd.GaussianMixture,
    n: int,
    kernel: str,
    rule: str,
    values: Any,
    draws: int,
    seed: int,
) -> dict[str, list[list[float]]]:
    """Accuracy and squared error of the exact kernel on sampled data: one row per draw, one column per value."""
    rows = [_one_draw(network, mixture, n, kernel, rule, values, [seed, k]) for k in range(draws)]
    return {"accuracy": [list(a) for a, _ in rows], "mse": [list(m) for _, m in rows]}


def _one_draw(
    network: Any, mixture: nsd.GaussianMixture, n: int, kernel: str, rule: str, values: Any, seed: list[int]
) -> tuple[list[float], list[float]]:
    g = np.random.default_rng(seed)
    (X, y), (new, labels) = mixture.sample(n, g), mixture.sample(_TESTS, g)
    targets = 2.0 * np.eye(mixture.classes) - 1.0
    eigenvalues, vectors = scipy.linalg.eigh(kernel_of(network, kernel, X), check_finite=False)
    cross = kernel_of(network, kernel, new, X) @ vectors
    inside, unit = vectors.T @ targets[y], float(eigenvalues.mean())
    # every class counts by its weight, whatever rounding made of the test counts
    share = (mixture.weights / np.bincount(labels, minlength=mixture.classes))[labels]
    accuracies, errors = [], []
    for value in values:
        shrink = 1.0 / (eigenvalues + value * unit) if rule == "ridge" else _shrink(eigenvalues, value)
        scores = cross @ (shrink[:, None] * inside)
        accuracies.append(float(share @ (scores.argmax(1) == labels)))
        errors.append(float(share @ ((scores - targets[labels]) ** 2).mean(1)))
    return accuracies, errors


def _shrink(eigenvalues: np.ndarray, time: float) -> np.ndarray:
    return -np.expm1(-time * eigenvalues) / np.maximum(eigenvalues, 1e-300)


def _quietly(*given: Any, **rule: Any) -> Any:
    """Predict without a warning where the data is not high-dimensional enough: the study shows what comes of it."""
    with warnings.catch_warnings(action="ignore", category=nsd.errors.ConcentrationWarning):
        return nsd.predict_learning(*given, **rule)


def _compare(settings: Settings) -> dict[str, Any]:
    network, mixture = _network(settings), _mixture(settings)
    n, kernel, rule, value = (settings[k] for k in ("n", "kernel", "rule", "value"))
    found = _quietly(network, mixture, n, kernel, **{rule: value})
    measured = measure_learning(network, mixture, n, kernel, rule, [value], settings["draws"], settings["seed"])
    summary = {name: _summary([row[0] for row in rows]) for name, rows in measured.items()}
    return {
        "predicted": {"accuracy": found.accuracy, "mse": found.mse, "strength": found.concentration.strength},
        "measured": summary,
    }


def _summary(values: list[float]) -> dict[str, float]:
    error = standard_error(values)
    return {"mean": float(np.mean(values)), "error": error, "deviation": error * math.sqrt(len(values))}


def _converge(settings: Settings) -> dict[str, Any]:
    """The same problem at one p: deviation of the mean over draws, and of single draws."""
    network = nsd.DEQ(settings["activation"], 0.2)
    mixture = nsd.GaussianMixture.two_class(settings["p"], mu=2.0, cov=4.0)
    n = 3 * settings["p"] // 2
    found = nsd.predict_learning(network, mixture, n, "ntk", ridge=0.1)
    rows = measure_learning(network, mixture, n, "ntk", "ridge", [0.1], settings["draws"], 17)
    single = np.array(rows["mse"])[:, 0] / found.mse - 1.0
    points = np.array(rows["accuracy"])[:, 0] - found.accuracy
    return {
        "mse_bias": float(single.mean()),
        "mse_bias_error": standard_error(single.tolist()),
        "mse_rms": float(np.sqrt((single**2).mean())),
        "accuracy_bias": float(points.mean()),
        "accuracy_rms": float(np.sqrt((points**2).mean())),
    }


def _curve(settings: Settings) -> dict[str, Any]:
    """Predicted lines and measured points over n, ridge or time, of two DEQs."""
    mixture = nsd.GaussianMixture.two_class(settings["p"], mu=1.5, cov=5.0)
    axis, values, n = settings["axis"], settings["values"], settings["n"]
    out: dict[str, Any] = {}
    for name in ("relu", "tanh"):
        network = nsd.DEQ(name, 0.2).centred(1.0)
        line = np.geomspace(min(values), max(values), 60)
        options = {"ridge": 0.05} if axis == "n" else {axis: line}
        sizes: Any = np.unique(line.round()) if axis == "n" else n
        curve = nsd.learning_curve(network, mixture, sizes, "ntk", **options)
        measured = _along(network, mixture, settings)
        out[name] = {
            "points": curve.points.tolist(),
            **{kind: getattr(curve, kind)[0].tolist() for kind in ("accuracy", "mse")},
            "measured": {
                kind: [_summary(list(column)) for column in zip(*rows, strict=True)] for kind, rows in measured.items()
            },
        }
    return out


def _along(network: Any, mixture: nsd.GaussianMixture, settings: Settings) -> dict[str, list[list[float]]]:
    """Measurements along the axis, one row per draw; ridges and times share their data."""
    axis, values, n, draws = (settings[key] for key in ("axis", "values", "n", "draws"))
    if axis != "n":
        return measure_learning(network, mixture, n, "ntk", axis, values, draws, 1)
    parts = [measure_learning(network, mixture, v, "ntk", "ridge", [0.05], draws, v) for v in values]
    return {kind: np.concatenate([part[kind] for part in parts], axis=1).tolist() for kind in ("accuracy", "mse")}


def _decay(settings: Settings) -> dict[str, Any]:
    """A spectrum that decays: predicted with products x_i x_j as features, and measured with exact kernels."""
    network, mixture, n = nsd.DEQ(settings["activation"], 0.2), _decaying(settings), settings["n"]
    found = _quietly(network, mixture, n, "ntk", ridge=0.01)
    measured = measure_learning(network, mixture, n, "ntk", "ridge", [0.01], settings["draws"], 19)
    summary = _summary([row[0] for row in measured["accuracy"]])
    return {"products": found.accuracy, "strength": found.concentration.strength, "measured": summary}


def _decaying(settings: Settings) -> nsd.GaussianMixture:
    """Three classes with the eigenvalues i^(-s), exp(-s i) + 0.1, or s isolated ones; the second class has its own."""
    g, p, s = np.random.default_rng(20), settings["p"], settings["rate"]
    at = np.arange(1, p + 1.0)
    shapes = {"power": at**-s, "exponential": np.exp(-s * at) + 0.1, "spikes": np.where(at <= s, 40.0 / at, 1.0)}
    spectrum = shapes[settings["spectrum"]]
    spectrum = spectrum * (p / spectrum.sum())
    means = g.standard_normal((3, p)) * 2.0 / math.sqrt(p) * np.sqrt(spectrum)
    return nsd.GaussianMixture(means, [spectrum, 0.7 * spectrum + 0.3 * g.permutation(spectrum), 1.1 * spectrum])


def _map(settings: Settings) -> dict[str, Any]:
    """Predicted accuracies over distance of the means and difference of the traces, data of mean squared norm one."""
    deq = nsd.DEQ("relu", 0.2)
    twin = nsd.match(deq, 1.0, kernel="ntk")
    networks = {"DEQ": twin.deq, "twin": twin, "plain": twin.plain, "tanh": nsd.DEQ("tanh", 0.2)}
    means, traces = (np.linspace(0.0, top, settings["size"]) for top in (4.0, 8.0))
    grids: dict[str, list[list[float]]] = {name: [] for name in networks}
    for trace in traces:
        mixtures = [_unit_two_class(settings["p"], mean, trace) for mean in means]
        for name, network in networks.items():
            row = [nsd.predict_learning(network, m, settings["n"], "ntk", ridge=0.05).accuracy for m in mixtures]
            grids[name].append(row)
    return {"means": means.tolist(), "traces": traces.tolist(), "accuracy": grids}


def _unit_two_class(p: int, mu: float, cov: float) -> nsd.GaussianMixture:
    mixture = nsd.GaussianMixture.two_class(p, mu=mu, cov=cov)
    square = mixture.tau0**2
    return nsd.GaussianMixture(mixture.means / mixture.tau0, [1.0 / square, (1.0 + cov / math.sqrt(p)) / square])


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup) -> list[Point]:
    """Ten settings and small sizes if quick; otherwise sixteen, and the rest."""
    quick = setup.quick
    settings = [random_setting(k, *((100, 160) if quick else (200, 600))) for k in range(10 if quick else 16)]
    found = [_point(f"setting_{s['seed']:02d}", {**s, **({"draws": 2} if quick else {})}, _compare) for s in settings]
    p, n, draws = (100, 150, 2) if quick else (400, 600, 3)
    axes = {
        "n": [n // 4, n // 2, n, 2 * n],
        "ridge": [1e-3, 1e-2, 1e-1, 1.0, 10.0],
        "times": [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    }
    found += [
        _point(f"curve_{axis}", {"axis": axis, "values": v, "p": p, "n": n, "draws": draws}, _curve)
        for axis, v in axes.items()
    ]
    shapes = [("power", 0.5), ("power", 0.9), ("power", 1.2), ("power", 1.5), ("exponential", 0.03), ("spikes", 5)]
    for shape, rate in shapes[: 1 if quick else None]:
        decay = {"activation": "relu" if shape == "power" else "silu", "spectrum": shape, "rate": rate, "p": p, "n": n}
        found.append(_point(f"decay_{shape}_{rate}", {**decay, "draws": 2 if quick else 8}, _decay))
    found.append(_point("map", {"p": 400, "n": 600, "size": 4 if quick else 13}, _map))
    sizes = (50, 100, 200) if quick else (100, 200, 400, 800)
    for name in ("relu", "tanh"):
        found += [
            _point(
                f"converge_{name}_{p}",
                {"activation": name, "p": p, "draws": 4 if quick else max(4, min(16, 3200 // p))},
                _converge,
            )
            for p in sizes
        ]
    return found


def _point(key: str, settings: dict[str, Any], function: Any) -> Point:
    return Point(key, settings, lambda: function(settings))


# ---- figures -----

_COLOURS = (COLOURS["DEQ"], COLOURS["twin"])


def draw(document: Document) -> dict[str, Figure]:
    """``"settings"``, ``"convergence"``, ``"curves"`` and ``"map"``, as far as the document holds their points."""
    points = document["points"]
    groups = {
        "settings": ("setting_", _settings),
        "convergence": ("converge_", _convergence),
        "curves": ("curve_", _curves),
        "map": ("map", _draw_map),
    }
    drawn = {}
    for name, (prefix, function) in groups.items():
        chosen = {key: point for key, point in points.items() if key.startswith(prefix)}
        if chosen:
            drawn[name] = function(chosen)
    return drawn


def _settings(points: Document) -> Figure:
    figure, axes = panels((9.0, 4.4), f"{len(points)} settings drawn by seed, none left out", 1, 2)
    numbers = [point["numbers"] for point in points.values()]
    for ax, (kind, (title, factor)) in zip(axes, QUANTITIES.items(), strict=True):
        x = factor * np.array([v["predicted"][kind] for v in numbers])
        y = factor * np.array([v["measured"][kind]["mean"] for v in numbers])
        spread = factor * np.array([v["measured"][kind]["error"] for v in numbers])
        ax.errorbar(x, y, yerr=spread, fmt="o", markersize=3.5, linewidth=1, color=_COLOURS[0])
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, ":", color="0.5")
        ax.set(title=title, xlabel="predicted before training", ylabel="measured with the exact kernel")
    return figure


def _convergence(points: Document) -> Figure:
    figure, ax = panels((6.4, 4.2), "How far measured errors are from the prediction")
    for name, colour in zip(("relu", "tanh"), _COLOURS, strict=True):
        rows = [v for key, v in points.items() if key.startswith(f"converge_{name}")]
        if len(rows) < 2:  # a run that was stopped
            continue
        p = np.array([row["settings"]["p"] for row in rows], dtype=float)
        names = ("mse_rms", "mse_bias", "mse_bias_error")
        rms, bias, error = (np.array([row["numbers"][name] for row in rows]) for name in names)
        slope = np.polyfit(np.log(p), np.log(rms), 1)[0]
        ax.plot(p, rms, "o-", color=colour, label=f"{word(name)}: one data set, slope {slope:.2f}")
        ax.errorbar(p, np.abs(bias), yerr=error, fmt="s--", color=colour, alpha=0.6, label=f"{word(name)}: the mean")
    ax.set(xscale="log", yscale="log", xlabel="p, with n = 1.5 p", ylabel="relative deviation of the error")
    ax.legend(fontsize="small")
    return figure


def _curves(points: Document) -> Figure:
    says = "Lines: predicted before training. Points: exact kernels on sampled data"
    figure, axes = panels((3.8 * len(points), 6.2), says, 2, len(points), squeeze=False)
    for column, point in zip(axes.T, points.values(), strict=True):
        settings, numbers = point["settings"], point["numbers"]
        for ax, (kind, (label, factor)) in zip(column, QUANTITIES.items(), strict=True):
            for (name, curve), colour in zip(numbers.items(), _COLOURS, strict=True):
                _line(ax, settings["values"], curve, kind, factor, colour, word(name))
            ax.set(xscale="log", ylabel=label)
            if settings["axis"] == "n":
                ticks_at(ax, settings["values"])
        column[1].set_xlabel(SCHEDULES[settings["axis"]])
    axes[0, 0].legend(fontsize="small")
    return figure


def _line(ax: Axes, at: Any, curve: Document, kind: str, factor: float, colour: str, label: str) -> None:
    ax.plot(curve["points"], factor * np.array(curve[kind]), color=colour, label=label)
    measured = curve["measured"][kind]
    means, errors = (factor * np.array([m[name] for m in measured]) for name in ("mean", "error"))
    ax.errorbar(at, means, yerr=errors, fmt="o", markersize=4, color=colour)


def _draw_map(points: Document) -> Figure:
    numbers = points["map"]["numbers"]
    grids = {name: 100.0 * np.array(grid) for name, grid in numbers["accuracy"].items()}
    shown = {
        "ReLU DEQ: accuracy (%)": grids["DEQ"],
        "DEQ minus twin (points)": grids["DEQ"] - grids["twin"],
        "DEQ minus plain network (points)": grids["DEQ"] - grids["plain"],
        "ReLU DEQ minus tanh DEQ (points)": grids["DEQ"] - grids["tanh"],
    }
    figure, axes = panels((14.0, 3.9), "Where the networks differ, before training", 1, 4)
    for ax, (title, grid) in zip(axes, shown.items(), strict=True):
        mesh = ax.pcolormesh(numbers["means"], numbers["traces"], grid, shading="nearest", cmap="viridis")
        figure.colorbar(mesh, ax=ax)
        ax.set_title(title, fontsize="small")
        ax.set_xlabel("distance of the means, ||mu||")
    axes[0].set_ylabel("difference of the traces, c/sqrt(p)")
    return figure


STUDY = Study(
    shows="learning predicted before training, against exact kernels",
    quick="30 s",
    full="10 min",
    points=points,
    draw=draw,
)
