"""Training checkpoints: one file per epoch, the last two kept; a damaged one is refused and the one before it used."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError, NotSoDeepWarning
from .files import read_file, write_file

__all__ = ["Checkpoints"]

_NAME = re.compile(r"epoch-(\d{6})\.safetensors")
_KEPT = 2


class Checkpoints:
    """The checkpoints of one training run in a folder of their own.

    ``run`` describes the run; a checkpoint of another one is refused, since continuing it would mix two experiments.
    """

    def __init__(self, folder: str | Path, run: Mapping[str, Any]) -> None:
        self.folder, self.run = Path(folder), dict(run)

    def save(self, epoch: int, model: nn.Module, optimiser: Optimizer, history: list[dict[str, Any]]) -> None:
        """Write the state after ``epoch`` epochs, then drop all but the last two."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        state, groups = _flatten(optimiser.state_dict())
        tensors |= state
        tensors["generator"] = torch.get_rng_state()
        document = {"kind": "checkpoint", "epoch": epoch, "run": self.run, "history": history, "groups": groups}
        write_file(self._path(epoch), tensors, document)
        for old in self._epochs()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)
        for torn in self.folder.glob(".epoch-*.part"):  # what a killed run was writing
            torn.unlink(missing_ok=True)

    def restore(self, model: nn.Module, optimiser: Optimizer) -> tuple[int, list[dict[str, Any]]]:
        """Load the latest sound checkpoint; (epochs done, history), or (0, []) if there is none."""
        for epoch in reversed(self._epochs()):
            try:
                tensors, document = read_file(self._path(epoch))
            except CheckpointError as error:
                warnings.warn(f"{error}; falling back on the checkpoint before it", NotSoDeepWarning, stacklevel=3)
                continue
            self._check(document, epoch)
            try:
                model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
                optimiser.load_state_dict(_unflatten(tensors, document["groups"]))
            except (RuntimeError, ValueError) as error:
                raise CheckpointError(f"{self._path(epoch)} does not fit this model: {error}") from error
            torch.set_rng_state(tensors["generator"])
            return epoch, list(document["history"])
        return 0, []

    def _check(self, document: Mapping[str, Any], epoch: int) -> None:
        found = document.get("run", {})
        differing = sorted(k for k in self.run.keys() | found.keys() if self.run.get(k) != found.get(k))
        if differing:
            told = "; ".join(f"{k}: {found.get(k)!r} there, {self.run.get(k)!r} here" for k in differing[:3])
            raise CheckpointError(
                f"{self._path(epoch)} belongs to another run ({told}). Give this run a folder of its own, or "
                "resume=False to start over"
            )

    def clear(self) -> None:
        """Remove every checkpoint of the folder."""
        for epoch in self._epochs():
            self._path(epoch).unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06d}.safetensors"

    def _epochs(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for file in self.folder.iterdir() if (match := _NAME.fullmatch(file.name)))


def _flatten(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors and a JSON document of everything else."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    return tensors, {"param_groups": state["param_groups"], "numbers": numbers}


def _unflatten(tensors: Mapping[str, Tensor], groups: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(i): dict(entries) for i, entries in groups["numbers"].items()}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": groups["param_groups"]}
