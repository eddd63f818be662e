"""What a training run leaves behind, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Epoch", "History"]


@dataclass(frozen=True)
class Epoch:
    """One pass over the data. Loss and accuracy are means over the epoch's batches, as they were seen."""

    epoch: int
    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class History:
    """Every epoch of a run, and the time the frozen features took, which is spent once."""

    method: str
    epochs: tuple[Epoch, ...]
    feature_seconds: float = 0.0

    @property
    def last(self) -> Epoch:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def seconds(self) -> float:
        """The time of the whole run."""
        return self.feature_seconds + sum(epoch.seconds for epoch in self.epochs)

    def column(self, name: str) -> list[Any]:
        """One quantity over the epochs, for example ``"loss"``."""
        return [getattr(epoch, name) for epoch in self.epochs]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        end = self.last
        seen = "" if end.accuracy is None else f", accuracy {end.accuracy:.4f}"
        held = "" if end.validation_accuracy is None else f", validation accuracy {end.validation_accuracy:.4f}"
        return f"History({self.method}, {len(self)} epochs, loss {end.loss:.4g}{seen}{held}, {self.seconds:.2f} s)"
