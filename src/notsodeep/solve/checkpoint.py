"""The state of a solve on disk: a killed solve goes on where it was, and ends with the same numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .._conjugate import Iterate
from ..errors import CheckpointError
from ..nn.checkpoint import read_file, write_file

__all__ = ["SolveCheckpoint"]

_PARTS = ("z", "residual", "direction", "energy", "start_norms")


class SolveCheckpoint:
    """One file; written after every ``every`` seconds, refused if it belongs to another problem."""

    def __init__(self, path: str | Path, problem: Mapping[str, Any], every: float = 60.0) -> None:
        self.path, self.problem, self.every = Path(path), dict(problem), every
        self._last = time.monotonic()

    def write(self, state: Iterate, base: Tensor, refinements: int) -> None:
        """The state of the iteration, and the solution it corrects."""
        tensors = {name: getattr(state, name) for name in _PARTS} | {"base": base}
        document = {
            "kind": "solve",
            "problem": self.problem,
            "step": state.step,
            "history": state.history,
            "refinements": refinements,
        }
        write_file(self.path, tensors, document)
        self._last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._last >= self.every

    def read(self, like: Tensor) -> tuple[Iterate, Tensor, int] | None:
        """What was written last, or None; on the device of ``like``."""
        if not self.path.exists():
            return None
        tensors, document = read_file(self.path)
        if document.get("kind") != "solve" or document["problem"] != self.problem:
            raise CheckpointError(
                f"{self.path} belongs to another problem (data, kernel, targets, ridges or preconditioner differ); "
                "give this solve a file of its own, or remove it"
            )
        moved = {name: value.to(like) for name, value in tensors.items()}
        z, residual, direction, energy, norms = (moved[name] for name in _PARTS)
        state = Iterate(z, residual, direction, energy, norms, document["step"], list(document["history"]))
        return state, moved["base"], int(document["refinements"])

    def clear(self) -> None:
        """Remove the file: the solve is done."""
        self.path.unlink(missing_ok=True)
