"""The standard parametrisation: the function of the other one at the start, at the learning rates everyone uses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import solved, tolerance
from notsodeep.errors import InvalidInputError

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / math.sqrt(5)
TANH, RELU = nsd.DEQ("tanh", 0.2), nsd.DEQ("relu", 0.2)

MODELS = {
    "deq": lambda **o: nsd.nn.DEQ(RELU, 5, 32, 3, **o),
    "biased": lambda **o: nsd.nn.DEQ(nsd.DEQ("tanh", 0.2, 0.5, 0.3, readout="pre-activation"), 5, 32, 3, **o),
    "one layer": lambda **o: nsd.nn.ENN(nsd.match_one_layer(RELU), 5, 32, 3, kernel="ntk", **o),
    "two layers": lambda **o: nsd.nn.ENN(nsd.match(RELU, 1.0), 5, 24, 3, **o),
    "orthogonal": lambda **o: nsd.nn.ENN(nsd.ENN(["erf", "relu"]), 5, 32, 3, init="orthogonal", **o),
}


def pair(name: str, **options) -> list:
    if name in ("deq", "biased"):
        options["solver"] = nsd.nn.SolverOptions(tol=1e-12)
    return [MODELS[name](parametrisation=p, dtype=torch.float64, **options) for p in ("ntk", "standard")]


@pytest.mark.parametrize("name", MODELS)
def test_both_are_one_function_at_the_start(name: str) -> None:
    theory, standard = pair(name)
    torch.testing.assert_close(standard(X), theory(X), rtol=0, atol=solved(1e-12))
    assert f"parametrisation={standard.parametrisation!r}" in repr(standard)
    for weight in standard.parameters():
        if weight.ndim == 2 and weight.numel() > 100:
            assert 0.8 < float(weight.detach().std()) * math.sqrt(weight.shape[1]) < 1.2


@pytest.mark.parametrize("name", MODELS)
def test_adam_at_a_rate_is_adam_at_that_rate_times_the_root_of_the_fan_in(name: str) -> None:
    models = pair(name)
    for model in models:
        standard = model.parametrisation == "standard"
        factor = {id(p): 1.0 if standard or p.ndim < 2 else math.sqrt(p.shape[1]) for p in model.parameters()}
        groups = [{"params": [p], "lr": 1e-3 * factor[id(p)]} for p in model.parameters()]
        optimiser = torch.optim.Adam(groups, eps=1e-300)
        for _ in range(3):
            optimiser.zero_grad()
            model(X).square().sum().backward()
            optimiser.step()
    # a gradient is a sum of 32 terms: Adam divides it by its own size, so that its rounding error counts in full
    torch.testing.assert_close(models[1](X), models[0](X), rtol=0, atol=solved(1e-12, 0.999))


@pytest.mark.parametrize("bias", [False, True])
def test_readouts_in_closed_form_are_one_function(bias: bool) -> None:
    models = pair("one layer", bias=bias)
    for model in models:
        nsd.nn.fit_readout(model, (X, X[:, :3]), ridge=1e-2)
    torch.testing.assert_close(models[1](X), models[0](X), rtol=tolerance(), atol=tolerance())


def test_a_contraction_is_the_same_number() -> None:
    theory, standard = pair("deq")
    assert standard.contraction() == pytest.approx(theory.contraction(), rel=1e-4)  # by power iteration


@pytest.mark.parametrize("name", ["deq", "one layer"])
def test_files_remember_it(name: str, tmp_path) -> None:
    model = MODELS[name](parametrisation="standard")
    nsd.nn.save(model, tmp_path / "model.safetensors")
    again = nsd.nn.load(tmp_path / "model.safetensors")
    assert again.parametrisation == "standard"
    assert torch.equal(again(X.float()), model(X.float()))


@pytest.mark.parametrize("twin", [nsd.match_one_layer(RELU), nsd.match(TANH, 1.0, kernel="ntk")], ids=["one", "two"])
def test_source_is_the_module(twin: nsd.Twin) -> None:
    names: dict = {}
    exec(nsd.pytorch_code(twin, 5, 32, 3, parametrisation="standard"), names)
    source, module = names["Twin"]().double(), nsd.nn.ENN(twin, 5, 32, 3, parametrisation="standard").double()
    assert 0.5 < float(source.readout.detach().std()) * math.sqrt(32) < 1.5
    own = {name: value for name, value in module.state_dict().items() if not name.startswith("_")}
    source.load_state_dict(own)
    torch.testing.assert_close(source(X), module(X), rtol=tolerance(), atol=tolerance())


def test_digits_are_learnt_at_the_usual_rate() -> None:
    """Five epochs with Adam at 1e-3: a plain layer of torch reaches 82 %, weights of unit variance 57 %."""
    images, y = load_digits(return_X_y=True)
    rows, test = nsd.standardise(images[:1400], images[1400:])
    twin = nsd.match_one_layer(RELU, "ntk")
    reached = []
    for parametrisation in ("ntk", "standard"):
        model = nsd.nn.ENN(twin, 64, 256, 10, parametrisation=parametrisation)
        history = nsd.nn.fit(model, (rows, y[:1400]), optimiser="adam", lr=1e-3, epochs=5, validation=(test, y[1400:]))
        reached.append(history.last.validation_accuracy)
    assert reached[0] < 0.6
    assert reached[1] > 0.85


def test_usual_rates_are_the_default() -> None:
    data = (np.eye(5, dtype=np.float32), [0, 1, 2, 0, 1])
    named, given = (MODELS["two layers"](parametrisation="standard") for _ in range(2))
    nsd.nn.fit(named, data, optimiser="adam", epochs=2)
    nsd.nn.fit(given, data, optimiser="adam", lr=1e-3, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), given.parameters(), strict=True))


@pytest.mark.parametrize("name", ["deq", "one layer"])
def test_rows_of_another_type_are_refused_with_what_to_do(name: str) -> None:
    model = MODELS[name]()
    with pytest.raises(InvalidInputError, match=r"float64.*float32.*pass x.to\(torch.float32\), or model.to"):
        model(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(X.bfloat16())).all()
    with pytest.raises(InvalidInputError, match="parametrisation"):
        MODELS[name](parametrisation="mup")
