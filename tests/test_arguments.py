"""Arguments are what their annotations say, in every public function, and numbers reach it as Python's own."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import notsodeep as nsd
from fuzz.arguments import call, calls, parameters
from notsodeep._arguments import checked
from notsodeep.errors import ActivationError, InvalidInputError

FUZZED = ("nn.fit", "nn.fit_readout", "nn.load", "nn.save")


def test_every_public_function_is_fuzzed() -> None:
    public = {name for name in nsd.__all__ if inspect.isfunction(getattr(nsd, name))} - {"clear_caches"}
    assert {*public, *FUZZED} <= set(calls())


@pytest.mark.parametrize("name", calls())
def test_the_sound_call_is_sound_and_an_array_is_no_flag(name: str) -> None:
    function, sound = calls()[name]
    call(function, sound())
    notes = {p.name: str(p.annotation) for p in inspect.signature(function).parameters.values()}
    for parameter in parameters(function, sound()):
        if notes.get(parameter) in ("bool", "bool | None"):
            with pytest.raises(InvalidInputError, match=f"{parameter} must be True or False"):
                function(**{**sound(), parameter: np.eye(2)})


def draw(times: int, bright: bool = True, scale: float = 1.0, phi: nsd.Activation | None = None) -> tuple:
    return times, bright, scale, phi


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
        ({"times": 1, "phi": "relu"}, r"phi must be a notsodeep\.Activation or None, got 'relu'"),
    ],
)
def test_what_is_of_another_kind_is_named(given: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        checked(draw)(**given)


Kernel = Literal["ck", "ntk"]


def mixed(
    kernel: Kernel | None,
    width: int | Sequence[int] = 1,
    path: str | Path | None = None,
    call: Callable[..., Any] = len,
    rows: np.ndarray | None = None,
    of: Unseen = None,  # noqa: F821
) -> tuple:
    return kernel, width, path, call


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernel": "nkt"}, "kernel must be one of 'ck', 'ntk' or None, got 'nkt'"),
        ({"kernel": ["ck"]}, "kernel must be one of"),
        ({"kernel": np.eye(2)}, "kernel must be one of"),
        (
            {"kernel": "ck", "width": "8"},
            "width must be a whole number of at most 64 bits or a sequence of whole numbers",
        ),
        ({"kernel": "ck", "width": [1, 2.5]}, "a sequence of whole numbers, got"),
        ({"kernel": "ck", "path": "a\0"}, "path must be a path or None"),
        ({"kernel": "ck", "call": 3}, "call must be a function, got 3"),
    ],
)
def test_every_entry_and_every_part_of_a_union_is_checked(given: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        checked(mixed)(**given)


def test_arrays_and_names_of_type_checkers_alone_are_left_to_the_function() -> None:
    found = checked(mixed)("ck", np.array([2, 3]), "file", rows="anything", of="anything")
    assert found == ("ck", (2, 3), "file", len)
    assert checked(draw)(np.array(3)[()], scale=np.array(2)) == (3, True, 2.0, None)


def test_activations_refuse_with_their_own_error() -> None:
    with pytest.raises(ActivationError, match="kinks must be a sequence of finite numbers"):
        nsd.Activation.from_callable(torch.tanh, kinks=torch.ones(3, device="meta"))


def test_a_kernel_that_vanishes_is_refused() -> None:
    X = 1e-182 * np.random.default_rng(0).standard_normal((20, 3))
    for solver in ("cholesky", nsd.solve.CG()):
        with pytest.raises(InvalidInputError, match=r"scale the inputs up|all rows are zero"):
            nsd.DEQRegressor(sigma_a2=0.0, solver=solver, scale=None).fit(X, X[:, 0])


@pytest.mark.parametrize("function", [nsd.ck, nsd.ntk, nsd.kernels_of])
def test_a_call_is_checked_once(function: Callable[..., Any]) -> None:
    """Kernels check what they are given; the functions that they call do not check it again."""
    network, X, checks = nsd.DEQ("relu", 0.2), np.eye(10), []

    def count(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "inside" and code.co_filename.endswith("_arguments.py"):
            checks.append(code)

    function(network, X)  # the first call reads annotations
    sys.setprofile(count)
    try:
        function(network, X)
    finally:
        sys.setprofile(None)
    assert len(checks) == 1
