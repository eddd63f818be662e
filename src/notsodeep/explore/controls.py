"""The controls of the explorer: their names, their words and their stops.

A setting is valid if its value is one of the stops. So a request costs no more than the page can ask for, and the
numbers at all stops of a short list can be stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._caches import cached
from ..activations import activation, activation_names
from ..errors import InvalidInputError, NotSoDeepError
from ..networks import DEQ

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Control:
    """One control of the page: a choice if it has words for its stops, a slider otherwise."""

    name: str
    label: str
    group: str
    stops: tuple[Any, ...]
    start: Any
    words: tuple[str, ...] = ()
    help: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what the page needs to draw the control."""
        choice = bool(self.words)
        words = self.words or tuple(f"{stop:g}" for stop in self.stops)
        stops = [[str(stop), word] for stop, word in zip(self.stops, words, strict=True)]
        given = {"name": self.name, "label": self.label, "group": self.group, "help": self.help}
        return {**given, "choice": choice, "stops": stops, "start": str(self.start)}


_NETWORK, _DATA, _VIEW = "Network", "Data: a Gaussian mixture", "View"
_CONTROLS = (
    Control(
        *("feedback", "Feedback σₐ², share of its limit", _NETWORK),
        *((*(k / 20 for k in range(1, 20)), 0.99), 0.8),
        help="Below the limit 1 / (4 Lip²) the fixed point is unique at every width.",
    ),
    Control(
        *("kernel", "Kernel", _NETWORK, ("ck", "ntk", "ntk_frozen"), "ck"),
        words=(
            "conjugate kernel: the readout is trained",
            "tangent kernel: all weights are trained",
            "tangent kernel: input weights are frozen",
        ),
    ),
    Control(
        *("readout", "The readout sees", _NETWORK, ("activation", "pre-activation"), "activation"),
        words=("the activations, f = a·z", "one more pre-activation"),
        help="With one more pre-activation, the kernels are those of the preprint and of the workshop paper.",
    ),
    Control("scale", "Typical norm of the inputs", _DATA, (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), 1.0),
    Control("classes", "Classes", _DATA, (2, 3, 4, 6), 2),
    Control("mean", "Norm of the class means", _DATA, (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0), 3.0),
    Control("spread", "Spread of the variances", _DATA, (0.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0), 8.0),
    Control("p", "Dimension p", _DATA, (50, 100, 200, 400, 800, 1600), 400),
    Control("n", "Samples n", _DATA, (50, 100, 200, 400, 800, 1600), 200),
    Control("ridge", "Ridge, relative to the mean diagonal", _DATA, (1e-4, 1e-3, 1e-2, 0.1, 1.0), 1e-2),
    Control("ratio", "Norm of the second input over the first", _VIEW, (0.5, 0.75, 1.0, 1.25, 1.5), 1.0),
    Control(
        *("against", "Accuracy against", _VIEW, ("n", "ridge", "times"), "n"),
        words=("samples", "ridge", "training time"),
    ),
)
STORED: Mapping[str, tuple[Any, ...]] = {  # what is stored; a control that is not here stays where it starts
    "feedback": (0.4, 0.8),
    "kernel": ("ck", "ntk", "ntk_frozen"),
    "readout": ("activation", "pre-activation"),
    "against": ("n", "ridge"),
}


def names() -> tuple[str, ...]:
    """Return the activations that have a DEQ with their usual parameters."""
    return tuple(name for name in activation_names() if 0.0 < limit_of(name) < math.inf)


@cached(64)
def limit_of(name: str) -> float:
    """Return the limit of sigma_a2; zero where there is none, or where the activation needs parameters."""
    try:
        return DEQ(activation(name), 0.0).limit
    except NotSoDeepError:
        return 0.0


def controls() -> tuple[Control, ...]:
    """Return the controls of the served page."""
    words = tuple(name.replace("_", " ") for name in names())
    return Control("activation", "Activation φ", _NETWORK, names(), "relu", words), *_CONTROLS


def stored_controls(stops: Mapping[str, tuple[Any, ...]]) -> tuple[Control, ...]:
    """Return the controls with these stops; those that are not named stay where they start."""
    shorter = {"activation": names(), **stops}
    return tuple(_at(control, shorter.get(control.name, (control.start,))) for control in controls())


def _at(control: Control, stops: tuple[Any, ...]) -> Control:
    """Return the control with some of its stops."""
    words = tuple(control.words[control.stops.index(stop)] for stop in stops) if control.words else ()
    return replace(control, stops=stops, words=words, start=control.start if control.start in stops else stops[0])


def settings_from(given: Mapping[str, str], needed: Sequence[str]) -> dict[str, Any]:
    """Return the settings that texts name, one stop for each needed control."""
    if unknown := sorted(set(given) - set(needed)):
        raise InvalidInputError(f"unknown setting {unknown[0][:40]!r}; these are taken: {', '.join(needed)}")
    settings = {}
    for control in controls():
        if control.name not in needed:
            continue
        text = given.get(control.name, str(control.start))
        stops = {str(stop): stop for stop in control.stops}
        if text not in stops:
            raise InvalidInputError(f"{control.name} is one of {', '.join(stops)}; got {text[:40]!r}")
        settings[control.name] = stops[text]
    return settings


def network_of(settings: Settings) -> DEQ:
    """Return the DEQ of some settings."""
    sigma_a2 = float(f"{settings['feedback'] * limit_of(settings['activation']):.5g}")
    sigma_b2 = round(1.0 - sigma_a2, 9) if sigma_a2 < 1.0 else 1.0
    return DEQ(settings["activation"], sigma_a2, sigma_b2, readout=settings["readout"])
