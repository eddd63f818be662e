"""A cheap network that learns to answer as a model does, and says how sure it is of that."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import check_settings, not_negative, positive_int
from .._progress import track
from .model import LIMITS, in_batches
from .teacher import Agreement

Ask = Callable[[Tensor], Tensor]
*MARGINS, HEAD, OWN = LIMITS.scores  # for classes; for numbers; the one that a rung of the ladder brings along


@dataclass(frozen=True)
class ReplaceOptions:
    """Set how :func:`notsodeep.replace` trains a student.

    Parameters
    ----------
    width : int, optional
        Hidden units of the default student; by default those of a DEQ with as many parameters as the model has.
    steps, batch_size : int
        The most gradient steps, and the rows of each; training stops earlier where other rows gain nothing from it.
        More rows than a few thousand deserve more steps. With 0 steps a student that was given is taken as it is.
    lr : float
        The learning rate of Adam at the start; it falls to zero as a cosine.
    mixed : float
        New rows made by mixing others, per row of a batch: convex combinations of two rows, with noise. They are drawn
        from a pool that the model answers once.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.nn.ReplaceOptions(width=128, steps=500).batch_size
    128
    """

    width: int | None = None
    steps: int = 1200
    batch_size: int = 128
    lr: float = 2e-3
    mixed: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)
        if self.width is not None:
            positive_int("width", self.width, most=2**31)
        positive_int("batch_size", self.batch_size, most=2**31)
        positive_int("steps", self.steps, 0)
        not_negative("lr", self.lr)
        not_negative("mixed", self.mixed)


@dataclass(frozen=True)
class Data:
    """Rows with the model's answers to them, and what counts as the same answer."""

    rows: Tensor
    answers: Tensor
    agreement: Agreement

    @functools.cached_property
    def spread(self) -> float:
        """The standard deviation of an entry of a row."""
        return float(self.rows[:4096].std())

    @functools.cached_property
    def scale(self) -> Tensor:
        """The standard deviation of an output."""
        return self.answers.std().clamp_min(torch.finfo(self.answers.dtype).tiny)

    @functools.cached_property
    def temperature(self) -> Tensor:
        """The factor by which classes are softened: a quarter of the mean margin."""
        if self.agreement.tolerance is not None:
            return torch.ones_like(self.scale)
        return (margin(self.answers).mean() / 4.0).clamp_min(torch.finfo(self.answers.dtype).tiny)

    def differs(self, outputs: Tensor) -> Tensor:
        """Return, for every row, whether these outputs are another answer than the model's."""
        return self.agreement.differs(outputs, self.answers)

    def __getitem__(self, which: Any) -> Data:
        return Data(self.rows[which], self.answers[which], self.agreement)

    def __len__(self) -> int:
        return len(self.rows)


# ---- networks ------------------------------------------------------------------------------------------------


class Standardise(nn.Module):
    """Flatten rows, subtract the mean of each feature and divide by its standard deviation, as seen in some rows."""

    mean: Tensor
    scale: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        flat = rows.flatten(1)
        spread = flat.std(0)
        self.register_buffer("mean", flat.mean(0))
        # features that hardly vary must not become the largest ones
        self.register_buffer("scale", spread.clamp_min(0.1 * float(spread.mean()) + torch.finfo(spread.dtype).tiny))

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.mean) / self.scale


class Student(nn.Module):
    """One hidden layer of ReLU units between standardised rows and outputs of a given shape, scale and mean."""

    centre: Tensor
    spread: Tensor

    def __init__(self, data: Data, width: int) -> None:
        super().__init__()
        rows, answers = data.rows, data.answers
        like: dict[str, Any] = {"dtype": rows.dtype, "device": rows.device}
        self.shape = tuple(answers.shape[1:])
        self.standardise = Standardise(rows)
        self.hidden = nn.Linear(len(self.standardise.mean), width, **like)
        self.readout = nn.Linear(width, math.prod(self.shape), **like)
        self.register_buffer("centre", answers.reshape(len(answers), -1).mean(0))
        self.register_buffer("spread", data.scale)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.readout(torch.relu(self.hidden(self.standardise(x))))
        return (self.centre + self.spread * outputs).unflatten(1, self.shape or (1,)).reshape(-1, *self.shape)


def width_of(data: Data, model: Any) -> int:
    """Return the width of a DEQ with as many parameters as the model: m^2 + m (features + outputs)."""
    size = sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0
    ends = data.rows[0].numel() + data.answers[0].numel()
    return min(4096, max(64, round((math.sqrt(ends**2 + 4.0 * size) - ends) / 2.0))) if size else 256


class Scored(nn.Module):
    """A student with a score that says how sure it is: rows in, (outputs, score) out."""

    temperature: Tensor
    scale: Tensor

    def __init__(self, student: nn.Module, kind: str, data: Data, head_units: int = 64) -> None:
        super().__init__()
        self.student, self.kind = student, kind
        self.register_buffer("temperature", data.temperature)
        self.register_buffer("scale", data.scale)
        if kind == HEAD:
            self.standardise = Standardise(data.rows)
            size = len(self.standardise.mean) + data.answers[0].numel()
            like: dict[str, Any] = {"dtype": data.rows.dtype, "device": data.rows.device}
            self.head = nn.Sequential(nn.Linear(size, head_units, **like), nn.ReLU(), nn.Linear(head_units, 1, **like))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == OWN:
            return self.student(x)
        outputs = self.student(x)
        return outputs, self.score(x, outputs)

    def score(self, x: Tensor, outputs: Tensor) -> Tensor:
        """Return one number per row, the larger the surer."""
        if self.kind == HEAD:
            flat = outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]
            return self.head(torch.cat([self.standardise(x), flat / self.scale], 1))[:, 0]
        return margin(outputs if self.kind == MARGINS[0] else torch.softmax(outputs / self.temperature, 1))


def margin(outputs: Tensor) -> Tensor:
    """Return the difference of the two largest outputs of every row; of fields the mean over the pixels."""
    largest = outputs.topk(2, 1).values
    gap = largest[:, 0] - largest[:, 1]
    return gap if gap.ndim == 1 else gap.flatten(1).mean(1)


# ---- training ------------------------------------------------------------------------------------------------


def distil(
    student: nn.Module, data: Data, mixed: Data, held: Data, options: ReplaceOptions, seed: int, progress: bool | None
) -> None:
    """Train a student in place on rows and mixtures of them; the state nearest to the model on ``held`` rows stays."""
    best, since, state = math.inf, 0, copy.deepcopy(student.state_dict())
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=options.lr, fused=True)
    every = max(1, options.steps // 20)
    told = [f"distilling {len(data):,} rows"]
    student.train()
    for step in track(range(options.steps), options.steps, lambda: told[-1], progress):
        parts = [data[_draw(data, options.batch_size, generator)]]
        if len(mixed):
            parts.append(mixed[_draw(mixed, round(options.mixed * options.batch_size), generator)])
        rows, answers = torch.cat([part.rows for part in parts]), torch.cat([part.answers for part in parts])
        _descend(optimiser, _unlikeness(student(rows), answers, data), options.lr, step / options.steps)
        if (step + 1) % every == 0:
            outputs = in_batches(student.eval(), held.rows)
            student.train()
            told.append(f"distilling: differs on {float(held.differs(outputs).double().mean()):.2%}")
            loss = float(_unlikeness(outputs, held.answers, data))  # counts of few rows are too coarse to choose by
            if loss < best:
                best, since, state = loss, 0, copy.deepcopy(student.state_dict())
            since += 1
            if since > 8:  # of the twenty looks
                break
    student.load_state_dict(state)
    student.eval()


def train_head(scored: Scored, held: Data, mixed: Data, options: ReplaceOptions, seed: int) -> None:
    """Teach the head minus the logarithm of the student's error, on held rows and on mixtures of others."""
    assert held.agreement.tolerance is not None
    generator = torch.Generator().manual_seed(seed)
    mixed = mixed[: 2 * len(held)]
    pool = Data(torch.cat([held.rows, mixed.rows]), torch.cat([held.answers, mixed.answers]), held.agreement)
    outputs = in_batches(scored.student, pool.rows)
    error = (outputs - pool.answers).abs().reshape(len(outputs), -1).amax(1)
    target = -(error / held.agreement.tolerance).clamp_min(1e-6).log()
    optimiser = torch.optim.Adam(scored.head.parameters(), lr=options.lr, weight_decay=1e-4, fused=True)
    for step in range(LIMITS.head_steps):
        which = _draw(pool, 2 * options.batch_size, generator)
        found = scored.score(pool.rows[which], outputs[which])
        _descend(optimiser, nn.functional.smooth_l1_loss(found, target[which]), options.lr, step / LIMITS.head_steps)


def _unlikeness(outputs: Tensor, wanted: Tensor, data: Data) -> Tensor:
    """Return the squared error over the scale and, for classes, the cross entropy of soft answers."""
    squared = ((outputs - wanted) / data.scale).square().mean()
    if data.agreement.tolerance is not None:
        return squared
    soft = (wanted / data.temperature).softmax(1)
    return squared + nn.functional.cross_entropy(outputs / data.temperature, soft)


def mix(data: Data, ask: Ask, options: ReplaceOptions, seed: int, progress: bool | None) -> Data:
    """Return a pool of convex combinations of two rows each, with noise of a random size, answered once."""
    wanted = round(options.mixed * options.batch_size) * max(options.steps, 1)
    count = min(wanted, max(LIMITS.least_pool, LIMITS.pool_share * len(data))) if options.mixed else 0
    generator = torch.Generator().manual_seed(seed)
    rows = data.rows
    shape = (count, *[1] * (rows.ndim - 1))
    first, second = (rows[_draw(data, count, generator)] for _ in range(2))
    share, size = (torch.rand(shape, generator=generator, dtype=torch.float32).to(rows) for _ in range(2))
    noise = LIMITS.noise * data.spread * size
    mixed = torch.lerp(first, second, share) + noise * torch.randn(
        first.shape, generator=generator, dtype=torch.float32
    ).to(rows)
    batches = mixed.split(LIMITS.batch) if count else ()
    told = f"solving {count:,} mixed rows by the model"
    parts = [ask(batch) for batch in track(batches, len(batches), told, progress)]
    return Data(mixed, torch.cat([data.answers[:0], *parts]), data.agreement)


def _draw(data: Data, count: int, generator: torch.Generator) -> Tensor:
    """Return the numbers of random rows."""
    return torch.randint(len(data), (count,), generator=generator).to(data.rows.device)


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, lr: float, done: float) -> None:
    """Take a gradient step with a learning rate that falls to zero as a cosine."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    for group in optimiser.param_groups:
        group["lr"] = 0.5 * lr * (1.0 + math.cos(math.pi * done))
    optimiser.step()
