"""``notsodeep demo``: a trained DEQ replaced and proven, a twin, and learned features, in one figure.

A DEQ is trained on the digits of scikit-learn. A small student answers for it with a promise, and its own iteration
stops as soon as the class is proven. An untrained DEQ has the kernel of one layer. A kernel machine learns which
columns of a table matter. All numbers are measured on rows that no step before has seen.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from sklearn.datasets import load_digits, make_friedman1
from torch import Tensor

import notsodeep as nsd

from ._files import atomic
from .matching.certificates import Verification


class DemoSize(NamedTuple):
    """How much is computed."""

    width: int = 256
    epochs: int = 20
    steps: int = 2000
    rows: int = 500
    promise: float = 0.01


class Trained(NamedTuple):
    """A trained DEQ on fresh digits: what replaces it, what is proven, and what its own solver takes."""

    accuracy: float
    replacement: nsd.nn.Replacement
    answered: float  # share of the fresh rows that the student answers
    differs: float  # share of the fresh rows on which the replacement differs from the DEQ
    proof: nsd.nn.Decision
    same: float  # share of the fresh rows whose proven class is that of the solver
    solver_steps: Tensor

    def sentences(self) -> tuple[str, str]:
        """Say what a promise and what a proof are worth."""
        known, fresh = self.replacement.certificate, len(self.proof.steps)
        promise = (
            f"A student answers {self.answered:.0%} of fresh digits for a trained DEQ ({self.accuracy:.1%} correct): "
            f"promised to differ on at most {known.disagreement:.0%}, it differs on {self.differs:.1%} of {fresh}."
        )
        proof = (
            f"The DEQ itself stops after {mean(self.proof.steps):.1f} steps instead of "
            f"{mean(self.solver_steps):.1f}: by then {float(self.proof.proven.double().mean()):.0%} of the classes are "
            f"proven, and {self.same:.0%} are those of the full solve."
        )
        return promise, proof


class Matched(NamedTuple):
    """An untrained DEQ and its twin, on the digits."""

    twin: nsd.Twin
    distances: Verification

    def sentence(self) -> str:
        """Say how near the twin is."""
        seen, how = self.distances, "if its assumption holds" if self.twin.certificate.assumes else "proven"
        return (
            f"One layer has the kernel of an untrained DEQ: no entry is off by more than {self.twin.bound:.0e} of the "
            f"diagonal, {how}. On the digits it is {seen.distance:.0e} away in spectral norm, a plain layer "
            f"{seen.plain_distance:.0%}, or {seen.plain_scaled_distance:.1%} after the best scaling."
        )


class Learned(NamedTuple):
    """Two kernel machines on a table of which five columns matter: R2 on fresh rows, and what one of them learned."""

    plain: float
    learned: float
    features: np.ndarray
    names: tuple[str, ...]

    def sentence(self) -> str:
        """Say what the features are worth."""
        share = float(np.diag(self.features)[:5].sum() / np.trace(self.features))
        return (
            f"A machine that learns its features puts {share:.1%} of its weight on the 5 of {len(self.names)} columns "
            f"that matter: R2 rises from {self.plain:.2f} to {self.learned:.2f} on fresh rows."
        )


class Shown(NamedTuple):
    """What the demo found."""

    trained: Trained
    matched: Matched
    learned: Learned

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence for each panel."""
        return (*self.trained.sentences(), self.matched.sentence(), self.learned.sentence())


def main(folder: str | Path = "demo", console: Console | None = None, *, quick: bool = False) -> Shown:
    """Compute, print one sentence per result, and write ``demo.png`` into ``folder``; return what was found."""
    console = console or Console()
    started, size = time.perf_counter(), DemoSize(64, 10, 400, 200, 0.03) if quick else DemoSize()
    target = Path(folder) / "demo.png"
    target.parent.mkdir(exist_ok=True)  # and no folders above it, as elsewhere
    console.print("1 of 3: training a DEQ, its student, and proving classes ...")
    trained = _trained(size)
    console.print("2 of 3: matching the kernel of a DEQ by one layer ...")
    matched = _matched()
    console.print("3 of 3: learning the features of a table ...")
    shown = Shown(trained, matched, _learned(size))
    for sentence in shown.sentences():
        console.print(f"- {sentence}", highlight=False)
    with atomic(target) as part:
        draw(shown).savefig(part, format="png", dpi=110)
    console.print(f"Figure: {target} ({time.perf_counter() - started:.0f} s)")
    return shown


# ---- measurements ----------------------------------------------------------------------------------------


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits in random order, so that later rows are like earlier ones."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order] / 16.0 - 0.3, y[order]


def _trained(size: DemoSize) -> Trained:
    X, y = (torch.from_numpy(part) for part in digits())
    seen, measured, fresh = X.float().split([700, 700, len(X) - 1400])
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), X.shape[1], size.width, 10, bias=True).limit_contraction(0.9)
    nsd.nn.fit(model, (seen, y[:700]), optimiser="adam", lr=0.01, epochs=size.epochs)
    options = nsd.nn.ReplaceOptions(width=size.width // 2, steps=size.steps)
    fast = nsd.replace(model, seen, calibration=measured, disagreement=size.promise, options=options)
    with torch.no_grad():
        classes, quick = model(fresh).argmax(1), fast(fresh).argmax(1)
    proof, drift = model.decide(fresh), fast.drift()
    accuracy, differs, same = (
        float((a == b).double().mean()) for a, b in ((classes, y[1400:]), (quick, classes), (proof.classes, classes))
    )
    return Trained(accuracy, fast, 1.0 - drift.share, 1.0 - differs, proof, same, model.solve(fresh).row_steps)


def _matched() -> Matched:
    twin = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2))
    return Matched(twin, twin.verify(digits()[0][:600]))


def _learned(size: DemoSize) -> Learned:
    """Fit Friedman's first function, of five columns, beside which there are ten of noise."""
    X, y = make_friedman1(2 * size.rows, n_features=15, noise=1.0, random_state=0)
    (train, fresh), (targets, truth) = np.split(X, 2), np.split(y, 2)
    fitted = [nsd.DEQRegressor("relu", features=kind).fit(train, targets) for kind in (None, "diagonal")]
    plain, learned = (float(machine.score(fresh, truth)) for machine in fitted)
    names = (*(f"column {i}" for i in range(1, 6)), *(f"noise {i}" for i in range(1, 11)))
    return Learned(plain, learned, np.asarray(fitted[1].features_), names)


def mean(values: Any) -> float:
    """Return the mean of the entries."""
    return float(np.mean(np.asarray(values, dtype=float)))


# ---- what is shown ---------------------------------------------------------------------------------------


def draw(shown: Shown) -> Figure:
    """Draw one panel for each sentence."""
    figure = Figure(figsize=(12.0, 8.6), layout="constrained")
    promise, proof, kernel, table = figure.subplots(2, 2).flat
    trained, matched, learned = shown
    nsd.plots.ReplacementDisplay.from_replacement(trained.replacement).plot(promise)
    _draw_steps(proof, trained)
    nsd.plots.TwinDisplay.from_twin(matched.twin).plot(kernel)
    nsd.plots.FeaturesDisplay(learned.features, learned.names).plot(table, top=len(learned.names))
    known = trained.replacement.certificate
    answered = f"answers {trained.answered:.0%} of fresh rows, differs on {trained.differs:.1%} "
    steps = f"{mean(trained.proof.steps):.1f} steps instead of {mean(trained.solver_steps):.1f}; "
    told = {
        "A small student answers for a trained DEQ": f"{answered}(promised: at most {known.disagreement:.0%})",
        "The trained DEQ stops once its class is proven": f"{steps}{trained.same:.0%} of the classes are the same",
        "One layer has the kernel of an untrained DEQ": f"no error above {matched.twin.bound:.1e} of the diagonal",
        "A kernel machine learns which columns matter": f"R2 on fresh rows {learned.learned:.2f}, without features "
        f"{learned.plain:.2f}",
    }
    for ax, (message, numbers) in zip((promise, proof, kernel, table), told.items(), strict=True):
        ax.set_title(message, loc="left", fontweight="bold", pad=24)
        ax.text(0.0, 1.03, numbers, transform=ax.transAxes)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_steps(ax: Axes, trained: Trained) -> None:
    """Draw how many rows are done after how many steps."""
    for steps, name, colour in (
        (trained.proof.steps, "class proven", "#b3262e"),
        (trained.solver_steps, "residual below the solver's tolerance", "#9db9d4"),
    ):
        found, counts = np.unique(np.asarray(steps), return_counts=True)
        ax.bar(found, 100.0 * counts / counts.sum(), color=colour, label=name)
    ax.set(xlabel="steps of the iteration", ylabel="fresh rows (%)", ylim=(0, 125), yticks=range(0, 101, 20))
    ax.legend(frameon=False, fontsize="small")
