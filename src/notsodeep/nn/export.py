"""Explicit networks for other runtimes: ONNX, torch.export and TorchScript."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._arguments import a_path
from ..errors import InvalidInputError, MissingExtraError
from .checkpoint import write_with
from .enn import ENN

_IN_ONE_FILE = 1 << 30  # bytes of weights; ONNX holds less than two GiB


def export_program(model: ENN) -> torch.export.ExportedProgram:
    """The network as a ``torch.export`` program with a free batch size."""
    _check(model)
    batch = torch.export.Dim("batch")
    return torch.export.export(model.eval(), (_example(model),), dynamic_shapes={"x": {0: batch}})


def export_onnx(model: ENN, path: str | Path) -> Path:
    """Write the network as ONNX, input ``x`` (batch, in_features), output ``y`` (batch, out_features)."""
    _check(model)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx")
    path = a_path("path", path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's exporter about its own internals
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            model.eval(),
            (_example(model),),
            dynamo=True,
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
        assert program is not None
        if sum(p.numel() * p.element_size() for p in model.parameters()) > _IN_ONE_FILE:
            program.save(str(path))  # the weights go to a second file that the first one names
        else:
            write_with(path, lambda temporary: program.save(str(temporary)))
    return path


def export_torchscript(model: ENN) -> Any:
    """The network as a traced TorchScript module."""
    _check(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends torch.export; both are offered
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # the sizes it finds are those of the model's tables
        # torch's own check compares names that it changes itself from trace to trace
        return torch.jit.trace(model.eval(), _example(model), check_trace=False)


def _example(model: ENN) -> Tensor:
    return torch.zeros(2, model.in_features, dtype=model.readout.dtype, device=model.readout.device)


def _check(model: Any) -> None:
    if not isinstance(model, ENN):
        raise InvalidInputError(
            f"only an explicit network can be exported, got {type(model).__name__}: a DEQ iterates until its "
            "equilibrium is reached, which no static graph holds. Export its twin (notsodeep.twin_of)"
        )
