"""Saving, loading, exporting: the same numbers come back, and damage never passes for a network."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import ulps
from notsodeep.activations import Activation, Hermite, LeakyReLU
from notsodeep.errors import CheckpointError, InvalidInputError, SerialisationError
from notsodeep.nn import SolverOptions, checkpoint
from notsodeep.nn.checkpoint import read_file, write_file

X = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
TWIN_LIKE = nsd.ENN([LeakyReLU(0.1, 1.2).affine(shift=-0.3), Hermite((0.1, 0.6, 0.2, 0.1), scale=0.9)])


def rated(model: nsd.nn.ENN) -> nsd.nn.ENN:
    model.learning_rates = (1.0, 0.5, 2.0)
    return model


MODELS = {
    "deq": lambda: nsd.nn.DEQ(
        nsd.DEQ("silu", 0.15, 0.7), 4, 12, 2, seed=3, kernel="ntk_frozen", solver=SolverOptions(tol=1e-6), bias=True
    ),
    "enn": lambda: rated(nsd.nn.ENN(TWIN_LIKE, 4, 12, 2, seed=3, kernel="ntk_frozen")),
    "pre-activation": lambda: nsd.nn.DEQ(nsd.DEQ("tanh", 0.2, 0.5, 0.3, readout="pre-activation"), 4, 12, 2),
    "sphere": lambda: nsd.nn.ENN(nsd.match_sphere(nsd.DEQ("tanh", 0.2), terms=3), 4, 12, 2, dtype=torch.float64),
}


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path) -> None:
    model = MODELS[name]()
    nsd.nn.save(model, tmp_path / "model.safetensors")
    again = nsd.nn.load(tmp_path / "model.safetensors")
    x = X.to(model.readout.dtype)
    assert torch.equal(again(x), model(x))
    assert again.config() == model.config()
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert [f.name for f in tmp_path.iterdir()] == ["model.safetensors"]  # nothing temporary is left


def test_the_specification_can_be_read_without_us(tmp_path) -> None:
    nsd.nn.save(MODELS["deq"](), tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    document = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["document"])
    assert document["spec"]["sigma_a2"] == 0.15


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(position: float, bit: int, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("flip") / "model.safetensors"
    nsd.nn.save(MODELS["enn"](), path)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        again = nsd.nn.load(path)
    except CheckpointError:
        return
    # a flip in unused header space may leave the content as it was, and only then may it pass
    assert torch.equal(again(X), MODELS["enn"]()(X))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_cut_short_is_refused(share: float, tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    nsd.nn.save(MODELS["deq"](), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match="damaged"):
        nsd.nn.load(path)


def test_files_of_another_kind_are_refused(tmp_path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match="not written by notsodeep"):
        nsd.nn.load(tmp_path / "foreign.safetensors")
    write_file(tmp_path / "other.safetensors", {"a": torch.ones(2)}, {"kind": "checkpoint"})
    with pytest.raises(CheckpointError, match="holds a checkpoint"):
        nsd.nn.load(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        nsd.nn.load(tmp_path / "missing.safetensors")
    with pytest.raises(InvalidInputError, match="must be a notsodeep"):
        nsd.nn.save(torch.nn.Linear(2, 2), tmp_path / "linear.safetensors")


def test_a_network_that_is_not_finite_is_refused(tmp_path) -> None:
    model, path = MODELS["enn"](), tmp_path / "model.safetensors"
    nsd.nn.save(model, path)
    before = path.read_bytes()
    with torch.no_grad():
        model.weights[1][0, 0] = float("nan")
    with pytest.raises(CheckpointError, match="is not written: a tensor holds NaN"):
        nsd.nn.save(model, path)
    assert path.read_bytes() == before


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, {"a": torch.ones(2)}, {"version": 1})

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("notsodeep._files.os.fsync", fail)
    with pytest.raises(CheckpointError, match="cannot be written: disk full"):
        write_file(path, {"a": torch.zeros(2)}, {"version": 2})
    monkeypatch.undo()
    tensors, document = read_file(path)
    assert document == {"version": 1}
    assert torch.equal(tensors["a"], torch.ones(2))
    assert [f.name for f in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch) -> None:
    first, second = (nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 3, 8, 2, seed=seed) for seed in (0, 1))
    path, real, calls = tmp_path / "model.safetensors", checkpoint.safe_open, []
    nsd.nn.save(first, path)

    def meddling(*args, **options):
        opened = real(*args, **options)
        if not calls:  # metadata are those of the first file, tensors those of the second
            nsd.nn.save(second, path)
        calls.append(opened)
        return opened

    monkeypatch.setattr(checkpoint, "safe_open", meddling)
    assert torch.equal(nsd.nn.load(path).recurrent, second.recurrent)
    assert len(calls) == 2


def test_user_functions_cannot_be_saved_silently(tmp_path) -> None:
    phi = Activation.from_callable(lambda x: torch.tanh(x) ** 3)
    with pytest.raises(SerialisationError):
        nsd.nn.save(nsd.nn.ENN(nsd.ENN([phi]), 4, 5, 2), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


# -- export ----------------------------------------------------------------------------------------------
def test_torch_export() -> None:
    model = MODELS["enn"]()
    program = torch.export.export(model, (X,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    torch.testing.assert_close(program.module()(X), model(X))
    torch.testing.assert_close(program.module()(X[:1]), model(X[:1]))  # the batch size is free


ONE_LAYER = pytest.param(nsd.ENN([nsd.activation("hard_tanh", a=0.76, c=1.2)]), id="one", marks=pytest.mark.slow)


@pytest.mark.parametrize("spec", [pytest.param(TWIN_LIKE, id="two"), ONE_LAYER])
def test_onnxruntime_computes_the_same(spec: nsd.ENN, tmp_path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = nsd.nn.ENN(spec, 4, 33, 3)
    session = runtime.InferenceSession(str(nsd.nn.export_onnx(model, tmp_path / "model.onnx")))
    for x in (X, X[:1]):
        (y,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(
            y, model(x).detach().numpy(), rtol=ulps(64, torch.float32), atol=ulps(64, torch.float32)
        )


def test_a_deq_is_not_exported(tmp_path) -> None:
    with pytest.raises(InvalidInputError, match="Export a twin of it"):
        nsd.nn.export_onnx(MODELS["deq"](), tmp_path / "model.onnx")
