"""Saving and loading networks: safetensors for the weights, JSON for what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, InvalidInputError, NotSoDeepError
from ..networks import DEQ as DEQSpec
from ..networks import ENN as ENNSpec
from .base import Model
from .deq import DEQ
from .enn import ENN
from .files import read_file, write_file

__all__ = ["build", "load", "save"]


def save(model: Model, path: str | Path) -> None:
    """Write a network to one safetensors file, atomically."""
    if not isinstance(model, Model):
        raise InvalidInputError(f"save takes an nn.DEQ or an nn.ENN, got {type(model).__name__}")
    write_file(path, model.state_dict(), {"kind": "model", **model.config()})


def load(path: str | Path, device: torch.device | str | None = None) -> DEQ | ENN:
    """Read a network back; a damaged file or one of another kind raises :class:`CheckpointError`."""
    tensors, document = read_file(path)
    if document.get("kind") != "model":
        raise CheckpointError(
            f"{path} holds a {document.get('kind')}, not a network; training resumes from it with fit"
        )
    try:
        model = build(document, dtype=tensors["readout"].dtype, device=device)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe a network: {error}") from error
    return model


def build(config: dict[str, Any], seed: int = 0, dtype: torch.dtype | None = None, device: Any = None) -> DEQ | ENN:
    """A network from what :meth:`Model.config` returned, with fresh weights."""
    sizes = (config["in_features"], config["width"], config["out_features"])
    if config["model"] == "DEQ":
        return DEQ(
            DEQSpec.from_dict(config["spec"]),
            *sizes,
            seed,
            train=config["train"],
            bias=config["bias"],
            solver=config["solver"],
            tol=config["tol"],
            max_steps=config["max_steps"],
            on_failure=config["on_failure"],
            keep_contraction=config["keep_contraction"],
            dtype=dtype,
            device=device,
        )
    return ENN(
        ENNSpec.from_dict(config["spec"]),
        *sizes,
        seed,
        train=config["train"],
        bias=config["bias"],
        learning_rates=config["learning_rates"],
        normalise=config["normalise"],
        dtype=dtype,
        device=device,
    )
