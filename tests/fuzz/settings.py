"""Public calls under settings of torch that belong to their caller: the same numbers to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fuzz.arguments import call, calls


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS: dict[str, Callable[[], Any]] = {
    "another device": lambda: torch.device("meta"),
    "double": lambda: _default(torch.float64),
    "bfloat16": lambda: _default(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": _deterministic,
    "errors of NumPy": lambda: np.errstate(all="raise"),
}
FOLLOW = {  # modules of torch are where torch puts them, and run as it runs them
    "nn.DEQ": ("another device", "bfloat16", "double"),
    "nn.ConvDEQ": ("another device", "bfloat16", "double"),
    "nn.ENN": ("another device", "bfloat16", "double"),
    "nn.load": ("another device",),
    "nn.fit": ("autocast",),
    "nn.fit_readout": ("autocast",),
    "replace": ("autocast",),
}


def numbers(value: Any, depth: int = 5) -> list[Any]:
    """All numbers in a result: arrays, tensors, weights, and what records of the library hold."""
    if isinstance(value, torch.Tensor):
        return [value.detach().double().numpy()]
    if isinstance(value, np.ndarray | float | int):
        return [np.asarray(value)]
    if isinstance(value, torch.nn.Module):
        return numbers([*value.parameters(), *value.buffers()])
    if hasattr(value, "__dict__") and type(value).__module__.startswith("notsodeep"):
        value = {name: part for name, part in vars(value).items() if "second" not in name}  # times differ
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [number for part in parts for number in numbers(part, depth - 1)] if depth else []


def differs(name: str, settings: Iterable[str]) -> bool:
    """Whether a sound call returns other numbers under settings, but for those that it follows."""
    function, sound = calls()[name]
    found = []
    for entered in ((), [SETTINGS[setting] for setting in settings if setting not in FOLLOW.get(name, ())]):
        torch.manual_seed(0)
        given = sound()
        with contextlib.ExitStack() as stack:
            for enter in entered:
                stack.enter_context(enter())
            result = call(function, given)
        found.append(numbers(result))
    plain, other = found
    return len(plain) != len(other) or not all(
        a.shape == b.shape and (a.dtype.kind not in "fiub" or np.array_equal(a, b, equal_nan=True))
        for a, b in zip(plain, other, strict=True)
    )


def settings(rng: np.random.Generator) -> int:
    """A random call under some settings."""
    name = str(rng.choice(sorted(calls())))
    chosen = [setting for setting in SETTINGS if rng.random() < 0.3]
    assert not differs(name, chosen), f"{name} depends on one of {chosen}"
    return 1
