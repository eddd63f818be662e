"""``replace`` certifies a cheaper network in the place of a trained one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import notsodeep as nsd

from ..errors import DataError
from . import inputs
from .command import as_json, command

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A network of nsd.nn.save, or a program of torch.export.save (.pt2).")
]


@command
def replace(
    model: Model,
    points: inputs.Points,
    calibration: Annotated[Path | None, Option("--calibration", "-c", help="Rows that the model has not seen.")] = None,
    labels: inputs.Labels = None,
    *,
    promise: inputs.Promise,
    output: Annotated[Path, Option("--output", "-o", help="A .safetensors file.")] = Path("fast.safetensors"),
    onnx: Annotated[Path | None, Option("--onnx", help="Write the student as ONNX, too: outputs y and score.")] = None,
    json: inputs.Json = False,
    force: inputs.Force = False,
) -> None:
    """Replace a trained model by a student wherever the two are sure to agree, with a bound on how often they differ.

    Labels, where given, are those of the calibration rows; the promise is then about wrong answers. Images are arrays
    (n, channels, height, width), as the model takes them.

    Examples
    --------
      notsodeep replace model.safetensors X.npy --calibration fresh.npy
      notsodeep replace model.pt2 X.npy -c fresh.npy --disagreement 0.01 --onnx student.onnx --json
    """
    inputs.check_target(output, force, ".safetensors")
    inputs.check_target(onnx, force, ".onnx")
    X = inputs.points_from(points, images=True)
    fresh = None if calibration is None else inputs.points_from(calibration, images=True)
    truth = None if labels is None else _classes(labels, X if fresh is None else fresh)
    fast = nsd.replace(_module(model), X, calibration=fresh, labels=truth, **promise._asdict())
    fast.save(output)
    if onnx is not None:
        fast.export_onnx(onnx)
    typer.echo(as_json(asdict(fast.certificate)) if json else str(fast))


def _module(path: Path) -> Any:
    """Return the model of a file; no file is unpickled."""
    if path.suffix != ".pt2":
        return nsd.nn.load(path)
    import torch

    try:
        program = torch.export.load(str(path)).module()
    except Exception as error:  # whatever torch and the archives below it raise on damaged files
        raise DataError(f"{path} is no program of torch.export.save: {str(error).splitlines()[0]:.200}") from None
    return lambda x: program(x)


def _classes(labels: Path, rows: Any) -> Any:
    try:
        return inputs.labels_from(labels, len(rows)).astype(float)
    except ValueError:
        raise DataError(f"{labels} must hold the numbers of the model's outputs, 0 for the first, not names.") from None
