"""One-layer twins wherever a twin runs: export, compilation, orthogonal weights; batches of any size."""

from __future__ import annotations

import functools
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import ulps
from notsodeep.errors import NotSoDeepWarning
from studies._data import load

CASES = ("tanh ck", "relu ck", "relu ntk", "thresholds", "bias")


def usually(*names: str) -> list[Any]:
    """Every case; all but these in the longer run."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


pytestmark = pytest.mark.filterwarnings("ignore:.*have norms outside")  # rows of all norms run, the zero row too
X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)) / 2
X[3] = 0.0
X[4] *= 20.0  # beyond the norms of any range


@functools.cache
def twin(name: str) -> nsd.Twin:
    relu = nsd.DEQ("relu", 0.2)
    designs = {
        "tanh ck": lambda: nsd.match_one_layer(nsd.DEQ("tanh", 0.2)),
        "relu ck": lambda: nsd.match_one_layer(relu, units="conditioned"),
        "relu ntk": lambda: nsd.match_one_layer(relu, "ntk", trains="readout"),  # log|u| and sign(u)
        "thresholds": lambda: nsd.match_one_layer(relu, units="thresholds"),
        "bias": lambda: nsd.match_one_layer(nsd.DEQ("tanh", 0.2, sigma_c2=0.3)),
    }
    return designs[name]()


def module(name: str, width: int = 33) -> nsd.nn.ENN:
    return nsd.nn.ENN(twin(name), 4, width, 3, kernel="ntk")


@pytest.mark.parametrize("name", usually("tanh ck", "relu ntk", "thresholds"))
def test_torch_export(name: str) -> None:
    model = module(name)
    program = torch.export.export(model, (X,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}).module()
    for x in (X, X[:1], X[3:4]):
        expected = model(x)
        assert bool(torch.isfinite(expected).all())
        torch.testing.assert_close(program(x), expected)


@pytest.mark.parametrize("name", ["tanh ck", "thresholds"])
def test_a_cast_to_few_digits_and_back_leaves_the_units_as_they_are(name: str) -> None:
    """Weights are rounded for good, as torch does it; the constants of the units are no weights."""
    model = module(name)
    weights = {key: value.bfloat16().float() for key, value in model.state_dict().items()}
    cast = module(name).bfloat16().float()
    model.load_state_dict(weights)
    assert torch.equal(cast(X), model(X))


@pytest.mark.parametrize("name", usually("relu ck"))
def test_onnxruntime_computes_the_same(name: str, tmp_path) -> None:
    """The zero row too: optimisers of graphs must not drop what keeps its logarithm finite."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = module(name)
    session = runtime.InferenceSession(str(nsd.nn.export_onnx(model, tmp_path / "model.onnx")))
    for x in (X, X[:1]):
        (y,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(
            y, model(x).detach().numpy(), rtol=ulps(64, torch.float32), atol=ulps(64, torch.float32)
        )


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of itself
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("tanh", "aot_eager"),
        pytest.param("relu", "inductor", marks=pytest.mark.slow),
        pytest.param("tanh", "inductor", marks=pytest.mark.slow),
        pytest.param("silu", "inductor", marks=pytest.mark.slow),
    ],
)
def test_torch_compile_takes_a_one_layer_twin_as_one_graph(name: str, backend: str) -> None:
    """Forward and backward, without a graph break."""
    model = nsd.nn.ENN(nsd.match_one_layer(nsd.DEQ(name, 0.2)), in_features=4, width=33, out_features=3, kernel="ntk")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(X), model(X))
    gradients = []
    for function in (compiled, model):
        model.zero_grad(set_to_none=True)
        function(X).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=ulps(512, torch.float32), atol=ulps(64, torch.float32))


@pytest.mark.parametrize("name", ["tanh ck", "relu ck"])
def test_orthogonal_weights_have_the_same_kernel_with_smaller_fluctuations(name: str) -> None:
    x = load("digits").first(60).standardised().X_train.astype(float)
    exact, rows = twin(name).kernel_matrix(x), torch.from_numpy(x)
    errors, mean = {}, {}
    for init in ("gaussian", "orthogonal"):
        models = [nsd.nn.ENN(twin(name), 64, 256, 1, s, init=init, dtype=torch.float64) for s in range(12)]
        kernels = [(z @ z.mT).detach().numpy() for z in (model.features(rows) for model in models)]
        errors[init] = np.mean([np.linalg.norm(K - exact) for K in kernels])
        mean[init] = np.linalg.norm(np.mean(kernels, 0) - exact)
    assert errors["orthogonal"] < 0.8 * errors["gaussian"]
    assert mean["orthogonal"] < 0.5 * errors["orthogonal"]  # the error is chance: it falls as the root of twelve


def test_a_module_and_its_source_say_once_that_rows_lie_outside_the_range() -> None:
    tanh = nsd.match_one_layer(nsd.DEQ("tanh", 0.2), norms=(0.5, 1.5))
    inside, outside = torch.full((3, 4), 0.5), torch.tensor([[1.0, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    model, names = nsd.nn.ENN(tanh, 4, 16, 1), {}
    exec(nsd.pytorch_code(tanh, 4, 16, 1), names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(inside), names["Twin"]()(inside)
    with pytest.warns(NotSoDeepWarning, match=r"1 of 2 rows have norms outside 0.5 to 1.5 \(the norms are 1 to 9\)"):
        model(outside)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(outside)
        torch.func.vmap(nsd.nn.ENN(tanh, 4, 16, 1))(outside)  # no numbers to look at
    with pytest.warns(UserWarning, match="norms outside 0.5 to 1.5: the error is not bounded there"):
        names["Twin"]()(outside)
    exec(nsd.pytorch_code(nsd.match_one_layer(nsd.DEQ("tanh", 0.2), norms=(1.0, 1.0)), 4, 16, 1), names)
    with pytest.warns(UserWarning, match="norms outside 1 to 1: the error is not bounded there"):
        names["Twin"]()(outside)
    for call in (tanh.kernel_matrix, tanh.verify, lambda X: tanh.kernel_matrix(inside, X)):
        with pytest.warns(NotSoDeepWarning, match="its error is not bounded beyond"):
            call(outside)
    assert "nothing is bounded at other norms" in str(tanh)
