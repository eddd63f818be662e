"""Test accuracy against width with one-layer twins, beside DEQ, the papers' twin and a plain network of the best scale.

As in ``accuracy``: random frozen features, a linear readout trained by SGD, the same rows, seeds, widths and learning
rates, and the same (centred) DEQ; at three widths by Adam as well. The plain network has its kernel multiplied by the
scalar that brings it nearest to the DEQ's, so that it does not lose by its size alone. The noise is that of
``plain_depth``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..datasets import Dataset
from ..matching import match_one_layer, norm_range
from ..networks import ENN
from ..plots.figures import draw_one_layer_accuracy
from .accuracy import DATASETS, SIGMA_A2, WIDEST, WIDTHS, prepared, twin_for
from .plain_depth import NOISE, noisy
from .readouts import Candidate, Optimiser, score
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "candidates", "points"]

ACTIVATIONS = ("tanh", "relu")
TOLERANCE = 1e-3
"""Of the one-layer twin: kernels of these widths are off by a hundredth and more."""
ADAM_WIDTHS, ADAM_RATE = (128, 1024, 4096), 1e-3
_SCALED_ON = 1000  # rows that the plain network's scalar is found on


def candidates(phi: str, data: Dataset) -> dict[str, Candidate]:
    """The networks compared, the DEQ first."""
    papers = twin_for(phi)
    one = match_one_layer(papers.deq, norms=norm_range(data.X_train), tol=TOLERANCE).network
    scalar = papers.verify(data.X_train[:_SCALED_ON]).scalar["ck"]
    *before, last = papers.plain.activations
    return {
        "DEQ": Candidate(papers.deq),
        "one layer": Candidate(one),
        "one layer, orthogonal": Candidate(one, "orthogonal"),
        "papers' twin": Candidate(papers.network),
        "plain, best scale": Candidate(ENN([*before, last.affine(gain=scalar**0.5)])),
    }


def points(setup: Setup, datasets: Sequence[str] | None = None, widths: Sequence[int] | None = None) -> list[Point]:
    """One point per data set and width; ``_noisy`` behind a name adds the noise."""
    names = datasets or (("digits",) if setup.quick else (*DATASETS, "cifar10_vgg_noisy"))
    sizes = widths or ((32, 128) if setup.quick else (*WIDTHS, WIDEST))
    epochs, seeds = (20, 2) if setup.quick else (100, 3)
    load_once = functools.lru_cache(maxsize=1)(lambda name: _prepared(name, setup))

    def point(name: str, width: int, *, adam: bool = False) -> Point:
        settings: dict[str, Any] = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "tol": TOLERANCE,
            "noise": NOISE if name.endswith("_noisy") else 0.0,
            "seeds": list(range(seeds)),
            "lr": 0.1 if name.startswith("cifar10_vgg") else 1.0,
            "epochs": epochs,
        }
        if adam:
            settings |= {"method": "adam", "lr": ADAM_RATE}
        key = f"{name}/{width}/adam" if adam else f"{name}/{width}"
        return Point(key, settings, lambda: _measure(*load_once(name), settings, setup))

    plain = [point(name, width) for name in names for width in sizes]
    return plain + [point(n, w, adam=True) for n in names for w in sizes if w in ADAM_WIDTHS and not setup.quick]


def _prepared(name: str, setup: Setup) -> tuple[Dataset, dict[str, dict[str, Candidate]]]:
    data = prepared(setup.data, name.removesuffix("_noisy"))
    data = noisy(data, NOISE) if name.endswith("_noisy") else data
    return data, {phi: candidates(phi, data) for phi in ACTIVATIONS}


def _measure(
    data: Dataset, networks: Mapping[str, Mapping[str, Candidate]], settings: Mapping[str, Any], setup: Setup
) -> dict[str, Any]:
    return {
        phi: score(
            networks[phi],
            data,
            settings["width"],
            reference="DEQ",
            epochs=settings["epochs"],
            seeds=settings["seeds"],
            optimiser=Optimiser(settings.get("method", "sgd"), settings["lr"]),
            device=setup.device,
            between_epochs=setup.check_time,
        )
        for phi in settings["activations"]
    }


EXPERIMENT = Experiment(
    "one_layer_accuracy", "Accuracy of one-layer twins with trained readouts", points, draw_one_layer_accuracy
)
