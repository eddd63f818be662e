"""(K + ridge I)^(-1) B for kernels as operators: conjugate gradients, refined until the true residual is small."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked
from .._conjugate import Iterate, conjugate_gradients, thin
from .._files import advice
from .._progress import track
from ..errors import CheckpointError, ClusterError, ConvergenceError, InvalidInputError
from ..nn.checkpoint import read_file, write_file
from .dense import leave_one_out
from .operator import KernelOperator
from .preconditioners import Preconditioner, precondition

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
        try:
            if not self.path.exists():
                return None
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be used: {error.strerror}. {advice(error)}") from error
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


# ---- the solve ---------------------------------------------------------------------------------------------


# one pass reduces residuals to this part before they are computed afresh: products in float32 carry no further
_REACH = {torch.float32: 1e-5, torch.float64: 1e-11}
_AIM = 0.5  # of the tolerance: another few steps cost less than a residual computed afresh and found too large
_FEW = 20_000  # rows up to which all of them are asked for their residual
_SAMPLE, _BLOCK = 2000, 250
_CLEARLY = 0.9  # of the tolerance: three standard errors of what a sample tells


@dataclass(frozen=True, eq=False)
class Iterative:
    """Solutions, (n, columns), with the record of how they were found."""

    z: Tensor
    residuals: Tensor
    """Relative to the right-hand sides, computed afresh from the solution (or from 2,000 of very many rows)."""
    steps: int
    refinements: int
    """How often the residual was computed afresh and found too large."""
    history: tuple[float, ...]
    """The largest relative residual after each step, as the recursion sees it."""


def solve_tiles(
    tiles: KernelOperator,
    B: Tensor,
    ridges: Tensor,
    preconditioner: Preconditioner,
    *,
    tol: float = 1e-6,
    refine: bool = True,
    max_steps: int = 2000,
    checkpoint: str | Path | None = None,
    every: float = 60.0,
    progress: bool | None = None,
) -> Iterative:
    """Column j solves (K + ridges[j] I) z = B[:, j] to a relative residual of ``tol``.

    ``refine`` computes residuals with the kernel in float64, whatever is stored; ``False`` trusts what is stored.
    """
    scales = B.norm(dim=0)
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    file = (
        None if checkpoint is None else SolveCheckpoint(checkpoint, _problem(tiles, B, ridges, preconditioner), every)
    )
    job = _Job(tiles, B, ridges, preconditioner, scales, tol, refine, max_steps, file, progress)
    found = job.run()
    if file is not None:
        file.clear()
    return found


@dataclass(eq=False)
class _Job:
    tiles: KernelOperator
    B: Tensor
    ridges: Tensor
    preconditioner: Preconditioner
    scales: Tensor
    tol: float
    refine: bool
    max_steps: int
    file: SolveCheckpoint | None
    progress: bool | None
    refinements: int = 0

    def run(self) -> Iterative:
        base, relative = torch.zeros_like(self.B), self.B.norm(dim=0) / self.scales
        resumed = None if self.file is None else self.file.read(self.B)
        if resumed is None:
            state = self._start(self.B, 0, [])
        else:
            state, base, self.refinements = resumed
        step, history = 0, list[float]()
        while state is not None:
            with self._kept(state, base):
                self._pass(state, base)
                total, step, history = base + state.z, state.step, state.history
                judged = self._on_a_sample(total)
                if judged is not None:
                    return Iterative(total, judged, step, self.refinements, tuple(history))
                residual = self._residual(total)
                self._check(state.start_norms, residual.norm(dim=0))
                following = self._start(residual, step, history)
            base, state, relative = total, following, residual.norm(dim=0) / self.scales
            self.refinements += 1
        return Iterative(base, relative, step, max(self.refinements - 1, 0), tuple(history))

    def _start(self, residual: Tensor, step: int, history: list[float]) -> Iterate | None:
        """Of a pass that reduces this residual; None where it is small enough."""
        if not bool((residual.norm(dim=0) > self.tol * self.scales).any()):
            return None
        state = Iterate.start(residual, self.ridges, self.preconditioner.solve)
        state.step, state.history = step, history
        return state

    @contextlib.contextmanager
    def _kept(self, state: Iterate, base: Tensor) -> Iterator[None]:
        """A cluster that goes takes the step in flight with it: the state changes when all of a step is there."""
        try:
            yield
        except ClusterError:
            if self.file is not None:
                self.file.write(state, base, self.refinements)
            raise

    def _pass(self, state: Iterate, base: Tensor) -> None:
        """One run of conjugate gradients on what is left."""
        aims = torch.maximum(_AIM * self.tol * self.scales, _REACH[self.tiles.dtype] * state.start_norms)
        steps = conjugate_gradients(
            self.tiles.__matmul__, self.ridges, aims, state, self.scales, self.preconditioner.solve, self.max_steps
        )
        decades = 10 * max(math.ceil(-math.log10(self.tol)), 1)
        for _ in track(self._ticks(steps, base), decades, "conjugate gradients", self.progress):
            pass

    def _ticks(self, steps: Iterator[Iterate], base: Tensor) -> Iterator[int]:
        """Tenths of a decade of the residual, for the progress bar; checkpoints on the way."""
        tenths = 0
        for state in steps:
            if self.file is not None and self.file.due():
                self.file.write(state, base, self.refinements)
            while tenths < -10.0 * math.log10(max(state.history[-1], 1e-300)) - 1.0 and tenths < 400:
                tenths += 1
                yield tenths

    def _residual(self, z: Tensor) -> Tensor:
        image = self.tiles.exact(z) if self.refine else self.tiles @ z
        return self.B - image - self.ridges * z

    def _on_a_sample(self, z: Tensor) -> Tensor | None:
        """Relative residuals as 2,000 random rows tell them, in float64; None where they are not clearly good enough.

        Known to three parts in a hundred, for a small part of what all rows would cost where there are many.
        """
        if not self.refine or self.tiles.dtype == torch.float64 or self.tiles.n <= _FEW:
            return None
        order = torch.randperm(self.tiles.n, generator=torch.Generator().manual_seed(self.tiles.n))
        left = []
        for index in order[:_SAMPLE].to(z.device).split(_BLOCK):
            image = thin(self.tiles.columns(index).T, z)
            left.append(self.B[index] - image - self.ridges * z[index])
        share = self.tiles.n / min(_SAMPLE, self.tiles.n)
        relative = (share * torch.cat(left).square().sum(0)).sqrt() / self.scales
        return relative if bool((relative <= _CLEARLY * self.tol).all()) else None

    def _check(self, before: Tensor, after: Tensor) -> None:
        stuck = (after > 0.5 * before) & (after > self.tol * self.scales)
        if bool(stuck.any()):
            worst = float((after / self.scales).max())
            raise ConvergenceError(f"the relative residual does not fall below {worst:.1e}: {self._limit()}")

    def _limit(self) -> str:
        if self.tiles.dtype == torch.float64:
            return "double precision carries no further at this ridge; use a larger ridge or a larger tol"
        first = "" if self.refine else "refine=True, "
        return f"the kernel is stored in float32; use {first}dtype='float64', a larger ridge or a larger tol"


def _problem(tiles: KernelOperator, B: Tensor, ridges: Tensor, preconditioner: Preconditioner) -> dict[str, object]:
    digest = hashlib.sha256(np.ascontiguousarray(B.cpu().numpy()).tobytes())
    if tiles.scale is not None:
        digest.update(tiles.scale.cpu().numpy().tobytes())
    return {
        "kernel": tiles.fingerprint(),
        "targets": digest.hexdigest(),
        "ridges": ridges.tolist(),
        "preconditioner": [preconditioner.name, preconditioner.rank],
        "dtype": str(tiles.dtype),
    }


# ---- leave-one-out predictions, some rows at a time --------------------------------------------------------


@checked
def leave_rows_out(
    operator: KernelOperator,
    targets: Tensor,
    coefficients: Tensor,
    ridge: float,
    rows: Tensor | None = None,
    *,
    preconditioner: Preconditioner | None = None,
    block: int = 128,
    tol: float = 1e-8,
    seed: int = 0,
    progress: bool | None = None,
) -> Tensor:
    """What the machine without row i predicts at row i, for the given rows (all of them by default), (rows, k).

    ``coefficients`` are those of a solve with this operator and ridge. Every row takes a solve of its own, ``block``
    of them share their products: a sample of some hundred rows tells the error of a large machine.
    """
    chosen = torch.arange(operator.n) if rows is None else torch.as_tensor(rows, dtype=torch.long)
    weights = None if operator.scale is None else operator.scale[:, 0] ** 2
    if weights is not None and not bool((weights[chosen] > 0).all()):
        raise InvalidInputError("a row of weight zero is left out already; predict at it instead")
    sweep = precondition("rpcholesky", operator, seed=seed) if preconditioner is None else preconditioner
    inverse = torch.cat([_diagonal(operator, part, ridge, sweep, tol, progress) for part in chosen.split(block)])
    mine = None if weights is None else weights[chosen]
    scaled = inverse if mine is None else mine * inverse
    return leave_one_out(targets[chosen].to(torch.float64), coefficients[chosen], scaled, mine, ridge)


def _diagonal(
    operator: KernelOperator, rows: Tensor, ridge: float, sweep: Preconditioner, tol: float, progress: bool | None
) -> Tensor:
    """Entries of the diagonal of (K + ridge I)^(-1)."""
    units = torch.zeros(operator.n, len(rows), dtype=torch.float64)
    units[rows, torch.arange(len(rows))] = 1.0
    lifts = torch.full((len(rows),), ridge, dtype=torch.float64)
    found = solve_tiles(operator, units, lifts, sweep, tol=tol, progress=progress)
    return found.z[rows, torch.arange(len(rows))]
