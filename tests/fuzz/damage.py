"""Files as a desk has them, and what may happen to them: cut off, flipped, spliced, of another kind, absurd inside."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import notsodeep as nsd
from notsodeep.nn import checkpoint

ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    10**400,
    1e308,
    5e-324,
    "",
    "x",
    "relu",
    "ck",
    "ENN",
    "hermite",
    "affine",
    [],
    {},
    [1.0],
    [[]],
    {"activation": "relu"},
    {"network": "DEQ"},
    "a" * 3000,
    [0.01] * 5000,
]


def desk() -> Path:
    """A folder with one sound file of every kind, made once per process and removed with it."""
    if _DESK:
        return _DESK[0]
    folder = tempfile.TemporaryDirectory(prefix="notsodeep-fuzz-")
    path = Path(folder.name)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((24, 5)) / 5**0.5, np.arange(24) % 3
    np.save(path / "X.npy", X)
    np.save(path / "single.npy", X.astype(np.float32))
    np.save(path / "y.npy", y)
    np.savez(path / "X.npz", X=X, y=y)
    np.savetxt(path / "X.csv", X, delimiter=",", header="a,b,c,d,e", comments="")
    np.savetxt(path / "y.csv", y, fmt="%d")
    table = [",".join([*map(str, row), "odd" if k % 2 else "even"]) for k, row in enumerate(X.round(4).tolist())]
    (path / "table.csv").write_text("\n".join(["a,b,c,d,e,kind", *table]) + "\n")
    (path / "twin.json").write_text(json.dumps(nsd.match(nsd.DEQ("relu", 0.2), 1.0, "ntk").to_dict()))
    nsd.nn.save(nsd.nn.ENN(nsd.ENN(["tanh"]), 5, 8, 2, seed=0), path / "network.safetensors")
    options, drawn = nsd.nn.ReplaceOptions(steps=2, width=4), rng.standard_normal((200, 5))
    fast = nsd.replace(MODEL, drawn[:100], calibration=drawn[100:], disagreement=0.5, options=options, progress=False)
    fast.save(path / "replacement.safetensors")
    (path / "folder").mkdir()
    _DESK.extend([path, folder])
    return path


_DESK: list[Any] = []
MODEL = torch.nn.Linear(5, 2, bias=False, dtype=torch.float64)  # through the origin: two classes, whatever its weights
SOUND = ["X.npy", "single.npy", "X.npz", "X.csv", "table.csv", "y.npy", "y.csv", "twin.json"]


def damaged(rng: np.random.Generator) -> Path:
    """A new file beside the sound ones: one of them with something done to it, or one made wrong."""
    folder = desk()
    name = str(rng.choice([*SOUND, "network.safetensors", "replacement.safetensors"]))
    content = (folder / name).read_bytes()
    if rng.random() < 0.35:
        name, content = _made_wrong(rng)
    elif name.endswith(".json") and rng.random() < 0.7:
        content = json.dumps(mutated(json.loads(content), rng)).encode()
    elif name.endswith(".safetensors") and rng.random() < 0.6:
        content = _hostile(content, rng) if rng.random() < 0.6 else _other_header(content, rng)
    else:
        content = _bytes_changed(content, rng)
    path = folder / f"damaged-{os.getpid()}{Path(name).suffix}"
    path.write_bytes(content)
    return path


def _bytes_changed(content: bytes, rng: np.random.Generator) -> bytes:
    kind = rng.choice(["cut", "flip", "splice", "append", "zero"])
    at = int(rng.integers(len(content) + 1))
    if rng.random() < 0.5:
        at = min(at, int(rng.integers(200)))  # headers come first
    if kind == "cut":
        return content[:at]
    if kind == "append":
        return content + rng.bytes(int(rng.integers(1, 300)))
    if kind == "splice":
        return content[:at] + rng.bytes(int(rng.integers(1, 40))) + content[at:]
    changed = bytearray(content)
    for place in range(at, min(at + int(rng.integers(1, 9)), len(changed))):
        changed[place] = 0 if kind == "zero" else changed[place] ^ (1 << int(rng.integers(8)))
    return bytes(changed)


def _other_header(content: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file whose JSON header, or the document inside it, says something else."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if rng.random() < 0.7 and "__metadata__" in header:
        inner = header["__metadata__"]
        key = str(rng.choice(sorted(inner)))
        try:
            inner[key] = json.dumps(mutated(json.loads(inner[key]), rng))
        except ValueError:
            inner[key] = "{"
    else:
        header = mutated(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _hostile(content: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file whose document or tensors say something else, with a checksum that is right."""
    size = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + size])["__metadata__"]["document"]
    tensors = safetensors.torch.load(content)
    if rng.random() < 0.7:
        text = json.dumps(mutated(json.loads(text), rng)) if rng.random() < 0.8 else str(rng.choice(TEXTS))
    else:
        name = sorted(tensors)[int(rng.integers(len(tensors)))]
        kind = rng.choice(["nan", "shape", "type", "missing", "negative"])
        value = tensors.pop(name)
        other = {
            "nan": value * torch.nan,
            "shape": value[None],
            "type": value.to(torch.int64),
            "negative": -value - 1.0,
        }
        tensors |= {name: other[str(kind)]} if kind != "missing" else {}
    metadata = {"format": checkpoint._FORMAT, "document": text, "sha256": checkpoint._digest(tensors, text)}
    return safetensors.torch.save(tensors, metadata)


def _arrays() -> list[Any]:
    tall = np.zeros((3, 2))
    return [
        np.zeros((0, 3)),
        np.zeros(5),
        np.zeros((2, 2, 2)),
        np.array(1.0),
        np.full((4, 2), np.nan),
        np.full((4, 2), np.inf),
        np.full((4, 2), 1e200),
        np.full((4, 2), 1e-300),
        np.ones((4, 2)),
        np.zeros((6, 3)),
        np.array([["a", "b"]]),
        np.ones((3, 2), dtype=complex),
        np.ones((3, 2), dtype=">f8"),
        np.ones((3, 2), dtype=np.longdouble),
        np.ones((3, 2), dtype=np.float16),
        np.ones((3, 2), dtype=bool),
        tall.astype("M8[s]"),
        np.zeros(3, dtype=[("a", "f4"), ("b", "i8")]),
        np.asfortranarray(np.random.default_rng(1).standard_normal((5, 3))),
        np.full((3, 2), 2**63, dtype=np.uint64),
    ]


TEXTS = [
    ",a,b\n0,1.5,2.5\n1,0.5,0.1\n",  # the index of pandas
    "a,label\n0.5,1\n0.1,0\n",
    "",
    "\n\n",
    "a,b\n",
    "1,2\n3\n",
    "1,2\n3,x\n",
    "nan,1\n2,3\n",
    "1e400,2\n3,4\n",
    "1;2\n3;4\n",
    "1,2\n3,4\n",
    "0,0\n0,0\n",
    "\ufeff1,2\n3,4\n",
    "[" * 5000,
    "{}",
    "[]",
    "null",
    '{"kind": "twin"}',
    "9" * 6000,
    '{"residual": NaN}',
    '"' + "x" * 10_000,
    "1," * 3000 + "1\n",
]


def _made_wrong(rng: np.random.Generator) -> tuple[str, bytes]:
    kind = rng.choice(["array", "text", "bytes", "header", "objects"])
    if kind == "array":
        arrays = _arrays()
        stream = io.BytesIO()
        np.save(stream, arrays[int(rng.integers(len(arrays)))])
        return "wrong.npy", stream.getvalue()
    if kind == "text":
        return str(rng.choice(["wrong.csv", "wrong.json"])), TEXTS[int(rng.integers(len(TEXTS)))].encode()
    if kind == "header":  # a shape that the file does not hold
        shape = [(10**12, 5), (2**62, 2**62), (-1, 5), (3, 10**18)][int(rng.integers(4))]
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return "wrong.npy", b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.encode() + bytes(80)
    if kind == "objects":  # a pickle, which is never opened
        stream = io.BytesIO()
        np.save(stream, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
        return "wrong.npy", stream.getvalue()
    head = [b"", b"\x93NUMPY", b"PK\x03\x04", b"\x1f\x8b", (2**60).to_bytes(8, "little"), b"{"][int(rng.integers(6))]
    name = str(rng.choice(["wrong.npy", "wrong.npz", "wrong.csv", "wrong.json", "wrong.safetensors"]))
    return name, head + rng.bytes(int(rng.integers(0, 400)))


# ---- documents -------------------------------------------------------------------------------------------


def paths(part: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [here, *(path for key, value in inner for path in paths(value, (*here, key)))]


def replaced(part: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy with one place changed."""
    if not path:
        return change(part)
    copy = dict(part) if isinstance(part, dict) else list(part)
    copy[path[0]] = replaced(part[path[0]], path[1:], change)
    return copy


def mutated(document: Any, rng: np.random.Generator) -> Any:
    """One to three changes: another value, a number moved, a key dropped, added or renamed, a list grown."""
    for _ in range(int(rng.integers(1, 4))):
        every = paths(document)
        document = replaced(document, every[int(rng.integers(len(every)))], lambda part: _changed(part, rng))
    return document


def _changed(part: Any, rng: np.random.Generator) -> Any:
    kind = rng.choice(["value", "number", "shape"], p=[0.4, 0.3, 0.3])
    odd = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
    if kind == "number" and isinstance(part, int | float) and not isinstance(part, bool):
        return [-part, part * 10**6, part + 1, part // 7, 1e300 if part else 5e-324][int(rng.integers(5))]
    if kind == "shape" and isinstance(part, dict) and part:
        key = sorted(part)[int(rng.integers(len(part)))]
        rest = {k: v for k, v in part.items() if k != key}
        return rest if rng.random() < 0.5 else {**rest, str(rng.choice(["", "name", "x", "kind"])): part[key]}
    if kind == "shape" and isinstance(part, list):
        return part * 3 if rng.random() < 0.5 else part[:-1]
    return odd
