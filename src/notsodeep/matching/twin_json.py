"""Twins as JSON: one document for every kind, written in version 2; files of 0.1.0 (version 1) are still read.

And as HTML for notebooks: activations drawn, numbers, what is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from html import escape
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._files import parsed
from ..activations import Activation
from ..equivalents import Coefficients
from ..errors import InvalidInputError, SerialisationError
from ..networks import ENN, Network, network_from_dict
from .certificates import (
    Certificate,
    Location,
    MixtureCertificate,
    SphereCertificate,
    Tried,
    UniformCertificate,
    check_number,
)
from .names import kernel_names

T = TypeVar("T")

_VERSION = 2


def document_of(twin: Any) -> dict[str, Any]:
    """The JSON document of a twin."""
    rates = twin.learning_rates
    return {
        "twin": _VERSION,
        "deq": twin.deq.to_dict(),
        "network": twin.network.to_dict(),
        "kernel": twin.kernel,
        "family": twin.family,
        "learning_rates": None if rates is None else list(rates),
        "trains": twin.trains,
        "kinds": twin.kinds,
        "reason": twin.reason,
        "certificate": {"kind": twin.certificate.kind, **_plain(twin.certificate)},
    }


def _plain(record: Any) -> Any:
    """Dataclasses as dictionaries and tuples as lists, without the networks that coefficients carry."""
    if isinstance(record, tuple):
        return [_plain(value) for value in record]
    if not hasattr(type(record), "__dataclass_fields__"):
        return record
    return {f.name: _plain(getattr(record, f.name)) for f in fields(record) if f.name != "network"}


def built_from(document: Mapping[str, Any] | str, make: Callable[..., T]) -> T:
    """A twin from a document or its text; all that is wrong with it is a SerialisationError."""
    content = parsed(document, "a twin")
    try:
        return make(**_content(content))
    except KeyError as error:
        raise SerialisationError(f"the description of this twin is incomplete: {error} is missing") from None
    except (InvalidInputError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SerialisationError(f"this does not describe a twin: {error}") from None


def _content(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("twin") == _VERSION:
        del document["twin"]
        certificate = dict(document.pop("certificate"))
        return _assembled(document, certificate)
    if document.get("twin") == 1 or document.get("uniform_twin") == 1:
        return _assembled(*_of_version_1(document))
    raise SerialisationError(f"expected a JSON object with the key 'twin' equal to 1 or {_VERSION}")


def _of_version_1(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """0.1.0 wrote all fields of all kinds side by side, and uniform twins under a key of their own."""
    kind = "uniform" if document.pop("uniform_twin", None) == 1 else "sphere" if document["tau0"] is None else "mixture"
    document.pop("twin", None)
    record = {"mixture": MixtureCertificate, "sphere": SphereCertificate, "uniform": UniformCertificate}[kind]
    certificate = {"kind": kind} | {f.name: document.pop(f.name) for f in fields(record) if f.name != "assumes"}
    for name, empty in (("tau0", None), ("bound", None), ("conditioning", None), ("normalise", False)):
        if document.pop(name, empty) != empty:
            raise SerialisationError(f"a {kind} twin has no {name}")
    for name in ("targets", "achieved"):
        if document.pop(name, []) != []:
            raise SerialisationError(f"a {kind} twin has no {name}")
    return document, certificate


def _assembled(content: dict[str, Any], certificate: dict[str, Any]) -> dict[str, Any]:
    """Objects for dictionaries, tuples for lists."""
    content["deq"], content["network"] = network_from_dict(content["deq"]), ENN.from_dict(content["network"])
    rates = content["learning_rates"]
    content["learning_rates"] = None if rates is None else tuple(rates)
    return {**content, "certificate": _certificate(certificate, content["deq"], content["network"])}


def _certificate(content: dict[str, Any], deq: Network, network: ENN) -> Certificate:
    kind = content.pop("kind")
    if kind == MixtureCertificate.kind:
        content["targets"] = tuple(_numbers(c, deq) for c in content["targets"])
        content["achieved"] = tuple(_numbers(c, network) for c in content["achieved"])
        return MixtureCertificate(**content)
    if kind == SphereCertificate.kind:
        return SphereCertificate(**content)
    if kind == UniformCertificate.kind:
        content["norms"] = None if content["norms"] is None else tuple(content["norms"])
        content["location"] = None if content["location"] is None else Location(**content["location"])
        content["table"] = tuple(Tried(**row) for row in content["table"])
        content["diagonals"] = tuple((str(name), value) for name, value in content["diagonals"])
        return UniformCertificate(**content)
    raise SerialisationError(f"the kind of a certificate is 'mixture', 'sphere' or 'uniform', got {kind!r}")


def _numbers(content: dict[str, Any], network: Network) -> Coefficients:
    for name, value in content.items():
        if name == "kernel":
            kernel_names(value)
        elif value is not None or name not in ("tau_star", "bias"):
            check_number(name, value, signed=True)
    return Coefficients(**content, network=network)


# ---- HTML for notebooks ------------------------------------------------------------------------------------


_WIDTH, _HEIGHT, _REACH = 180, 120, 3.0
_COLOURS = {"DEQ": "#8a8a8a", "twin": "#b3262e"}


def twin_html(twin: Any) -> str:
    """The title, one small drawing per activation, and the lines that ``print`` gives."""
    title, *lines = str(twin).split("\n")
    scale = twin.tau0 or (twin.norms[1] if twin.norms else 1.0)
    own = twin.deq.activations[-1]
    drawings = [_drawing(own, "DEQ", f"activation of the {type(twin.deq).__name__}", scale)]
    for i, phi in enumerate(twin.network.activations, 1):
        drawings.append(_drawing(phi, "twin", f"layer {i} of the twin", scale))
    rows = "".join(_row(line.strip()) for line in lines)
    return (
        f'<div class="notsodeep-twin"><p><strong>{escape(title)}</strong></p>'
        f'<div style="display:flex;flex-wrap:wrap;gap:1em">{"".join(drawings)}</div>'
        f'<table style="text-align:left">{rows}</table></div>'
    )


def _row(line: str) -> str:
    name, _, text = line.partition("  ") if not line.startswith("layer") else (line[:7], "", line[7:])
    left = 'style="text-align:left"'
    return f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text.strip())}</td></tr>"


def _drawing(phi: Activation, kind: str, caption: str, scale: float) -> str:
    x = np.linspace(-_REACH * scale, _REACH * scale, 121)
    y = np.asarray(phi.at_norm(x, scale), dtype=float)
    label = f"{caption}, inputs from {x[0]:.3g} to {x[-1]:.3g}, values from {y.min():.3g} to {y.max():.3g}"
    return (
        f'<figure style="margin:0"><svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}">{_curve(y, _COLOURS[kind])}</svg>'
        f"<figcaption><small>{escape(label)}</small></figcaption></figure>"
    )


def _curve(y: NDArray[Any], colour: str) -> str:
    """The values from edge to edge, and the line of zero where it is crossed."""
    low, high = float(y.min()), float(y.max())
    if not (math.isfinite(high - low) and high > low):
        return ""
    unit = (_HEIGHT - 8) / (high - low)
    heights = _HEIGHT - 4 - (y - low) * unit
    places = np.linspace(4, _WIDTH - 4, len(y))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(places, heights, strict=True))
    zero = _HEIGHT - 4 + low * unit
    axis = f'<line x1="4" x2="{_WIDTH - 4}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#ccc"/>' if low < 0 < high else ""
    return f'{axis}<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
