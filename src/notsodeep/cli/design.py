"""``match`` designs the twin of a DEQ, ``replace`` a student of a trained model; ``explore`` and ``demo`` show them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import notsodeep as nsd

from .._files import write_text
from .._words import Parametrisation
from ..errors import DataError, InvalidInputError
from . import inputs
from .command import as_json, command

Route = Literal["one-layer", "sphere", "papers", "hard_tanh", "skip", "leaky_relu", "quadratic", "hermite"]
Model = Annotated[
    Path, Argument(metavar="MODEL", help="A network of nsd.nn.save, or a program of torch.export.save (.pt2).")
]


@command
def match(
    activation: inputs.Phi,
    sigma_a2: inputs.SigmaA2 = None,
    kernel: inputs.WhichKernel = "ck",
    route: Annotated[
        Route, Option("--route", help="one-layer; sphere: unit norm; papers: mixtures, or a family of the papers.")
    ] = "one-layer",
    norms: Annotated[tuple[float, float] | None, Option("--norms", help="one-layer: norms of the inputs.")] = None,
    tol: Annotated[float | None, Option("--tol", help="one-layer: largest error of the kernel; default 1e-4.")] = None,
    data: inputs.Data = None,
    code: Annotated[
        Parametrisation | None,
        Option("--code", help="Print only the PyTorch source; standard: it trains at Adam's usual 1e-3."),
    ] = None,
    *,
    saved: inputs.Saved,
) -> None:
    """Design the shallow explicit network that has a DEQ's kernel, with its certificate and its PyTorch source.

    Data are the rows that the network will see: they give the norms, and the twin is verified on them.

    Examples
    --------
      notsodeep match relu
      notsodeep match tanh --sigma-a2 0.1 --kernel ntk --norms 0.8 1.2 --save twin.json
      notsodeep match tanh --data X.npy
      notsodeep match relu --route papers --data X.npy
      notsodeep match tanh --route sphere --json
      notsodeep match relu --code standard > twin.py
    """
    json, save, force = saved
    inputs.check_target(save, force)
    inputs.refuse("--json prints the source too", code=code if json else None)
    if route != "one-layer":
        inputs.refuse("belongs to --route one-layer", norms=norms, tol=tol)
    if route == "sphere":
        inputs.refuse("has no meaning with --route sphere", data=data)
    deq = inputs.deq_from(activation, sigma_a2)
    points = None if data is None else inputs.points_from(data)
    if route == "sphere":
        twin = nsd.match_sphere(deq, kernel=kernel)
    elif route == "one-layer":
        norms = nsd.matching.norm_range(points) if norms is None and points is not None else norms
        twin = nsd.match_one_layer(deq, kernel, norms, tol=1e-4 if tol is None else tol)
    else:
        statistics = 1.0 if points is None else nsd.MixtureStatistics.estimate(points)  # without data norm one
        twin = nsd.match(deq, statistics, kernel=kernel, family="auto" if route == "papers" else route)
    verified = None if points is None else twin.verify(points[:2000])
    sizes = {} if points is None else {"in_features": points.shape[1]}
    source = nsd.pytorch_code(twin, parametrisation=code or "ntk", **sizes)
    if save is not None:
        write_text(save, as_json(twin.to_dict()) + "\n")
    if json:  # text is printed as it is, never folded, so that source can be copied from any terminal
        verdict = None if verified is None else asdict(verified)
        typer.echo(as_json({**twin.to_dict(), "pytorch": source, "verified": verdict}))
    elif code:
        typer.echo(source.rstrip())
    else:
        typer.echo(f"{twin}" if verified is None else f"{twin}\n  verified  {verified}")
        typer.echo(f"\n# PyTorch source of the twin\n\n{source.rstrip()}")


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


@command
def explore(
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the page with stored numbers there, and serve nothing.")
    ] = None,
    activations: Annotated[
        list[str] | None,
        Option("--activation", metavar="NAME", help="With --output: store this one; may be repeated."),
    ] = None,
    no_browser: Annotated[bool, Option("--no-browser", help="Print the address and open nothing.")] = False,
    force: inputs.Force = False,
) -> None:
    """Open the explorer in your browser: Python computes on this machine, and the page shows it; Ctrl-C ends it.

    Examples
    --------
      notsodeep explore
      notsodeep explore --no-browser
      notsodeep explore -o explorer.html --activation relu --activation tanh
    """
    from ..explore import serve, stored_page
    from ..explore.controls import STORED, names

    inputs.check_target(output, force)
    if output is None:
        inputs.refuse("belongs to --output", activation=activations, force=force)
        serve(typer.echo, open_browser=not no_browser)
        return
    inputs.refuse("nothing is opened with --output", no_browser=no_browser)
    for name in activations or ():
        if name not in names():
            raise InvalidInputError(f"--activation {name!r:.60} is none of {', '.join(names())}.")
    stops = {**STORED, "activation": tuple(dict.fromkeys(activations or names()))}
    write_text(output, stored_page(stops))
    typer.echo(f"wrote {output}; open it in a browser")


@command
def demo(
    folder: Annotated[Path, Option("--output", "-o", help="Where demo.png goes.")] = Path("demo"),
    quick: Annotated[bool, Option("--quick", help="Small sizes: a few seconds.")] = False,
) -> None:
    """Show a trained DEQ replaced and proven, a twin, and learned features in one figure.

    Examples
    --------
      notsodeep demo
      notsodeep demo --quick --output out
    """
    from notsodeep import demo as show_case

    show_case.main(folder, quick=quick)
