"""Files with a right checksum and a wrong content: refused on loading, by one error, before memory is asked for."""

from __future__ import annotations

import contextlib
import functools
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import notsodeep as nsd
from notsodeep.errors import CheckpointError
from notsodeep.nn import checkpoint

X = np.random.default_rng(0).standard_normal((200, 3))
COMPLEX = tuple(map(int, safetensors.__version__.split(".")[:2])) >= (0, 6)  # whether it knows such numbers
MODEL = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)  # through the origin: two classes, whatever its weights


def write_anything(path: Path, tensors: dict[str, torch.Tensor], text: str) -> None:
    """A file with a right checksum, whatever it says."""
    digest = checkpoint._digest(tensors, text)
    metadata = {"format": checkpoint._FORMAT, "document": text, "sha256": digest}
    path.write_bytes(safetensors.torch.save(tensors, metadata))


def replacement(path: Path) -> None:
    options = nsd.nn.ReplaceOptions(steps=2, width=4)
    nsd.replace(MODEL, X[:100], calibration=X[100:], disagreement=0.5, options=options, progress=False).save(path)


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "DEQ": (lambda path: nsd.nn.save(nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 3, 8, 2), path), nsd.nn.load),
    "ENN": (lambda path: nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh", "relu"]), 3, 8, 2), path), nsd.nn.load),
    "replacement": (replacement, lambda path: nsd.nn.Replacement.load(path, MODEL)),
}


@functools.cache
def sound(kind: str, folder: Path) -> bytes:
    """The bytes of a sound file of this kind, made once."""
    KINDS[kind][0](folder / kind)
    return (folder / kind).read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


def peak() -> int:
    """Bytes that this process has held at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> Any:
    """A sound file, what reads it, its tensors and its document."""
    path = tmp_path / "file.safetensors"
    load = KINDS[request.param][1]
    path.write_bytes(sound(request.param, folder))
    load(path)
    return path, load, *checkpoint.read_file(path)


BIGGER = [
    *(("DEQ", (name,), 10**9) for name in ("width", "in_features", "out_features")),
    ("ENN", ("width",), 10**9),
    *(("ENN", (name,), 10**9) for name in ("in_features", "out_features")),
    *(("replacement", where, 10**9) for where in (("shape", 0), ("rungs", 0, "width"), ("rungs", 0, "outputs", 0))),
    ("replacement", ("shape",), [10**5] * 4),
]


def write_changed(path: Path, kind: str, where: tuple[Any, ...], value: Any, folder: Path) -> None:
    """Write a file that is sound but for one entry of its document."""
    path.write_bytes(sound(kind, folder))
    tensors, document = checkpoint.read_file(path)
    inner: Any = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    write_anything(path, tensors, json.dumps(document))


@pytest.mark.parametrize(("kind", "where", "value"), BIGGER, ids=str)
def test_sizes_are_compared_with_the_tensors_before_memory_is_asked_for(kind, where, value, tmp_path, folder):
    path = tmp_path / "file.safetensors"
    write_changed(path, kind, where, value, folder)
    before = peak()
    with pytest.raises(CheckpointError, match="shape"):
        KINDS[kind][1](path)
    assert peak() - before < 50e6  # bytes; the smallest of these sizes would take 8e9


TEXTS = ["", "{", "[]", "null", "1", '"x"', "{}", "[" * 5000, '{"kind": ' * 900 + "1" + "}" * 900]
TEXTS += ['{"kind": ' + "9" * 6000 + "}", '{"kind": NaN}', '{"kind": 1e999}', '{"kind": "model"}', '{"kind": []}']


def test_texts_that_are_no_document(stored):
    path, load, tensors, _ = stored
    for text in TEXTS:
        write_anything(path, tensors, text)
        with pytest.raises(CheckpointError) as caught:
            load(path)
        assert 20 < len(str(caught.value)) < 600


def test_no_document_sets_what_is_not_its_own(stored):
    path, load, tensors, document = stored
    for name in ("folder", "checkpoint", "client", "device", "__class__", "n_jobs"):
        write_anything(path, tensors, json.dumps({**document, name: "cuda"}))
        with pytest.raises(CheckpointError, match=f"unknown fields .'{name}'"):
            load(path)


def test_every_field_is_needed_or_has_one_kind(stored):
    path, load, tensors, document = stored
    for name in document.keys() - {"kind"}:
        for value in (object, "?", [[]], {"?": 1}, -7):
            content = {k: v for k, v in document.items() if k != name or value is not object}
            content |= {} if value is object else {name: value}
            write_anything(path, tensors, json.dumps(content))
            if value is object or document[name] in (None, False):
                with contextlib.suppress(CheckpointError):
                    load(path)
            else:
                with pytest.raises(CheckpointError):
                    load(path)


def test_tensors_of_another_kind(stored):
    path, load, tensors, document = stored
    for name in tensors:
        for value in (
            torch.full_like(tensors[name], torch.nan),
            torch.zeros(3, 5, 7, dtype=tensors[name].dtype),
            *([tensors[name].to(torch.complex64)] if COMPLEX else []),
            None,
        ):
            changed = {k: v for k, v in (tensors | {name: value}).items() if v is not None}
            write_anything(path, changed, json.dumps(document))
            with pytest.raises(CheckpointError):
                load(path)


RANGES = [
    *(("replacement", ("certificate", "measured"), value) for value in (0, -1, 2**62)),
    *(("replacement", ("certificate", "coverage"), value) for value in (5, -1)),
    *(("replacement", ("certificate", name), 10**18) for name in ("seen", "distilled", "chosen")),
    *(("replacement", ("certificate", "rungs", 0, 0), value) for value in ("zzz", "own", 3)),
    ("replacement", ("certificate", "rungs", 0, 2), 1.5),
    ("replacement", ("certificate", "rungs"), []),
    ("replacement", ("certificate", "tolerance"), -1.0),
    ("DEQ", ("solver", "max_steps"), 10**18),
]


@pytest.mark.parametrize(("kind", "where", "value"), RANGES, ids=str)
def test_numbers_have_ranges(kind, where, value, tmp_path, folder):
    path = tmp_path / "file.safetensors"
    write_changed(path, kind, where, value, folder)
    with pytest.raises(CheckpointError):
        KINDS[kind][1](path)


def test_a_checkpoint_that_holds_something_else(tmp_path):
    path = tmp_path / "run.safetensors"
    data, options = (X.astype(np.float32), X[:, :1].astype(np.float32)), {"lr": 0.1, "progress": False}

    def fit(epochs: int) -> Any:
        model = nsd.nn.ENN(nsd.ENN(["tanh"]), 3, 8, 1, seed=0)
        return nsd.nn.fit(model, data, epochs=epochs, checkpoint=path, **options)

    fit(1)
    tensors, document = checkpoint.read_file(path)
    for text in (*TEXTS, json.dumps({**document, "history": 3}), json.dumps({**document, "run": []})):
        write_anything(path, tensors, text)
        with pytest.raises(CheckpointError):
            fit(2)
    for name in ("optimiser", "generator", "model.readout"):
        for value in (torch.zeros(5, dtype=torch.uint8), torch.zeros(2, 2)):
            write_anything(path, tensors | {name: value}, json.dumps(document))
            with pytest.raises(CheckpointError):
                fit(2)
    write_anything(path, tensors, json.dumps(document))
    fit(2)


def test_numpy_numbers_are_saved(tmp_path):
    path = tmp_path / "network.safetensors"
    nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh"]), np.int64(3), np.int64(8), np.int32(1)), path)
    assert nsd.nn.load(path).width == 8
    nsd.nn.save(nsd.nn.DEQ(nsd.DEQ("tanh", np.float32(0.2)), np.int64(3), np.int64(8), np.int32(1)), path)
    assert nsd.nn.load(path).width == 8
