"""``match`` designs the twin of a DEQ; ``explore`` and ``demo`` show what that means."""

from __future__ import annotations

import tempfile
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option

import notsodeep as nsd

from ..errors import InvalidInputError
from . import inputs
from .command import app, print_json

Route = Literal["one-layer", "papers", "sphere"]
Family = Literal["hard_tanh", "skip", "leaky_relu", "quadratic", "hermite"]
_OPTIONS = {
    "one-layer": ("norms", "tol", "kinds", "data", "standardise"),
    "papers": ("tau0", "family", "data", "labels", "standardise"),
    "sphere": (),
}


@app.command()
def match(
    activation: inputs.Phi,
    sigma_a2: inputs.SigmaA2 = None,
    sigma_b2: inputs.SigmaB2 = None,
    sigma_c2: inputs.SigmaC2 = 0.0,
    kernel: inputs.WhichKernel = "ck",
    route: Annotated[
        Route,
        Option(
            "--route",
            help="one-layer: the DEQ as it is, every input; papers: high-dimensional mixtures, plain activations; "
            "sphere: inputs of unit norm.",
        ),
    ] = "one-layer",
    norms: Annotated[
        str | None, Option("--norms", help="one-layer: least and largest norm of the inputs, as 0.5,1.5")
    ] = None,
    tol: Annotated[float | None, Option("--tol", help="one-layer: largest error of the kernel.")] = None,
    kinds: Annotated[int | None, Option("--kinds", min=1, help="one-layer: this many kinds of units.")] = None,
    family: Annotated[Family | None, Option("--family", help="papers: activations of the twin.")] = None,
    tau0: Annotated[
        float | None, Option("--tau0", help="papers: root mean square norm of the inputs; default 1.")
    ] = None,
    data: inputs.Data = None,
    labels: inputs.Labels = None,
    standardise: inputs.Standardise = False,
    code: Annotated[bool, Option("--code", metavar="", help="Print only the PyTorch source of the twin.")] = False,
    json: inputs.Json = False,
    save: Annotated[Path | None, Option("--save", help="Write the twin to a JSON file.")] = None,
    force: inputs.Force = False,
) -> None:
    r"""Design the shallow explicit network that has a DEQ's kernel, with its certificate and its PyTorch source.

    \b
    Examples:
      notsodeep match relu
      notsodeep match tanh --sigma-a2 0.1 --kernel ntk --norms 0.8,1.2 --save twin.json
      notsodeep match relu --data X.npy --standardise
      notsodeep match relu --route papers --data X.npy --labels y.npy
      notsodeep match tanh --route sphere --json
      notsodeep match relu --code > twin.py
    """
    if json and code:
        raise InvalidInputError("--json and --code both claim the output; give one of them (JSON has the source too).")
    inputs.check_target(save, force)
    deq = inputs.deq_from(activation, sigma_a2, sigma_b2, sigma_c2)
    given = {"norms": norms, "tol": tol, "kinds": kinds, "family": family, "tau0": tau0}
    given |= {"data": data, "labels": labels, "standardise": standardise or None}
    twin, points = _twin(deq, kernel, route, {name: value for name, value in given.items() if value is not None})
    verified = None if points is None else twin.verify(points[:2000])
    source = nsd.pytorch_code(twin, **({} if points is None else {"in_features": points.shape[1]}))
    if save is not None:
        inputs.write_json(save, twin.to_dict())
    if json:  # text is printed as it is, never folded, so that source can be copied from any terminal
        print_json({**twin.to_dict(), "pytorch": source, "verified": None if verified is None else asdict(verified)})
    elif code:
        typer.echo(source.rstrip())
    else:
        typer.echo(f"{twin}" if verified is None else f"{twin}\n  verified  {verified}")
        typer.echo(f"\n# PyTorch source of the twin\n\n{source.rstrip()}")


def _twin(deq: Any, kernel: Any, route: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the twin of a route and the points to verify it on, if data were given."""
    others = {name: value for name, value in given.items() if name not in _OPTIONS[route]}
    inputs.refuse(f"has no meaning with --route {route}", **others)
    data, standardise = given.get("data"), given.get("standardise", False)
    if data is None:
        inputs.refuse("belongs to --data", labels=given.get("labels"), standardise=standardise)
    if route == "sphere":
        return nsd.match_sphere(deq, kernel=kernel), None
    if route == "papers":
        statistics = _statistics(data, given.get("labels"), standardise, given.get("tau0"))
        twin = nsd.match(deq, statistics, kernel=kernel, family=given.get("family", "auto"))
        return twin, None if data is None else statistics.X
    points = None if data is None else inputs.points_from(data, standardise)
    chosen = {name: given[name] for name in ("tol", "kinds") if name in given}
    norms = _pair(given["norms"]) if "norms" in given else None if points is None else nsd.matching.norm_range(points)
    return nsd.match_one_layer(deq, kernel, norms, **chosen), points


def _statistics(data: str | None, labels: str | None, standardise: bool, tau0: float | None) -> Any:
    if data is None:
        return 1.0 if tau0 is None else tau0
    if tau0 is not None:
        raise InvalidInputError("--tau0 is measured from --data; give one of the two.")
    return inputs.statistics_from(data, labels, standardise)


def _pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--norms takes two numbers with a comma, as 0.5,1.5; got {text!r}.") from None
    return low, high


@app.command()
def explore(
    output: Annotated[Path | None, Option("--output", "-o", help="Write the page there instead of opening it.")] = None,
) -> None:
    r"""Open the explorer: one page in your browser, no server, nothing fetched, nothing sent.

    \b
    Examples:
      notsodeep explore
      notsodeep explore -o explorer.html
    """
    from .._files import write_text
    from ..explore import page

    file = output or Path(tempfile.mkdtemp(prefix="notsodeep-")) / "explorer.html"
    write_text(file, page())
    opened = output is None and webbrowser.open(file.as_uri())
    typer.echo(f"opened {file}" if opened else f"wrote {file}; open it in a browser")


@app.command()
def demo(
    folder: Annotated[Path, Option("--output", "-o", help="Where demo.png goes.")] = Path("demo"),
    quick: Annotated[bool, Option("--quick", metavar="", help="Small sizes: a few seconds.")] = False,
) -> None:
    r"""Show two DEQs and their one-layer twins in one table and one figure.

    \b
    Examples:
      notsodeep demo
      notsodeep demo --quick --output out
    """
    from notsodeep import demo as show_case

    show_case.main(folder, quick=quick)
