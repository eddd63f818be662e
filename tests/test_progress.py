"""Bars appear on terminals and in notebooks, after a moment, and never where they are silenced."""

from __future__ import annotations

import io
import sys
import types

import pytest
from rich.console import Console

from notsodeep import _progress


class Handle:
    """What a notebook shows, as IPython's handle of a display."""

    shown: list

    def display(self, thing) -> None:
        self.shown.append(thing)

    def update(self, thing, raw: bool = False) -> None:
        self.shown.append(thing if raw else thing._repr_mimebundle_([], [])["text/plain"])


@pytest.fixture
def shown(monkeypatch):
    """The displays of a notebook without ipywidgets."""
    Handle.shown = []
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(DisplayHandle=Handle))
    monkeypatch.setattr(_progress, "Console", lambda stderr: Console(file=io.StringIO(), force_jupyter=True))
    return Handle.shown


def test_a_notebook_shows_a_bar_and_clears_it(shown):
    assert list(_progress.track(range(4), 4, "counting", progress=True)) == [0, 1, 2, 3]
    _, *drawn, last = shown
    assert "counting" in drawn[0]
    assert "0%" in drawn[0]
    assert last == {"text/plain": ""}


def test_a_notebook_shows_nothing_of_quick_or_silenced_work(shown):
    assert list(_progress.track(range(4), 4, "counting")) == [0, 1, 2, 3]
    assert list(_progress.track(range(4), 4, "counting", progress=False)) == [0, 1, 2, 3]
    assert shown == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_bar_and_a_pipe_does_not(monkeypatch, terminal):
    written = io.StringIO()
    monkeypatch.setattr(_progress, "Console", lambda stderr: Console(file=written, force_terminal=terminal))
    assert list(_progress.track(range(3), 3, "counting", progress=True)) == [0, 1, 2]
    assert ("counting" in written.getvalue()) is terminal
