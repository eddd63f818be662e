"""Saved networks, and the state of a training run that can be resumed.

Tensors and a JSON document lie in one safetensors file: written atomically, checked when read, never pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import ambient, check_fields, checked
from .._equilibrium import SolverOptions
from .._files import parsed, write_with
from .._words import Parametrisation
from ..errors import CheckpointError, InvalidInputError, NotSoDeepError, SerialisationError
from ..networks import Kernel, network_from_dict
from .convolution import ConvDEQ
from .deq import DEQ
from .enn import ENN
from .model import Model

_WEIGHTS = "initial weights"  # the name of the fingerprint of what a run began with


class Checkpoint:
    """The state of one training run in one file.

    ``run`` describes the run; the checkpoint of another one is refused, since continuing it would mix two experiments.
    """

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        if os.path.isdir(path):
            raise CheckpointError(f"{path} is a folder; a checkpoint is one file, such as {path / 'run.safetensors'}")
        self.path, self.run = path, dict(run)

    def save(self, model: nn.Module, optimiser: Optimizer, history: list[dict[str, Any]]) -> None:
        """Write the state after the epochs of ``history``."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        state = io.BytesIO()
        torch.save(optimiser.state_dict(), state)  # any optimiser's, as tensors and plain numbers
        tensors["optimiser"] = torch.frombuffer(bytearray(state.getvalue()), dtype=torch.uint8)
        tensors["generator"] = torch.get_rng_state()
        write_file(self.path, tensors, {"kind": "checkpoint", "run": self.run, "history": history})

    def restore(self, model: nn.Module, optimiser: Optimizer, most: int) -> list[dict[str, Any]]:
        """Load the state, if there is one, and return the history so far, of at most so many epochs."""
        self.run[_WEIGHTS] = fingerprint(model.state_dict())
        if not os.path.exists(self.path):
            return []
        tensors, document = read_file(self.path, "checkpoint", {"run": dict[str, Any], "history": list[dict[str, Any]]})
        weights = {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
        self._check(document["run"], weights)
        if len(document["history"]) > most:
            raise CheckpointError(
                f"{self.path} already holds {len(document['history'])} epochs of this run, more than the {most} asked "
                "for; ask for at least as many, or remove the file to start over"
            )
        try:
            state = torch.load(io.BytesIO(tensors["optimiser"].numpy().tobytes()), weights_only=True)  # runs no code
            model.load_state_dict(weights)
            optimiser.load_state_dict(state)
            torch.set_rng_state(tensors["generator"])
        except (KeyError, TypeError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
            raise CheckpointError(f"{self.path} does not fit this model: {error}") from error
        return document["history"]

    def _check(self, found: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        if fingerprint(weights) == self.run[_WEIGHTS]:
            self.run[_WEIGHTS] = found.get(_WEIGHTS)  # a model that has trained this far goes on
        differing = sorted(k for k in self.run.keys() | found.keys() if self.run.get(k) != found.get(k))
        if differing:
            told = "; ".join(f"{k}: {found.get(k, 'not recorded')} there, {self.run.get(k)} here" for k in differing)
            raise CheckpointError(
                f"{self.path} belongs to another run ({told}). Give this run a file of its own, or remove that one"
            )


# ---- networks -------------------------------------------------------------------------------------------------


@checked
def save(model: Model, path: str | Path) -> None:
    """Write a network to one safetensors file; on failure, or if a weight is not finite, an old file is kept.

    Parameters
    ----------
    model : nsd.nn.DEQ, nsd.nn.ConvDEQ or nsd.nn.ENN
    path : str or Path

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh"]), 3, 8, 2), "model.safetensors")  # doctest: +SKIP
    """
    write_file(path, model.state_dict(), {"kind": "model", **model.config()})


@ambient
def load(path: str | Path, device: torch.device | str | None = None) -> DEQ | ENN:
    """Read a network that :func:`save` wrote; raise CheckpointError if the file is damaged or not a network.

    Parameters
    ----------
    path : str or Path
    device : torch.device or str, optional

    Returns
    -------
    nsd.nn.DEQ, nsd.nn.ConvDEQ or nsd.nn.ENN

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model = nsd.nn.load("model.safetensors")  # doctest: +SKIP
    """
    tensors, document = read_file(path, "model", _SCHEMA)
    try:
        _check_sizes(document, tensors)
        model = _build(document, dtype=tensors["readout"].dtype, device=device)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe a network: {error}") from error
    return model


_SCHEMA: dict[str, Any] = {
    "in_features": int,
    "out_features": int,
    "model": Literal["DEQ", "ENN", "ConvDEQ"],
    "spec": dict[str, Any],
    "width": int,
    "kernel": Kernel,
    "bias": bool,
    "parametrisation": Parametrisation,
    "solver": dict[str, Any] | None,
    "contraction_limit": float | None,  # of a DEQ
    "learning_rates": Sequence[float] | None,  # of an ENN
}


def _check_sizes(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    n, m, spec = config["in_features"], config["width"], config["spec"]
    said: dict[str, tuple[int, ...]] = {"readout": (config["out_features"], *tensors["readout"].shape[1:])}
    if config["model"] == "ENN":
        said |= {f"weights.{i}": (m, m if i else n) for i in range(len(spec["activations"]))}
    else:
        window = (spec["filter"], spec["filter"]) if config["model"] == "ConvDEQ" else ()
        said |= {"input": (m, spec["image"][0] if window else n, *window), "recurrent": (m, m, *window)}
    check_shapes(tensors, said)


def check_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse tensors of other shapes than a document says, before memory is asked for."""
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape or not tensors[name].is_floating_point():
            seen = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise CheckpointError(f"{name} must hold real numbers of shape {tuple(shape)}, there is {seen}")


def _build(config: Mapping[str, Any], **factory: Any) -> DEQ | ENN:
    """Return a network of the architecture that :meth:`Model.config` describes, with fresh weights."""
    kind: Any = {"DEQ": DEQ, "ConvDEQ": ConvDEQ, "ENN": ENN}[config["model"]]
    names = ["width", "out_features", "kernel", "bias"]
    names += [] if kind is ConvDEQ else ["in_features", "parametrisation"]
    model = kind(network_from_dict(config["spec"]), **{name: config[name] for name in names}, **factory)
    if kind is ENN:
        model.learning_rates = model.spec.rates(config["learning_rates"])
        return model
    model.solver = SolverOptions(**config["solver"])
    return model.limit_contraction(config["contraction_limit"])


# ---- files ----------------------------------------------------------------------------------------------------


_FORMAT = "notsodeep-1"


def write_file(path: str | Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write tensors and a JSON document to one safetensors file, whole or not at all."""
    path = Path(path)
    if not all_finite(tensors):
        raise CheckpointError(f"{path} is not written: a tensor holds NaN or infinity, which no network recovers from")
    host = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(document, sort_keys=True, allow_nan=False, default=lambda number: number.item())  # NumPy's
    metadata = {"format": _FORMAT, "document": text, "sha256": _digest(host, text)}
    write_with(path, lambda temporary: temporary.write_bytes(safetensors.torch.save(host, metadata)))


def read_file(
    path: str | Path, kind: str | None = None, schema: Mapping[str, Any] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, all finite, and the document, of this kind and schema, of a file as it was written."""
    try:
        for _ in range(100):
            with open(path, "rb") as stream, safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    break  # it opens its path twice, and another writer may have replaced the file between
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} was not written by notsodeep (format {metadata.get('format')!r})")
    text = metadata.get("document", "")
    if _digest(tensors, text) != metadata.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    if not all_finite(tensors) or any(tensor.is_complex() for tensor in tensors.values()):
        raise CheckpointError(f"{path} holds NaN, infinity or complex numbers, which this library does not write")
    try:
        document = parsed(text, "what a file holds")
        if kind is None or schema is None:
            return tensors, document
        if (found := document.pop("kind", None)) != kind:
            raise CheckpointError(f"{path} holds a {found!s:.60}, not the {kind} that was asked for")
        return tensors, check_fields(document, schema)
    except (SerialisationError, InvalidInputError) as error:
        raise CheckpointError(f"{path} is no {kind or 'file'} of this library: {error}") from None


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return sixteen digits that tell one set of tensors from another, on any device."""
    return _digest({name: tensor.detach().to("cpu") for name, tensor in tensors.items()}, "")[:16]


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
