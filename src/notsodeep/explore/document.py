"""The page as one document: style, script, the list of controls and sections, and perhaps stored numbers."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from multiprocessing import get_context
from typing import Any

import torch

from .. import __version__
from .._progress import track
from .controls import STORED, Control, controls, settings_from, stored_controls
from .sections import SECTIONS, answer, is_quick

_FEW = 50  # questions: starting processes takes longer
_SLOW = (
    "The twin of this activation takes about a minute to design, so its numbers are not stored here. Run the command "
    "“notsodeep explore” to see it."
)


def page() -> str:
    """Return the page that asks its server for numbers."""
    return _filled(controls(), None)


def stored_page(stops: Mapping[str, tuple[Any, ...]] = STORED) -> str:
    """Return the page with the numbers at all of its stops: one file that needs no server.

    Parameters
    ----------
    stops : mapping of names of controls to tuples
        What is stored: all activations unless it names some; a control that is not named stays where it starts.
    """
    shown = stored_controls(stops)
    asked = list(_stops(shown))
    jobs = os.cpu_count() or 1 if len(asked) > _FEW else 1
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        answers = map(_answer, asked) if jobs == 1 else pool.map(_answer, asked, chunksize=8)
        stored = dict(track(answers, len(asked), "numbers of the explorer"))
    return _filled(shown, stored)


def _answer(asked: tuple[str, dict[str, str]]) -> tuple[str, Any]:
    """Return how the page asks for a section, and the answer."""
    section = next(section for section in SECTIONS if section.name == asked[0])
    settings = settings_from(asked[1], section.needs)
    late = section.slow and not is_quick(settings)
    key = "&".join([f"section={section.name}", *(f"{name}={asked[1][name]}" for name in section.needs)])
    return key, {"error": _SLOW} if late else answer(section, settings)


def _stops(shown: Sequence[Control]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of every section with every combination of the stops of its controls; one network at a time."""
    for section in SECTIONS:
        needed = [control for control in shown if control.name in section.needs]
        for stops in itertools.product(*(control.stops for control in needed)):
            yield section.name, {control.name: str(stop) for control, stop in zip(needed, stops, strict=True)}


def _filled(shown: Sequence[Control], stored: dict[str, Any] | None) -> str:
    """Return the template with its parts; the policy names the one script and the one style that may run."""
    style, script = _read("style.css"), _read("chart.js") + _read("page.js")
    sections = [{"name": s.name, "title": s.title, "needs": s.needs, "wide": s.wide} for s in SECTIONS]
    setup = {"controls": [c.to_dict() for c in shown], "sections": sections, "stored": stored, "version": __version__}
    text = json.dumps(setup, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"style": style, "script": script, "styleHash": _hash(style), "scriptHash": _hash(script), "setup": text}
    document = _read("page.html")
    for name, content in parts.items():
        document = document.replace(f"{{{{{name}}}}}", content)
    return document


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
