"""What the sections of the explorer show: numbers, with a sentence that says what they mean.

A section is a document of charts, tables or code and one ``message``. The page draws what it finds there, so that
nothing has to be computed in a browser.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import notsodeep as nsd

from .._caches import cached
from .._words import Kernel
from ..equivalents import relative_spectral_error
from ..errors import NotSoDeepError, NotSoDeepWarning
from ..spectra import SpectralLaw
from .controls import Settings, network_of

Document = dict[str, Any]
_ANGLES = np.linspace(0.0, 180.0, 46)
_FLOOR = 1e-16  # of errors on a logarithmic axis
_NETWORK = ("activation", "feedback", "kernel", "readout")
_MIXTURE = ("scale", "classes", "mean", "spread", "p")
_KERNEL_WORDS = {
    "ck": "conjugate kernel",
    "ntk": "tangent kernel",
    "ntk_frozen": "tangent kernel, input weights frozen",
}


@dataclass(frozen=True)
class Section:
    """One section of the page; ``slow`` ones need a twin, which may take a minute, ``wide`` ones a row of the page."""

    name: str
    title: str
    needs: tuple[str, ...]
    build: Callable[[Settings], Document]
    slow: bool = False
    wide: bool = False


# ---- documents -------------------------------------------------------------------------------------------


def _plain(values: Any) -> list[float | None]:
    """Return numbers with five digits, more than a figure shows; None where there is none."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, dtype=float).ravel()]


def _curve(name: str, role: str, y: Any, **options: Any) -> Document:
    return {"name": name, "role": role, "y": _plain(y), **options}


def _chart(title: str, labels: tuple[str, str], x: Any, curves: Sequence[Document], **options: Any) -> Document:
    """Return a chart of curves over the same points; ``labels`` are those of the axes."""
    return {"title": title, "xLabel": labels[0], "yLabel": labels[1], "x": _plain(x), "curves": list(curves), **options}


def _short(value: float) -> str:
    """Return a number as a reader wants it in a sentence."""
    if value >= 100.0:
        return f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.2g}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if exponent else ""
    return f"{mantissa}·10{raised}" if exponent else mantissa


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number != 1 else f"one {what.removesuffix('s')}"


# ---- the twin --------------------------------------------------------------------------------------------


def is_quick(settings: Settings) -> bool:
    """Tell whether the twin takes seconds: units of a kinked function that sees the scale take a minute."""
    deq = network_of(settings)
    return deq.homogeneous or not deq.activation.kinks


@cached(32)
def _twin(deq: nsd.DEQ, kernel: Kernel, scale: float) -> nsd.Twin:
    norms = None if deq.homogeneous else (0.5 * scale, 1.5 * scale)
    return nsd.match_one_layer(deq, kernel, norms)


def twin_of(settings: Settings) -> nsd.Twin:
    """Return the one-layer twin of the DEQ, for norms from a half to one and a half times the typical one."""
    return _twin(network_of(settings), settings["kernel"], settings["scale"])


def _on_circle(settings: Settings, role: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel of one network against the angle, and sqrt(k(x, x) k(y, y))."""
    scale, turn = settings["scale"], np.radians(_ANGLES)
    first = np.array([[scale, 0.0]])
    others = settings["ratio"] * scale * np.column_stack([np.cos(turn), np.sin(turn)])
    network = nsd.ENN([settings["activation"]]) if role == "plain" else network_of(settings)

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if role == "twin":
            return twin_of(settings).kernel_matrix(x, y)
        return nsd.kernels_of(network, x, y, kernels=(settings["kernel"],))[settings["kernel"]]

    size = kernel(first, first)[0, 0] * kernel(others[:1], others[:1])[0, 0]
    return kernel(first, others)[0], np.sqrt(size)


def kernel_section(settings: Settings) -> Document:
    """Show the kernel of DEQ, twin and plain layer against the angle, and their errors beside the bound."""
    truth, size = _on_circle(settings, "deq")
    twin, (plain, _) = twin_of(settings), _on_circle(settings, "plain")
    factor = float(truth @ plain / (plain @ plain))
    others = {
        "twin": ("one-layer twin", _on_circle(settings, "twin")[0]),
        "plain": ("plain layer", plain),
        "scaled": (f"{factor:.3g} · plain layer", factor * plain),
    }
    errors = {role: np.abs(y - truth) / size for role, (_, y) in others.items()}
    shown = {"plain": others["plain"], "scaled": others["scaled"], "deq": ("DEQ", truth), "twin": others["twin"]}
    curves = [_curve(name, role, y) for role, (name, y) in shown.items()]  # the last one lies on top
    distances = [_curve(name, role, np.maximum(errors[role], _FLOOR)) for role, (name, _) in others.items()]
    angle, size_word = "angle between the inputs", "error / √(k(x,x) k(y,y))"
    degrees: Document = {"xUnit": "°", "xRange": [0, 180]}
    bound = {"y": float(f"{twin.bound:.3g}"), "name": f"bound {_short(twin.bound or 0.0)}", "role": "twin"}
    worst = {role: _short(float(error.max())) for role, error in errors.items()}
    proven = "" if twin.certificate.assumes else ", proven"
    return {
        "message": (
            f"One hidden layer of {_counted(twin.kinds or 1, 'kinds')} of units has the DEQ's "
            f"{_KERNEL_WORDS[settings['kernel']]}: here it is off by at most {worst['twin']} of the kernel's size, and "
            f"by less than {_short(twin.bound or 0.0)} at every angle{proven}. A plain layer with the same activation "
            f"is off by {worst['plain']}, and by {worst['scaled']} with its best factor."
        ),
        "charts": [
            _chart("The kernel against the angle", (angle, "kernel"), _ANGLES, curves, **degrees),
            _chart("Distance from the DEQ", (angle, size_word), _ANGLES, distances, yLog=True, levels=[bound])
            | degrees,
        ],
    }


def layer_section(settings: Settings) -> Document:
    """Draw the units of the twin at the typical norm, with their shares of the layer."""
    twin, scale = twin_of(settings), settings["scale"]
    x = np.linspace(-3.2, 3.2, 65)
    before = torch.tensor(x * scale)[:, None].expand(-1, 96).contiguous()  # all units see the same pre-activation
    inputs = torch.tensor([[scale, 0.0]], dtype=torch.float64).expand(len(x), 2)
    values = twin.network.activations[0].units(before, inputs).numpy()
    kinds, counts = np.unique(values.round(9), axis=1, return_counts=True)
    shown = np.argsort(-counts, kind="stable")[:5]
    share = [f"{100 * counts[j] / counts.sum():.0f} %" for j in shown]
    roles = ("twin", "other", "scaled", "plain", "deq")
    curves = [_curve(f"{s} of the units", role, kinds[:, j]) for j, s, role in zip(shown, share, roles, strict=False)]
    trained = "the readout" if twin.trains == "readout" else "all weights"
    span = "every norm" if twin.norms is None else "norms {:g} to {:g}".format(*twin.norms)
    more = (
        f" The figure shows the {len(shown)} most frequent ones of {len(counts)}." if len(counts) > len(shown) else ""
    )
    return {
        "message": (
            f"This layer stands for the DEQ at {span}. Its units see |x| as well as w·x; training {trained} of it is "
            f"training the DEQ.{more}"
        ),
        "charts": [_chart(f"Units at |x| = {scale:g}", ("u = w·x / |x|", "value of a unit"), x, curves)],
    }


# ---- the mixture -----------------------------------------------------------------------------------------


def mixture_of(settings: Settings) -> nsd.GaussianMixture:
    """Return balanced classes with means of equal norm on different axes and covariances v_a I."""
    scale, classes, p = settings["scale"], settings["classes"], settings["p"]
    variances = [scale**2 * (1.0 + settings["spread"] * a / math.sqrt(p)) for a in range(classes)]
    return nsd.GaussianMixture(scale * settings["mean"] * np.eye(classes, p), variances)


_MEANINGS = {
    "c1": ("c₁, inner products", "The slope of the kernel: it carries the class means and the width of the bulk."),
    "c2": ("c₂, norms", "What the kernel sees of the traces of the covariances; zero for odd activations."),
    "c3": ("c₃, squared inner products", "What it sees of the shapes of the covariances; zero for odd activations."),
    "diagonal": ("diagonal, a point with itself", "What exceeds c₁ τ₀² is a ridge that the network brings along."),
}


def numbers_section(settings: Settings) -> Document:
    """Return the four numbers to which the kernel reduces in high dimension, for the DEQ and a plain layer."""
    mixture, kernel = mixture_of(settings), settings["kernel"]
    tau0 = float(np.sqrt(mixture.weights @ [c.trace() / mixture.p for c in mixture.covariances]))
    deq = nsd.coefficients(network_of(settings), tau0, kernel)
    plain = nsd.coefficients(nsd.ENN([settings["activation"]]).centred(tau0), tau0, kernel)
    rows = [
        [word, f"{getattr(deq, name):.6f}", f"{getattr(plain, name):.6f}", meaning]
        for name, (word, meaning) in _MEANINGS.items()
    ]
    shared = np.allclose(deq.four, plain.four, rtol=1e-6)
    return {
        "message": (
            "On Gaussian mixtures of high dimension the centred network enters through four numbers alone. Networks "
            f"that share them have the same eigenvalues and learn the same; the plain layer "
            f"{'shares them here' if shared else 'has others'}."
        ),
        "table": {"head": ["number", "DEQ", "plain layer", "what it does"], "rows": rows},
    }


@cached(32)
def _eigenvalues(network: Any, settings: tuple[tuple[str, Any], ...]) -> dict[str, np.ndarray]:
    """Return the eigenvalues of all kernels of one sample."""
    given = dict(settings)
    X, _ = mixture_of(given).sample(given["n"], seed=0)
    return {name: np.linalg.eigvalsh(matrix) for name, matrix in nsd.kernels_of(network, X).items()}


def spectrum_section(settings: Settings) -> Document:
    """Hold the predicted density of the eigenvalues beside those of one sample."""
    kernel = settings["kernel"]
    law = nsd.spectral_law(network_of(settings), mixture_of(settings), n=settings["n"], kernel=kernel)
    data = tuple((name, settings[name]) for name in (*_MIXTURE, "n"))
    seen = _eigenvalues(law.coefficients.network, data)[kernel]
    top, edge = law.support[-1][1], 1.02 * max(law.support[-1][1], float(seen[-1]))
    inside = seen[seen < top + 0.02 * (edge - law.support[0][0])]
    heights, edges = np.histogram(inside, bins=32, range=(float(min(seen[0], law.support[0][0])), float(inside[-1])))
    density = heights / len(seen) / np.diff(edges)
    x, y = _density(law)
    spikes = [spike.value for spike in law.spikes]
    marks = [{"x": float(f"{v:.5g}"), "name": f"{v:.3g}", "role": "deq"} for v in spikes]
    isolated = "no eigenvalue apart from it, so that the kernel does not tell the classes without labels"
    if spikes:
        isolated = f"{_counted(len(spikes), 'eigenvalues')} apart from it, which the classes bring"
    atoms = "".join(f" A share of {100 * a.mass:.0f} % sits at {a.value:.3g}." for a in law.atoms)
    return {
        "message": (
            f"Without sampling, the law predicts a bulk from {law.support[0][0]:.3g} to {top:.3g} and {isolated}."
            f"{atoms} One sample of {settings['n']} points has its largest eigenvalue at {seen[-1]:.3g}."
        ),
        "charts": [
            _chart("Law and one sample", ("eigenvalue", "density"), x, [_curve("law", "deq", y, area=True)])
            | {"bars": {"name": "one sample", "role": "plain", "edges": _plain(edges), "heights": _plain(density)}}
            | {"dots": {"role": "twin", "name": "sampled, apart", "x": _plain(seen[len(inside) :])}}
            | {
                "marks": marks,
                "xRange": [0.0, edge],
                "yRange": [0.0, 1.1 * float(max(np.nanmax(y), density[1:].max()))],
            }
        ],
    }


def _density(law: SpectralLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of all bulks, dense at their edges, with a gap between them."""
    steps = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, 56))
    x = [low + (high - low) * steps for low, high in law.support]
    return np.hstack([[*xs, xs[-1]] for xs in x]), np.hstack([[*law.density(xs), np.nan] for xs in x])


_AGAINST = {  # how a title, a sentence and the axis name what the accuracy runs over
    "n": ("samples", "with {} samples", "samples n"),
    "ridge": ("ridge", "at a ridge of {}", "ridge, relative to the mean diagonal"),
    "times": ("training time", "at time {}", "training time, in units of 1 / mean diagonal"),
}


def learning_section(settings: Settings) -> Document:
    """Predict the test accuracy of DEQ and plain layer against samples, ridge or time."""
    axis, n = settings["against"], settings["n"]
    name, place, axis_label = _AGAINST[axis]
    points = {
        "n": np.unique([max(10, int(n * 2.0**k)) for k in range(-3, 4)]),
        "ridge": np.geomspace(1e-4, 10.0, 16),
        "times": np.geomspace(1e-2, 100.0, 16),
    }[axis]
    given = {"n": n, "ridge": settings["ridge"]} | {axis: points}
    if axis == "times":
        del given["ridge"]
    networks: dict[str, Any] = {"DEQ": network_of(settings), "plain layer": nsd.ENN([settings["activation"]])}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", NotSoDeepWarning)
        curve = nsd.learning_curve(networks, mixture_of(settings), kernel=settings["kernel"], **given)
    x, (deq, plain) = curve.points, curve.accuracy
    best = int(deq.argmax())
    careful = f" Careful: {warned[0].message}" if warned else ""
    marks = [] if axis == "times" else [{"x": settings[axis], "name": "your setting", "role": "deq"}]
    gap = 100 * float(np.abs(deq - plain).max())
    other = f"differs by up to {gap:.2g} percentage points" if gap > 0.01 else "is expected to do the same here"
    curves = [_curve("DEQ and its twin", "deq", 100 * deq), _curve("plain layer", "plain", 100 * plain)]
    title, labels = f"Predicted accuracy against {name}", (axis_label, "test accuracy")
    return {
        "message": (
            f"Before anything is trained, the DEQ's accuracy is expected to reach {100 * deq[best]:.1f} % "
            f"{place.format(_short(x[best]))}. Its twin has the same kernel, hence the same curve; the plain "
            f"layer {other}.{careful}"
        ),
        "charts": [_chart(title, labels, x, curves, xLog=True, yUnit=" %", marks=marks)],
    }


# ---- finite width ----------------------------------------------------------------------------------------


def width_section(settings: Settings) -> Document:
    """Measure how far the kernels of random networks are from the exact one."""
    deq, kernel = network_of(settings), settings["kernel"]
    rows = np.random.default_rng(0).normal(size=(24, 24)) * settings["scale"] / math.sqrt(24)
    exact = nsd.kernels_of(deq, rows, kernels=(kernel,))[kernel]
    widths, draws = (32, 64, 128, 256, 512), range(4)
    drawn: Callable[..., Any] = nsd.finite_ck
    if kernel != "ck":
        drawn = functools.partial(nsd.finite_ntk, kernel=kernel)
    errors = np.array([[relative_spectral_error(exact, drawn(deq, rows, m, seed=s)) for s in draws] for m in widths])
    mean = errors.mean(1)
    guide = mean[0] * np.sqrt(widths[0] / np.array(widths))
    curves = [_curve("random DEQs", "deq", mean, dots=True), _curve("1 / √m", "plain", guide)]
    return {
        "message": (
            f"A random DEQ of width {widths[-1]} has a kernel {100 * mean[-1]:.2g} % from the limit (mean of "
            f"{len(draws)} draws on {len(rows)} random points); four times the width halves the distance."
        ),
        "charts": [
            _chart("Distance from the limit", ("width m", "relative distance"), widths, curves, xLog=True, yLog=True)
        ],
    }


# ---- code ------------------------------------------------------------------------------------------------


def code_section(settings: Settings) -> Document:
    """Return the lines of Python that compute what the page shows."""
    deq, kernel, scale = network_of(settings), settings["kernel"], settings["scale"]
    more = "" if deq.readout == "activation" else f', readout="{deq.readout}"'
    norms = "" if deq.homogeneous else f", norms=({0.5 * scale:g}, {1.5 * scale:g})"
    lines = [
        "import numpy as np",
        "import notsodeep as nsd",
        "",
        f'deq = nsd.DEQ("{settings["activation"]}", sigma_a2={deq.sigma_a2:g}, sigma_b2={deq.sigma_b2:g}{more})',
        f'twin = nsd.match_one_layer(deq, kernel="{kernel}"{norms})',
        "print(twin)",
        "",
        f"p, scale, classes = {settings['p']}, {scale:g}, {settings['classes']}",
        f"variances = [scale**2 * (1 + {settings['spread']:g} * a / p**0.5) for a in range(classes)]",
        f"mixture = nsd.GaussianMixture(scale * {settings['mean']:g} * np.eye(classes, p), variances)",
        f'print(nsd.spectral_law(deq, mixture, n={settings["n"]}, kernel="{kernel}").summary())',
        f'print(nsd.predict_learning(deq, mixture, n={settings["n"]}, kernel="{kernel}", ridge={settings["ridge"]:g}))',
    ]
    return {"message": "These lines compute what you see, without the limits of a page.", "code": "\n".join(lines)}


SECTIONS = (
    Section(
        *("kernel", "One layer has the DEQ's kernel", (*_NETWORK, "scale", "ratio"), kernel_section),
        slow=True,
        wide=True,
    ),
    Section("layer", "The units of that layer", (*_NETWORK, "scale"), layer_section, slow=True),
    Section("spectrum", "The eigenvalues are known without sampling", (*_NETWORK, *_MIXTURE, "n"), spectrum_section),
    Section(
        *("learning", "The accuracy is known before training"),
        *((*_NETWORK, *_MIXTURE, "n", "ridge", "against"), learning_section),
    ),
    Section("width", "Random networks approach the kernel", (*_NETWORK, "scale"), width_section),
    Section(
        *("numbers", "In high dimension four numbers are left", (*_NETWORK, *_MIXTURE), numbers_section),
        wide=True,
    ),
    Section("code", "Take it with you", (*_NETWORK, *_MIXTURE, "n", "ridge"), code_section, wide=True),
)


def answer(section: Section, settings: Settings) -> Document:
    """Return the document of a section, or the message of the failure that says why there is none."""
    try:
        return section.build(settings)
    except NotSoDeepError as error:
        return {"error": str(error)}
