"""Rows in all the forms that they come in, calls that are interrupted anywhere, and calls of many threads at once."""

from __future__ import annotations

import array
import copy
import pickle
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from fuzz.draws import a_network
from fuzz.settings import numbers
from helpers import tolerance
from notsodeep.errors import NotSoDeepError

Array = NDArray[Any]
SAME_NUMBERS = tolerance(amplified=1e4)  # tables may be steep, and forms have other strides


class _Rows(np.ndarray):
    """A subclass without anything of its own."""


class _Tensor(torch.Tensor):
    """The same of torch."""


def _mapped(a: Array) -> Array:
    with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives its name
        np.save(Path(folder) / "é ü.npy", a)
        return np.load(Path(folder) / "é ü.npy", mmap_mode="r")  # type: ignore[no-any-return]


def _frame(a: Array, dtype: str) -> Any:
    import pandas

    return pandas.DataFrame(a).astype(dtype)


def _missing(a: Array) -> Any:
    frame = _frame(a, "Float64")
    frame.iloc[0, 0] = None
    return frame


SAME: tuple[Callable[[Array], Any], ...] = (
    lambda a: a.view(_Rows),
    lambda a: np.matrix(a),
    lambda a: np.asfortranarray(a),
    lambda a: np.ascontiguousarray(a[::-1])[::-1],
    lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
    lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    lambda a: np.frombuffer(b"x" + a.tobytes(), dtype=np.uint8)[1:].view(np.float64).reshape(a.shape),  # not aligned
    lambda a: a.astype(">f8"),
    lambda a: a.astype(np.longdouble),
    lambda a: np.ma.array(a, mask=False),
    _mapped,
    lambda a: memoryview(np.ascontiguousarray(a)),
    lambda a: a.tolist(),
    lambda a: [array.array("d", row) for row in a],
    lambda a: tuple(torch.from_numpy(row.copy()) for row in a),
    lambda a: _frame(a, "float64"),
    lambda a: _frame(a, "Float64"),
    lambda a: torch.from_numpy(a.copy()).requires_grad_(),
    lambda a: torch.nn.Parameter(torch.from_numpy(a.copy())),
    lambda a: torch.from_numpy(a.copy()).as_subclass(_Tensor),  # type: ignore[type-var]
    lambda a: torch.from_numpy(a.T.copy()).T,
    lambda a: torch._neg_view(torch.from_numpy(-a)),
    lambda a: torch.from_numpy(a.copy()).to(torch.complex128).conj().real,
)
ODD: tuple[Callable[[Array], Any], ...] = (
    lambda a: np.where(a == a.max(), np.nan, a),
    lambda a: np.where(a > 0, -np.inf, np.nan),
    lambda a: np.ma.array(a, mask=a == a.flat[0]),
    lambda a: a.astype(object),
    lambda a: [[Fraction(float(v)) for v in row] for row in a],
    lambda a: [[Decimal(float(v)) for v in row] for row in a],
    lambda a: (row for row in a),
    lambda a: a.tobytes(),
    lambda a: a[0],
    lambda a: a[None],
    lambda a: [*a.tolist(), [1.0]],
    lambda a: [[2**100] * a.shape[1]] * len(a),
    lambda a: np.rec.fromarrays(a.T),
    lambda a: a + 0j,
    lambda a: a.astype("U"),
    lambda a: torch.from_numpy(a.copy()).to_sparse(),
    lambda a: torch.quantize_per_tensor(torch.from_numpy(a.astype(np.float32)), 0.1, 0, torch.qint8),
    lambda a: torch.nested.nested_tensor([torch.from_numpy(row.copy()) for row in a], layout=torch.jagged),
    _missing,
    lambda a: _frame(a, "str"),
)


def forms(rng: np.random.Generator) -> int:
    """The same numbers in another form have the same kernel; what holds none is refused."""
    network, X = a_network(rng), rng.standard_normal((int(rng.integers(1, 30)), int(rng.integers(2, 6))))
    wanted = nsd.ck(network, X, check=False)
    for form in (SAME[int(k)] for k in rng.integers(len(SAME), size=6)):
        found = nsd.ck(network, form(X), check=False)
        found = found.detach().numpy() if isinstance(found, torch.Tensor) else found
        assert type(found) is np.ndarray, f"{type(found)} of form {SAME.index(form)}"
        size = np.sqrt(np.diag(wanted))
        assert (np.abs(found - wanted) <= SAME_NUMBERS * np.outer(size, size)).all(), (
            f"form {SAME.index(form)}: {network!r}"
        )
    for form in (ODD[int(k)] for k in rng.integers(len(ODD), size=4)):
        try:
            nsd.ck(network, form(X), check=False)
        except NotSoDeepError:
            continue
        raise AssertionError(f"odd form {ODD.index(form)} was taken")
    return 10 * len(X)


def _calls(rng: np.random.Generator) -> Callable[[], Any]:
    """A call that takes a while, the same each time."""
    network, X = a_network(rng), rng.standard_normal((int(rng.choice([5, 60])), 3))
    y, seed = np.arange(len(X)) % 2, int(rng.integers(99))
    return [
        lambda: nsd.kernels_of(network, X, kernels=("ck",), check=False),
        lambda: nsd.DEQClassifier("tanh", ridge=0.1).fit(X, y).decision_function(X),
        lambda: nsd.match_one_layer(nsd.DEQ("tanh", 0.2), "ck", (0.5, 1.0 + 0.01 * seed), 1e-2),
        lambda: _trained(seed, X, y),
    ][int(rng.integers(4))]


def _trained(seed: int, X: Array, y: Array) -> Any:
    model = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), X.shape[1], 8, 2, seed=seed)
    data = torch.from_numpy(X).float(), torch.from_numpy(y)
    nsd.nn.fit(model, data, epochs=2, progress=False)
    half = pickle.loads(pickle.dumps(copy.deepcopy(model)))  # in the midst of training
    nsd.nn.fit(model, data, epochs=1, progress=False)
    nsd.nn.fit(half, data, epochs=1, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), half.parameters(), strict=True)), "a copy differs"
    return model


def _equal(a: Any, b: Any) -> bool:
    pairs = list(zip(numbers(a), numbers(b), strict=True))
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def interrupted(rng: np.random.Generator) -> int:
    """An interrupt anywhere leaves nothing behind: later the call has the bits that it has in a fresh cache."""
    call, stops = _calls(rng), 10.0 ** rng.uniform(-4, -0.5, 4)
    nsd.clear_caches()
    wanted = call()
    nsd.clear_caches()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay in stops:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                call()
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not torch.is_inference_mode_enabled(), "inference mode is left on"
    assert torch.is_grad_enabled(), "gradients are left off"
    assert _equal(call(), wanted), "an interrupted call changes later ones"
    return len(stops)


def together(rng: np.random.Generator) -> int:
    """Threads that make the same call at once, beginning without a table, get the bits of one alone."""
    call = _calls(rng)
    nsd.clear_caches()
    wanted = call()
    nsd.clear_caches()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: call(), range(4)))
    assert all(_equal(one, wanted) for one in found), "threads disturb each other"
    return len(found)
