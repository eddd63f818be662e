"""Twins as JSON: one document for every kind, written in version 2; files of 0.1.0 (version 1) are still read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from .._files import parsed
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

__all__ = ["built_from", "document_of"]

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
