"""Any request to match and any document of a twin is answered or refused by an error of the library; nothing else."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from fuzz.damage import paths, replaced
from notsodeep.errors import NotSoDeepError
from notsodeep.matching import Twin

NAMES = ["tanh", "relu", "silu", "sin", "cos", "linear", "sigmoid", "leaky_relu", "hard_tanh"]
FAMILIES = ["auto", "hard_tanh", "leaky_relu", "quadratic", "hermite", "skip"]
KERNELS = ["ck", "ntk", "ntk_frozen"]
SCALES = st.one_of(st.floats(0.05, 20.0), st.floats(1e-300, 1e300))


def answer(call: Callable[[], Any]) -> Any:
    """What a call returns, or the library's own error; any other exception is a failure of the test."""
    try:
        return call()
    except NotSoDeepError as error:
        return error


def checked(twin: Twin) -> None:
    """What every twin that is handed out must be."""
    assert 0.0 <= twin.residual <= 1e-9  # what every match promises
    assert all(math.isfinite(v) for v in twin.coefficients.four)
    assert Twin.from_dict(json.dumps(twin.to_dict(), allow_nan=False)) == twin
    x = np.linspace(-3.0, 3.0, 7) * min(twin.tau0, 1e6)
    assert all(np.isfinite(np.asarray(phi(x))).all() for phi in twin.network.activations)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    share=st.floats(0.0, 0.99),
    tau0=SCALES,
    kernel=st.sampled_from(KERNELS),
    family=st.sampled_from(FAMILIES),
)
def test_match_answers_or_refuses(name: str, share: float, tau0: float, kernel: Any, family: Any) -> None:
    deq = nsd.DEQ(name, share * min(nsd.DEQ(name, 0.0).limit, 1.0), 0.5)
    found = answer(lambda: nsd.match(deq, tau0, kernel, family))
    if isinstance(found, Twin):
        checked(found)
    else:
        assert len(str(found)) > 20


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["tanh", "sin", "linear", "erf"])
def test_odd_activations_with_every_family(name: str, kernel: Any, family: Any) -> None:
    """Once a division by c2 = 0."""
    found = answer(lambda: nsd.match(nsd.DEQ(name, 0.15), 1.0, kernel, family))
    if isinstance(found, Twin):
        checked(found)
    else:
        assert isinstance(found, nsd.errors.InfeasibleMatchError)
        assert family in ("leaky_relu", "quadratic")


ODD_ARGUMENTS: list[Any] = [
    None,
    True,
    "x",
    "",
    -1,
    0,
    1e400,
    float("nan"),
    10**400,
    [1.0],
    {},
    (),
    np.zeros((3, 2)),
    1j,
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(range(len(ODD_ARGUMENTS))), min_size=4, max_size=4), st.integers(0, 15))
def test_arguments_of_the_wrong_kind(picks: list[int], which: int) -> None:
    good: list[Any] = [nsd.DEQ("tanh", 0.1), 1.0, "ck", "hard_tanh"]
    given_ = [ODD_ARGUMENTS[pick] if which >> i & 1 else good[i] for i, pick in enumerate(picks)]
    calls = (
        lambda: nsd.match(*given_),
        lambda: nsd.match_sphere(given_[0], given_[2]),
        lambda: nsd.match_one_layer(nsd.DEQ("relu", 0.1), given_[2], None, given_[1], given_[3]),
    )
    for call in calls:
        found = answer(call)
        assert isinstance(found, Twin) or 20 < len(str(found)) < 700


@functools.cache
def documents() -> list[dict[str, Any]]:
    """Of twins of three kinds, made when a test asks for them."""
    return [
        nsd.match(nsd.DEQ("relu", 0.2), 1.0, "ntk").to_dict(),
        nsd.match_sphere(nsd.DEQ("silu", 0.2), terms=5).to_dict(),
        nsd.match_one_layer(nsd.DEQ("relu", 0.2), tol=1e-2).to_dict(),
    ]


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["ck", "mixture", "relu", "affine", "hermite", "ENN"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=4,
)


@settings(max_examples=120, deadline=None)
@given(document=st.deferred(lambda: st.sampled_from(documents())), where=st.integers(0, 10_000), value=VALUES)
def test_damaged_documents_load_or_are_refused(document: dict[str, Any], where: int, value: Any) -> None:
    every = paths(document)
    damaged = replaced(document, every[where % len(every)], lambda _: value)
    found = answer(lambda: Twin.from_dict(damaged))
    if isinstance(found, Twin):
        assert Twin.from_dict(found.to_dict()) == found
        assert str(found)
    else:
        assert isinstance(found, NotSoDeepError)


def test_twins_of_huge_and_tiny_numbers_print_themselves_or_are_refused() -> None:
    """Once they were loaded, and str() failed."""
    hermite = nsd.match(nsd.DEQ("tanh", 0.2), 1.0, "ck", "hermite").to_dict()
    for document in (*documents(), hermite):
        for path in paths(document):
            for value in (1e300, -1e300, 5e-324, -1, []):
                found = answer(lambda d=document, p=path, v=value: Twin.from_dict(replaced(d, p, lambda _: v)))
                if isinstance(found, Twin):
                    assert str(found)
                    assert answer(lambda twin=found: nsd.pytorch_code(twin))


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(), st.binary().map(lambda b: b.decode("latin1"))), cut=st.integers(0, 1400))
def test_any_text_is_refused(text: str, cut: int) -> None:
    for attempt in (text, json.dumps(documents()[0])[:cut] + text):
        with pytest.raises(NotSoDeepError):
            Twin.from_dict(attempt)


@pytest.mark.parametrize("tau0", [1e-300, 1e-31, 1e31, 1e100, 1e300])
def test_scales_without_fourth_powers_are_named(tau0: float) -> None:
    for kernel in KERNELS:
        with pytest.raises(NotSoDeepError, match=r"tau0 must be a number from 1e-30 to 1e\+30, got 1e"):
            nsd.match(nsd.DEQ("tanh", 0.2), tau0, kernel)  # type: ignore[arg-type]
