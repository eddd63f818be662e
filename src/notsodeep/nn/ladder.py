"""The rungs of a ladder: cheaper networks with scores, brought to one scale; looser solvers of a model as rungs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._equilibrium import SolverOptions
from ..errors import InvalidInputError
from .model import LIMITS, median_times
from .student import HEAD, MARGINS, OWN, Data, ReplaceOptions, Scored, train_head
from .teacher import Agreement, Teacher, evaluating

_LOOSER = (100.0, 10.0)  # times the tolerance of the model's own solver
_CHEAPER = 0.7  # of the model's time, at most, for a rung that pays


class Called(nn.Module):
    """A function or a module that answers as it is: not trained, not moved, not stored."""

    def __init__(self, rung: Any, agreement: Agreement, name: str, factor: float | None = None) -> None:
        super().__init__()
        self.teacher, self.factor, self.scores = Teacher(rung, agreement, name), factor, False

    def meet(self, data: Data) -> None:
        """See whether it returns a score of its own, one number per row; refuse other outputs than the model has."""
        found = self.teacher.ask(data.rows)
        pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Tensor)
        self.scores = pair and found[1].numel() == len(data)
        shapes = [tuple(part.shape[1:]) for part in (data.answers, self.teacher.check(found, data.rows))]
        if shapes[0] != shapes[1]:
            raise InvalidInputError(f"{self.teacher.name} has outputs of shape {shapes[1]}, the model of {shapes[0]}")

    def forward(self, x: Tensor) -> Any:
        found = self.teacher.ask(x)
        outputs = self.teacher.check(found, x)
        return (outputs, found[1].flatten()) if self.scores else outputs


def looser_rungs(model: Any, x: Tensor, agreement: Agreement) -> list[Called]:
    """Return the model with looser tolerances of its solver, those that are quicker by enough, the quickest first."""
    rungs = [looser(model, factor, agreement) for factor in _LOOSER]
    with evaluating(model):
        own, *times = median_times((model, *(rung.teacher.model for rung in rungs)), x[: LIMITS.batch].clone(), 3)
    return [rung for rung, seconds in zip(rungs, times, strict=True) if seconds < _CHEAPER * own]


def looser(model: Any, factor: float, agreement: Agreement) -> Called:
    """Return a model that shares its weights with another, whose solver has so many times its tolerance."""
    if not isinstance(model, nn.Module):
        raise InvalidInputError("ladder='auto' needs a module with a solver; give the rungs as functions instead")
    held = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    copied, tols = copy.deepcopy(model, held), []
    part: Any
    for part in copied.modules():
        options = getattr(part, "solver", None)
        if isinstance(options, SolverOptions):
            tols.append(min(0.1, factor * options.tol))
            part.solver = dataclasses.replace(options, tol=tols[-1])
        elif isinstance(getattr(part, "f_tol", None), float):  # torchdeq's name for it
            tols.append(factor * part.f_tol)
            part.f_tol = tols[-1]
    if not tols:
        raise InvalidInputError(
            f"ladder='auto' finds no solver in {type(model).__name__}: it knows nsd.nn.DEQ and torchdeq's modules. "
            "Give the rungs yourself, as ladder=['student', looser, model]"
        )
    return Called(copied, agreement, f"the model at tolerance {tols[0]:g}", factor)


def with_score(
    rung: nn.Module, train: Data, mixed: Data, choose: Data, options: ReplaceOptions, allowed: float, seed: int
) -> Scored:
    """Return a rung with its own score, a learned one for numbers, or for classes the margin that covers most rows."""
    if isinstance(rung, Called) and rung.scores:
        return Scored(rung, OWN, train).eval()
    if train.agreement.tolerance is not None:
        scored = Scored(rung, HEAD, train)
        with torch.enable_grad():
            train_head(scored, choose, mixed, options, seed)
        return scored.eval()

    def coverage(scored: Scored) -> float:
        """Return the rows covered at about the allowed disagreement: at one level few rows would decide."""
        outputs, score = scores_of(scored, choose.rows)
        differing = np.cumsum(choose.differs(outputs).cpu().numpy()[np.argsort(-score, kind="stable")])
        return float(np.mean([np.mean(differing <= level * allowed * len(score)) for level in (0.5, 1, 2, 4)]))

    return max((Scored(rung, kind, train).eval() for kind in MARGINS), key=coverage)


def scores_of(scored: Scored, rows: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return outputs and scores of all rows."""
    with torch.no_grad():
        parts = [scored(batch) for batch in rows.split(LIMITS.batch)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]).double().cpu().numpy()


def common_scale(rungs: list[Scored], choose: Data) -> list[tuple[float, float]]:
    """Return (offset, slope) of every rung: its score as the log-odds of agreeing, by logistic regression."""
    if len(rungs) == 1:
        return [(0.0, 1.0)]
    found = (scores_of(rung, choose.rows) for rung in rungs)
    return [_log_odds(score, choose.differs(outputs).cpu().numpy()) for outputs, score in found]


def _log_odds(score: np.ndarray, differs: np.ndarray) -> tuple[float, float]:
    from sklearn.linear_model import LogisticRegression

    known = np.isfinite(score)
    if not known.any():
        return 0.0, 1.0  # it will never answer, or always
    score, differs = score[known], differs[known]
    middle, spread = float(np.mean(score)), float(np.std(score)) or 1.0
    at = (np.concatenate([score, [score.min(), score.max()]]) - middle) / spread
    agrees = np.concatenate([~differs, [False, True]])  # one of each, where the rows have them all or none
    fitted = LogisticRegression().fit(at[:, None], agrees)
    slope = max(float(fitted.coef_[0, 0]), 1e-3) / spread
    return float(fitted.intercept_[0]) - slope * middle, slope


def thresholds_of(rungs: list[Scored], scale: list[tuple[float, float]], choose: Data, train: Data) -> np.ndarray:
    """Return the thresholds that will be tested, on the common scale."""
    rows = torch.cat([choose.rows, train.rows[: 4 * LIMITS.batch]])
    seen = np.concatenate(
        [offset + slope * scores_of(rung, rows)[1] for rung, (offset, slope) in zip(rungs, scale, strict=True)]
    )
    seen = seen[np.isfinite(seen)]
    if not len(seen):
        raise InvalidInputError("no row has a finite score: a score is one number per row, the larger the surer")
    low, middle = seen.min(), np.median(seen)
    # fresh rows may be less sure than these, much less if these trained the model: the thresholds reach further down,
    # and are the denser the nearer they are
    return np.concatenate([seen, *(np.linspace(low - 2.0**k * (middle - low), middle, 1000) for k in range(7))])
