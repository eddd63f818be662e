"""``match`` and ``coefficients``: the four numbers of a network, and the twin that has them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import notsodeep as nsd

from ..errors import InfeasibleMatchError, InvalidInputError
from . import files
from . import options as opt
from .app import answer, app, print_json, show, table

Inputs = Literal["mixture", "sphere", "any"]
_CHECKED = 2000  # points on which a design is verified; more would tell the same


@app.command()
def match(
    activation: opt.Phi,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    sigma_c2: opt.SigmaC2 = None,
    tau0: opt.Tau0 = None,
    data: opt.Data = None,
    labels: opt.Labels = None,
    kernel: Annotated[opt.Kernel, typer.Option("--kernel", "-k", help="Kernel to match.")] = "ck",
    family: Annotated[str, typer.Option("--family", help="Activations of the twin.")] = "auto",
    inputs: Annotated[
        Inputs,
        typer.Option(
            "--inputs",
            help="mixture: high-dimensional data; sphere: unit norm; any: any input, one layer.",
        ),
    ] = "mixture",
    norms: Annotated[
        str | None, typer.Option("--norms", help="With any: least and largest norm of the inputs, as 0.5,1.5")
    ] = None,
    tol: Annotated[float | None, typer.Option("--tol", help="With any: largest error.")] = None,
    kinds: Annotated[int | None, typer.Option("--kinds", min=1, help="With any: this many kinds of units.")] = None,
    standardise: opt.Standardise = False,
    as_is: opt.AsIs = False,
    code: Annotated[bool, typer.Option("--code", help="Print only the PyTorch source of the twin.")] = False,
    json: opt.Json = False,
    save: Annotated[Path | None, typer.Option("--save", help="Write the twin to a JSON file.")] = None,
    force: opt.Force = False,
) -> None:
    """Design the shallow explicit network that has a DEQ's kernel, with its certificate and its PyTorch source.

    \b
    Examples:
      notsodeep match relu
      notsodeep match tanh --sigma-a2 0.1 --kernel ntk --save twin.json
      notsodeep match relu --data X.npy --labels y.npy --standardise
      notsodeep match tanh --inputs sphere --json
      notsodeep match tanh --inputs any --norms 0.8,1.2 --tol 0.01
      notsodeep match relu --code > twin.py
    """
    if json and code:
        raise InvalidInputError("--json and --code both claim the output; give one of them (JSON has the source too).")
    files.check_target(save, force)
    deq = opt.deq_from(activation, sigma_a2, sigma_b2, sigma_c2)
    points, sizes = None, {}
    if inputs == "mixture":
        opt.refuse("belongs to --inputs any", norms=norms, tol=tol, kinds=kinds)
        statistics, points = _statistics(tau0, data, labels, standardise, as_is)
        twin = nsd.match(deq, statistics, kernel=kernel, family=family)
        sizes = _sizes(statistics, labels)
    else:
        given = {"data": data, "labels": labels, "tau0": tau0, "standardise": standardise, "as_is": as_is}
        opt.refuse(f"no meaning for --inputs {inputs}: this twin knows no data", **given)
        opt.refuse(f"no meaning for --inputs {inputs}", family=None if family == "auto" else family)
        twin = _elsewhere(deq, inputs, kernel, norms=norms, tol=tol, kinds=kinds)
    verified = None if points is None else twin.verify(points)
    source = nsd.pytorch_code(twin, **sizes)
    if save is not None:
        files.write_json(save, twin.to_dict())
    if json:
        print_json({**twin.to_dict(), "pytorch": source, "verified": None if verified is None else asdict(verified)})
    elif code:
        typer.echo(source, nl=False)
    else:
        show(str(twin))
        if verified is not None:
            show(f"  verified  {verified}")
        show(f"\nPyTorch source of the twin:\n\n{source.rstrip()}")


def _statistics(tau0: float | None, data: str | None, labels: str | None, standardise: bool, as_is: bool) -> Any:
    """What the match needs to know of the inputs, and the points to verify it on."""
    if data is None:
        if labels is not None:
            raise InvalidInputError("--labels belong to --data; give both, or --tau0 alone.")
        opt.refuse("there is no --data to prepare", standardise=standardise, as_is=as_is)
        return opt.tau0_from(tau0), None
    if tau0 is not None:
        raise InvalidInputError("--tau0 is measured from --data; give one of the two.")
    statistics = opt.statistics_from(data, labels, standardise, as_is)
    return statistics, statistics.X[:_CHECKED]


def _sizes(statistics: Any, labels: str | None) -> dict[str, int]:
    """The sizes of the pasted source, as far as the data tells them."""
    if isinstance(statistics, float):
        return {}
    sizes = {"in_features": statistics.X.shape[1]}
    return sizes if labels is None else sizes | {"out_features": statistics.K}


def _elsewhere(deq: Any, inputs: str, kernel: Any, norms: str | None, **given: Any) -> Any:
    """Twins that are tied to no data."""
    if inputs == "sphere":
        opt.refuse("belongs to --inputs any", norms=norms, **given)
        return nsd.match_sphere(deq, kernel=kernel)
    wanted = {"norms": _pair(norms), **given}
    try:
        return nsd.match_one_layer(deq, kernel, **{name: value for name, value in wanted.items() if value is not None})
    except (InfeasibleMatchError, InvalidInputError) as error:
        raise type(error)(_spoken(str(error))) from None


_OPTIONS = (
    ("match_one_layer(..., kinds=", "--inputs any --kinds "),
    (") as it is", " as it is"),
    ("match_one_layer", "--inputs any"),
    ("Raise tol", "Raise --tol"),
)


def _spoken(advice: str) -> str:
    """Advice that speaks of Python arguments, in options of the command."""
    for said, meant in _OPTIONS:
        advice = advice.replace(said, meant)
    return advice


def _pair(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--norms takes two numbers with a comma, as 0.5,1.5; got {text!r}.") from None
    return low, high


@app.command()
def coefficients(
    activation: opt.AnyPhi = None,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    layers: opt.Layers = None,
    tau0: opt.Tau0 = None,
    json: opt.Json = False,
) -> None:
    """The four numbers that decide each kernel of a network in high dimension.

    \b
    Examples:
      notsodeep coefficients relu --sigma-a2 0.2
      notsodeep coefficients leaky_relu:slope=0.1 --json
      notsodeep coefficients --layers relu/relu --tau0 1.2
    """
    network, tau0 = opt.network_from(activation, sigma_a2, sigma_b2, layers), opt.tau0_from(tau0)
    kernels: tuple[opt.Kernel, ...] = ("ck", "ntk", "ntk_frozen")
    found = {k: nsd.coefficients(network, tau0, k) for k in kernels}
    names = ("c1", "c2", "c3", "diagonal", "alpha4", "tau_star", "bias")
    numbers = {k: {n: getattr(c, n) for n in names} for k, c in found.items()}
    shown = [n for n in names if getattr(found["ck"], n) is not None]
    rows = [[k, *(f"{getattr(c, n):.10g}" for n in shown)] for k, c in found.items()]
    text = table(f"{network!r} at tau0 = {tau0:g}", {"kernel": "left", **dict.fromkeys(shown, "right")}, rows)
    answer(json, {"network": network.to_dict(), "tau0": tau0, "coefficients": numbers}, text)
