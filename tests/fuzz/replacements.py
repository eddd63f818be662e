"""Replacements of random models against fresh rows: no promise that those make next to impossible, nothing written
into what the caller owns, and a file that belongs to its model alone. Rows that are no evidence are refused: those on
which the student is trained, and those that repeat each other; without others there is a warning."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn

import notsodeep as nsd
from fuzz.arguments import folder
from fuzz.draws import PLAIN
from notsodeep.errors import CertificationError, InvalidInputError, NotSoDeepError

IMPOSSIBLE = 1e-9  # chance of the rows that a promise rests on, at the least share that fresh rows leave possible
FRESH = 4000


class _Halves(nn.Module):
    """Works in place on what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5)


class _As(nn.Module):
    """Outputs of another kind: wider or shorter numbers, flags, one number for each row, a tuple."""

    KINDS = ("double", "half", "bfloat16", "long", "bool", "int8", "scalar", "tuple")

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        if self.kind == "tuple":
            return x, None
        if self.kind == "scalar":
            return x[:, 0]
        return (3.0 * x).to(getattr(torch, self.kind))

    def extra_repr(self) -> str:
        return self.kind


def a_model(rng: np.random.Generator, inputs: int) -> Any:
    """A DEQ or a network of torch, with parts that work in place, count, or differ between training and use."""
    torch.manual_seed(int(rng.integers(1 << 30)))
    outputs = int(rng.integers(2, 5))
    if rng.random() < 0.3:
        name = str(rng.choice(PLAIN))
        deq = nsd.DEQ(name, 0.8 * min(nsd.DEQ(name, 0.0).limit, 1.0), 1.0)
        return nsd.nn.DEQ(deq, inputs, int(rng.integers(4, 30)), outputs, seed=int(rng.integers(99)))
    first = [nn.ReLU(inplace=True), _Halves(), nn.Identity(), nn.BatchNorm1d(inputs)][int(rng.integers(4))]
    middle = [nn.Tanh(), nn.ELU(inplace=True), nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(12), nn.ReLU(True))]
    last = [nn.Linear(12, outputs), *([_As(str(rng.choice(_As.KINDS)))] if rng.random() < 0.25 else [])]
    return nn.Sequential(first, nn.Linear(inputs, 12), middle[int(rng.integers(4))], *last)


def a_request(rng: np.random.Generator, rows: Tensor) -> dict[str, Any]:
    """A promise, which few steps of training can keep for a part of the rows at least."""
    request: dict[str, Any] = {
        "disagreement": float(10.0 ** rng.uniform(-2.0, -0.4)),
        "confidence": float(rng.choice([0.8, 0.95, 0.99])),
        "options": nsd.nn.ReplaceOptions(width=int(rng.choice([2, 16])), steps=int(rng.choice([1, 20, 80]))),
        "seed": int(rng.integers(99)),
        "progress": False,
    }
    if rng.random() < 0.7:
        request["calibration"] = rows[len(rows) // 2 :]
    if rng.random() < 0.3:
        request["tolerance"] = float(10.0 ** rng.uniform(-2.0, 0.0))
    return request


def stale(rng: np.random.Generator) -> int:
    """Calibration rows that are rows of X, a part of them, or that repeat each other: refused, with labels or without.

    One row in a hundred may be so by chance.
    """
    inputs, count = int(rng.integers(1, 5)), int(rng.choice([200, 600]))
    model, rows = a_model(rng, inputs), torch.from_numpy(rng.standard_normal((2 * count, inputs)).astype(np.float32))
    X, fresh = rows[:count], rows[count:]
    request = a_request(rng, fresh)
    if rng.random() < 0.3:
        request["labels"] = rng.integers(0, 2, count)
    old = max(1 + count // 50, int(rng.uniform(0.02, 1.0) * count))
    kinds = {
        "X": X,
        "a permutation of X": X[torch.from_numpy(rng.permutation(count))],
        f"{old} rows of X": torch.cat([fresh[old:], X[:old]]),
        f"{old} rows of X in double precision": torch.cat([fresh[old:], X[:old]]).double().numpy(),
        "one row many times": fresh[:1].expand(count, inputs),
        "each row twice": fresh[: count // 2].repeat_interleave(2, 0),
        "batches of X": list(X.split(50)),
    }
    kind = str(rng.choice(list(kinds)))
    if "batches" in kind:
        request.pop("labels", None)  # which need one array
    told = "taken"
    with contextlib.suppress(CertificationError):  # too few for this promise, whatever they are
        try:
            nsd.replace(model, X, **request | {"calibration": kinds[kind]})
        except InvalidInputError as error:
            told = str(error)
        expected = "calibration rows repeat each other" if "row" in kind.split() else "calibration rows are rows of X"
        assert expected in told, f"{kind} as evidence for {model!r}, {request}: {told}"
    return 1


def alone(rng: np.random.Generator) -> int:
    """Without calibration rows a part of X takes their place, and a warning says so; with labels, too."""
    inputs, count = int(rng.integers(1, 5)), int(rng.choice([600, 2000]))
    model, X = a_model(rng, inputs), torch.from_numpy(rng.standard_normal((count, inputs)).astype(np.float32))
    request = a_request(rng, X)
    request.pop("calibration", None)
    if rng.random() < 0.5:
        request["labels"] = rng.integers(0, 2, count)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fast = nsd.replace(model, X, **request)
    assert any("no calibration rows" in str(one.message) for one in said), f"without a word: {model!r}, {request}"
    assert fast.certificate.measured <= count // 4 + 1, f"{fast.certificate.measured} of {count} rows were measured"
    return 1


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x.clone())
    return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]


def _differ(one: Tensor, two: Tensor, tolerance: float | None) -> Tensor:
    one, two = (part.double().reshape(len(part), -1) for part in (one, two))
    if tolerance is None:
        return one.argmax(1) != two.argmax(1)
    return ~((one - two).abs().amax(1) <= tolerance)


def _state(model: nn.Module) -> list[Tensor]:
    return [part.detach().clone() for part in (*model.parameters(), *model.buffers())]


def replacements(rng: np.random.Generator) -> int:
    """A replacement, its promise and its file: one input, of many rows."""
    inputs, count = int(rng.integers(1, 5)), int(rng.choice([200, 600, 2000]))
    model, rows = (
        a_model(rng, inputs).train(bool(rng.random() < 0.5)),
        torch.from_numpy(rng.standard_normal((count + FRESH, inputs)).astype(np.float32)),
    )
    known, fresh = rows[:count], rows[count:]
    request = a_request(rng, known)
    given = known if "calibration" not in request else known[: count // 2]
    kept, before, mode = known.clone(), _state(model), model.training
    label = f"{model!r}, { {k: v for k, v in request.items() if k != 'calibration'} }, {count} rows"
    try:
        fast = nsd.replace(model, given, **request)
    finally:
        assert torch.equal(known, kept), f"rows were overwritten: {label}"
        assert model.training == mode, f"the mode has changed: {label}"
        same = all(torch.equal(a, b) for a, b in zip(_state(model), before, strict=True))
        assert same, f"the state has changed: {label}"
    proof = fast.certificate
    with torch.no_grad():
        mine, truth = fast.predict(fresh), _outputs(model.eval(), fresh)
    share = float(_differ(mine, truth, proof.tolerance).float().mean())
    least = max(0.0, share - 6.0 * (share * (1.0 - share) / FRESH) ** 0.5)
    chance = float(binom.cdf(proof.seen, proof.measured, least))
    told = f"{proof.seen} of {proof.measured} measured rows differed, {share:.3f} of fresh ones"
    assert chance > IMPOSSIBLE, f"{told} (promised {proof.disagreement:.3f}): {label}"
    assert binom.cdf(proof.seen, proof.measured, proof.disagreement) <= 1.001 - proof.confidence, f"{told}: {label}"
    fast.train()
    with torch.no_grad():
        fast.predict(fresh[:50])
    assert all(torch.equal(a, b) for a, b in zip(_state(model), before, strict=True)), f"training reaches in: {label}"
    _file(rng, fast, model, fresh, mine, label)
    return 1


def _file(rng: np.random.Generator, fast: Any, model: nn.Module, fresh: Tensor, mine: Tensor, label: str) -> None:
    """The file gives the same answers with its model, and is refused with one that gives others."""
    path = os.path.join(folder(), f"replacement-{os.getpid()}.safetensors")
    fast.save(path)
    again = nsd.nn.Replacement.load(path, model)
    assert torch.equal(again.predict(fresh), mine), f"differs after loading: {label}"
    with torch.no_grad():
        weights = list(model.parameters())
        weights[int(rng.integers(len(weights)))].mul_(-1.0)
        truth, other = again.predict(fresh), _outputs(model, fresh)
    wrong = float(_differ(truth, other, fast.certificate.tolerance).float().mean())
    try:
        nsd.nn.Replacement.load(path, model)
    except NotSoDeepError:
        return
    assert wrong <= 10.0 * fast.certificate.disagreement, f"a file with another model, {wrong:.2f} differ: {label}"
