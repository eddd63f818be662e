"""Arguments are what their annotations say, in every public function, and numbers reach it as Python's own."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from fuzz.arguments import call, calls, parameters
from notsodeep._arguments import checked
from notsodeep.errors import ActivationError, InvalidInputError
from notsodeep.experiments import STUDIES

ROOMS = (nsd, nsd.nn, nsd.estimators, nsd.distributed, nsd.datasets, nsd.experiments, nsd.solve)
INSIDE = {  # called with what the library itself has made
    *("activation_names", "distributed.expand", "distributed.feature_sums"),
    *("datasets.names", "experiments.names", "nn.export_program", "nn.export_torchscript"),
    *("datasets.cifar10", "datasets.cifar10_vgg", "datasets.fashion_mnist"),
    *(f"solve.{n}" for n in ("features_of", "leave_one_out", "leave_rows_out", "nystrom")),
    *(f"solve.{n}" for n in ("pivoted_cholesky", "triangle_bytes")),
}


def test_every_public_function_is_fuzzed() -> None:
    public = {
        name if room is nsd else f"{room.__name__.split('.')[-1]}.{name}"
        for room in ROOMS
        for name in getattr(room, "__all__", ("reproduce", "names"))
        if inspect.isfunction(getattr(room, name))
        and (room is nsd or getattr(nsd, name, None) is not getattr(room, name))
    }
    assert public - set(calls()) == INSIDE


@pytest.mark.parametrize("name", [name for name in calls() if name not in ("nn.export_onnx", "experiments.reproduce")])
def test_the_sound_call_is_sound_and_an_array_is_no_flag(name: str) -> None:
    function, sound = calls()[name]
    call(function, sound())
    notes = {p.name: str(p.annotation) for p in inspect.signature(function).parameters.values()}
    for parameter in parameters(function, sound()):
        if notes.get(parameter) in ("bool", "bool | None"):
            with pytest.raises(InvalidInputError, match=f"{parameter} must be True or False"):
                function(**{**sound(), parameter: np.eye(2)})


def draw(times: int, bright: bool = True, scale: float = 1.0, kinks: nsd.Activation | None = None) -> tuple:
    return times, bright, scale, kinks


def test_numbers_arrive_as_plain_ones() -> None:
    found = checked(draw)(np.int64(3), np.bool_(False), scale=np.float32(0.5))
    assert found == (3, False, 0.5, None)
    assert [type(value) for value in found[:3]] == [int, bool, float]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"times": True}, "times must be a whole number"),
        ({"times": 10**400}, "an integer of 1329 bits"),
        ({"times": 1, "bright": 1}, "bright must be True or False, got 1"),
        ({"times": 1, "scale": math.nan}, "scale must be a number, got nan"),
        ({"times": 1, "scale": torch.eye(2)}, "scale must be a number"),
        ({"times": 1, "kinks": "relu"}, r"kinks must be a notsodeep\.Activation or None"),
    ],
)
def test_what_is_of_another_kind_is_named(given: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        checked(draw)(**given)


def test_activations_refuse_with_their_own_error() -> None:
    with pytest.raises(ActivationError, match="kinks must be a sequence of finite numbers"):
        nsd.Activation.from_callable(torch.tanh, kinks=torch.ones(3, device="meta"))


def test_a_kernel_that_vanishes_is_refused() -> None:
    X = 1e-182 * np.random.default_rng(0).standard_normal((20, 3))
    for solver in ("cholesky", "eigh", "cg"):
        with pytest.raises(InvalidInputError, match=r"scale the inputs up|all rows are zero"):
            nsd.DEQRegressor(sigma_a2=0.0, solver=solver).fit(X, X[:, 0])


def test_a_study_that_was_stopped_is_drawn_as_far_as_it_went(tmp_path) -> None:
    for name in ("sphere", "eigenvalues"):
        assert name in STUDIES
    found = nsd.experiments.reproduce("sphere", folder=tmp_path, time_limit=1e-9, progress=False)
    assert found["points"] == {}
    whole = nsd.experiments.reproduce("sphere", folder=tmp_path, progress=False)
    document = json.loads((tmp_path / "sphere" / "quick.json").read_text())
    first = next(iter(document["points"]))
    from notsodeep.plots.figures.kernels import draw_sphere

    assert set(draw_sphere({**whole, "points": {first: whole["points"][first]}}))


def test_a_plan_beyond_any_cluster_is_refused() -> None:
    rates = nsd.distributed.Rates(1e9, 1e9)
    for n, workers in ((10**15, 2), (1000, 10**15)):
        with pytest.raises(InvalidInputError, match="beyond what is planned"):
            nsd.distributed.plan(n, 10, workers, rates)
