"""The progress bar of long loops: it appears on terminals and in notebooks, after a moment."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_T = TypeVar("_T")
_PATIENCE = 2.0  # seconds
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def track(
    items: Iterable[_T], total: int, description: str | Callable[[], str], progress: bool | None = None
) -> Iterator[_T]:
    """Yield ``items``; ``progress`` True shows a bar at once, False never, None after two seconds.

    A ``description`` that is a function is asked again after every item. Where the standard error stream is neither a
    terminal nor a notebook, nothing is written.
    """
    console = Console(stderr=True)
    if progress is False or not (console.is_terminal or console.is_jupyter):
        yield from items
        return
    text = description if callable(description) else lambda: description
    due, bar = time.monotonic() + (0.0 if progress else _PATIENCE), None
    try:
        for done, item in enumerate(items):
            if bar is None and time.monotonic() >= due:
                bar = _bar(console)
                bar.start()
                task = bar.add_task(text(), total=total, completed=done)
            yield item
            if bar is not None:
                bar.update(task, advance=1, description=text())
    finally:
        if bar is not None:
            bar.stop()


@contextlib.contextmanager
def silent(really: bool = True) -> Iterator[None]:
    """Show no waiting inside, where somebody has asked for silence or another bar is shown."""
    before = _silent.set(really or _silent.get())
    try:
        yield
    finally:
        _silent.reset(before)


@contextlib.contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show after two seconds that work of unknown length goes on, where :func:`track` would show a bar."""
    console = None if _silent.get() else Console(stderr=True)
    if console is None or not (console.is_terminal or console.is_jupyter):
        yield
        return
    bar, lock, over = _bar(console, TimeElapsedColumn()), threading.Lock(), False

    def show() -> None:
        with lock:
            if not over:
                bar.start()
                bar.add_task(description, total=None)

    timer = threading.Timer(_PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        with silent():  # one is enough
            yield
    finally:
        timer.cancel()
        with lock:
            over = True
            if bar.tasks:
                bar.stop()


class _NotebookBar(Progress):
    """A bar that a notebook redraws in place; a started Progress needs ipywidgets for that."""

    def start(self) -> None:
        from IPython.display import DisplayHandle  # a notebook has it

        self._handle, self._drawn = DisplayHandle(), time.monotonic()
        self._handle.display(self)

    def update(self, *args: Any, **fields: Any) -> None:
        super().update(*args, **fields)
        if time.monotonic() > self._drawn + 0.25:
            self.refresh()

    def refresh(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self)

    def stop(self) -> None:
        self._handle.update({"text/plain": ""}, raw=True)


def _bar(console: Console, *columns: Any) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *(columns or (TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())),
    )
    kind = _NotebookBar if console.is_jupyter else Progress
    return kind(*columns, console=console, transient=True)
