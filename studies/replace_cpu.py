"""The study ``replace`` at sizes for one core of a CPU: fewer rows and epochs, narrower DEQs, the same promises."""

from __future__ import annotations

from ._runner import Point, Setup, Study
from .replace import draw, point, runs
from .replace import points as small_points


def points(setup: Setup) -> list[Point]:
    """Return one point per DEQ; the quick ones are those of ``replace``."""
    if setup.quick:
        return small_points(setup)
    return [point(run, setup) for run in runs(256, trained=6000, measured=10_000, epochs=3, steps=500)]


STUDY = Study(
    shows="the same on one core, with narrower DEQs: also proofs, ladders and throughput",
    quick="20 s",
    full="10 min, one core",
    points=points,
    draw=draw,
)
