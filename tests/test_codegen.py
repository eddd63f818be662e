"""PyTorch source: it computes what the activation computes, and nothing that was put into a name."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Activation, Hermite, activation_classes
from notsodeep.errors import InvalidInputError

EVERY = [cls for cls in activation_classes() if cls.name != "affine"]
WRAPPED = {"gain": -1.5, "scale": 0.7, "skip": 0.2, "shift": -0.1}
X = torch.linspace(-5, 5, 201, dtype=torch.float64)


def executed(source: str) -> dict:
    names: dict = {}
    exec(source, names)
    return names


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.name)
@pytest.mark.parametrize("wrapping", [{}, WRAPPED], ids=["bare", "wrapped"])
def test_source_computes_the_activation(cls, wrapping):
    phi = cls().affine(**wrapping)
    layer = executed("import math\nimport torch\n" + "\n".join(phi.source_lines("layer")))["layer"]
    torch.testing.assert_close(layer(X), phi(X), rtol=tolerance(), atol=tolerance())


def test_source_of_many_orders_keeps_its_digits():
    phi = Hermite(tuple(1.0 / (1 + k) for k in range(31)), 1.3).affine(gain=0.5, shift=0.2)
    layer = executed("import math\nimport torch\n" + "\n".join(phi.source_lines("layer")))["layer"]
    torch.testing.assert_close(layer(X / 2), phi(X / 2), rtol=tolerance(), atol=tolerance())


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.name)
def test_the_functions_and_modules_of_torch_are_known(cls):
    for form in cls.torch_forms:
        function = form() if isinstance(form, type) else form
        assert nsd.activation(function) == cls()
        torch.testing.assert_close(function(X), cls()(X), rtol=tolerance(), atol=tolerance())


def test_modules_with_other_parameters_are_read_or_taken_as_functions():
    modules = [torch.nn.LeakyReLU(0.3), torch.nn.ELU(0.7), torch.nn.Hardtanh(-2.0, 2.0), torch.nn.Softplus(beta=2.0)]
    for module in modules:
        torch.testing.assert_close(nsd.activation(module)(X), module(X), rtol=tolerance(), atol=tolerance())
    assert nsd.activation(torch.nn.GELU(approximate="tanh")) != nsd.activation("gelu")


ATTACKS = [
    'x"""\nimport os; os.environ["TAKEN"] = "yes"\n"""',
    "x'''\nraise SystemExit\n'''",
    'end\\"""\n1/0\n#',
    "\u2028line",
]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_name_does_not_become_code(name, monkeypatch):
    monkeypatch.delenv("TAKEN", raising=False)
    own = Activation.from_callable(torch.tanh, name=name)
    assert "\n" not in repr(own)
    plain = nsd.match(nsd.DEQ("tanh", 0.2), 1.0)
    twin = dataclasses.replace(plain, deq=nsd.DEQ(own, 0.2))
    names = executed(nsd.pytorch_code(twin, 3, 8, 2))

    assert "TAKEN" not in os.environ
    assert names["Twin"]()(torch.zeros(4, 3)).shape == (4, 2)
    assert "CallableActivation" in names["Twin"].__doc__


@pytest.mark.parametrize("size", ["3): pass\nimport os\n#", 2.5, True, 0, -1, 10**400, None])
@pytest.mark.parametrize("argument", ["in_features", "width", "out_features"])
def test_sizes_are_whole_numbers(argument, size):
    twin = nsd.match(nsd.DEQ("tanh", 0.2), 1.0)
    with pytest.raises(InvalidInputError, match=argument):
        nsd.pytorch_code(twin, **{argument: size})


@pytest.mark.parametrize("name", ["mish", "hard_swish"])
def test_a_new_activation_is_at_home_everywhere(name, tmp_path):
    """Kernels are covered with the others; here a twin, its source, and networks of finite width, exported."""
    deq = nsd.DEQ(name, sigma_a2=0.1)
    twin = nsd.match(deq, 1.0)
    assert twin.residual < 1e-9  # what every match promises
    assert "def layer_1" in nsd.pytorch_code(twin)
    assert nsd.network_from_dict(deq.to_dict()) == deq
    points = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nsd.nn.DEQ(deq, in_features=7, width=64, out_features=2, dtype=torch.float64)
    assert torch.isfinite(model(points)).all()
    explicit = nsd.nn.ENN(nsd.ENN([name]), in_features=7, width=16, out_features=2, dtype=torch.float64)
    program = torch.export.export(explicit, (points,))
    torch.testing.assert_close(program.module()(points), explicit(points), rtol=tolerance(), atol=tolerance())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mish", "hard_swish"])
def test_a_new_activation_exports_to_onnx(name, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = nsd.nn.ENN(nsd.ENN([name]), in_features=7, width=16, out_features=2)
    path = nsd.nn.export_onnx(model, tmp_path / "model.onnx")
    points = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    (out,) = runtime.InferenceSession(str(path)).run(None, {"x": points.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(out), model(points).detach(), rtol=ulps(64, torch.float32), atol=ulps(64, torch.float32)
    )
