"""Bars appear on terminals and in notebooks, after a moment, and never where they are silenced."""

from __future__ import annotations

import io
import sys
import time
import types

import numpy as np
import pytest
from rich.console import Console

import notsodeep as nsd
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


@pytest.mark.parametrize("terminal", [True, False])
def test_work_of_unknown_length_is_shown_after_a_while(monkeypatch, terminal):
    written = io.StringIO()
    monkeypatch.setattr(_progress, "Console", lambda stderr: Console(file=written, force_terminal=terminal))
    monkeypatch.setattr(_progress, "_PATIENCE", 0.01)
    with _progress.waiting("building"):
        time.sleep(0.3)
    assert ("building" in written.getvalue()) is terminal
    said = written.getvalue()
    with _progress.silent(), _progress.waiting("building"):
        time.sleep(0.1)
    assert written.getvalue() == said


def test_quick_work_of_unknown_length_shows_nothing(shown):
    with _progress.waiting("building"):
        pass
    assert shown == []


def test_a_notebook_shows_that_work_goes_on_and_clears_it(shown, monkeypatch):
    monkeypatch.setattr(_progress, "_PATIENCE", 0.01)
    with _progress.waiting("building"):
        time.sleep(0.1)
    assert "building" in str(shown)
    assert shown[-1] == {"text/plain": ""}


def test_tables_that_take_long_are_announced(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(_progress, "Console", lambda stderr: Console(file=written, force_terminal=True))
    monkeypatch.setattr(_progress, "_PATIENCE", 0.0)
    X = np.random.default_rng(0).standard_normal((60, 4))
    nsd.clear_caches()
    nsd.ck(nsd.DEQ("arctan", 0.1), X, progress=False)
    assert not written.getvalue()
    nsd.clear_caches()
    nsd.ck(nsd.DEQ("arctan", 0.1), X)
    assert "tables of a kernel" in written.getvalue()
