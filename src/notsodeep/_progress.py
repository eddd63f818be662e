"""The progress bar of long loops: it appears on a terminal, after a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_T = TypeVar("_T")


def track(
    items: Iterable[_T], total: int, description: str | Callable[[], str], progress: bool | None = None
) -> Iterator[_T]:
    """Yield ``items``; ``progress`` True shows a bar at once, False never, None on a terminal after a moment.

    A ``description`` that is a function is asked again after every item.
    """
    shown = progress if progress is not None else sys.stderr.isatty()
    if not shown:
        yield from items
        return
    started = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    told = description if callable(description) else lambda: description
    task = bar.add_task(told(), total=total)
    try:
        for item in items:
            if not bar.live.is_started and (progress or time.monotonic() - started > 1.5):
                bar.start()
            yield item
            bar.update(task, advance=1, description=told())
    finally:
        if bar.live.is_started:
            bar.stop()
