"""``learn``: how well a network will do, before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ...errors import InvalidInputError
from .. import options as opt
from ..app import app
from ..files import check_target, labels_from, points_from, save_figure
from ..output import note, print_json, show

_POINTS = 12  # of a range without its own number


@app.command()
def learn(
    activation: Annotated[str | None, typer.Argument(metavar="[ACTIVATION]", help="Of a DEQ.")] = None,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    sigma_c2: opt.SigmaC2 = None,
    layers: Annotated[str | None, typer.Option("--layers", help="An explicit network instead: tanh/tanh")] = None,
    which: opt.WhichKernel = "ntk",
    dimension: Annotated[int, typer.Option("-p", help="Dimension of the two-class mixture.")] = 1000,
    number: Annotated[str, typer.Option("-n", help="Training points: a number, or a range as 200:5000.")] = "200:5000",
    means: Annotated[float, typer.Option("--means", help="Length of the class means.")] = 2.0,
    traces: Annotated[float, typer.Option("--traces", help="c of the covariances I and (1 + c/sqrt(p)) I.")] = 4.0,
    ridge: Annotated[str, typer.Option("--ridge", help="Relative to the mean diagonal: a number or a range.")] = "1e-3",
    times: Annotated[
        str | None, typer.Option("--times", help="Gradient flow instead of a ridge: a number or a range.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Beside it its twin and a plain network.")] = False,
    data: opt.Data = None,
    labels: opt.Labels = None,
    standardise: opt.Standardise = False,
    as_is: opt.AsIs = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the curve.")] = None,
    json: opt.Json = False,
    force: opt.Force = False,
) -> None:
    """Predict how well a network learns a mixture, without sampling; or estimate it from data by leave-one-out.

    \b
    Examples:
      notsodeep learn relu -p 1000 -n 200:5000 --means 2 --kernel ntk
      notsodeep learn relu -p 1000 -n 800 --times 0.01:100 --compare
      notsodeep learn relu --data X.npy --labels y.npy --standardise --ridge 0.01 --plot curve.png
    """
    import notsodeep as nsd

    if plot is not None:
        check_target(plot, force)
    network = opt.network_from(activation, sigma_a2, sigma_b2, layers, sigma_c2)
    if data is not None:
        found: Any = _estimate(network, which, data, labels, standardise, as_is, ridge)
    else:
        mixture = nsd.GaussianMixture.two_class(dimension, mu=means, cov=traces)
        networks = _beside(network, mixture, which) if compare else {activation or str(layers): network}
        found = _curve(networks, mixture, which, number, ridge, times)
    if plot is not None:
        _draw(found, plot)
        note(f"written: {plot}")
    if json:
        print_json(found.to_dict())
    else:
        show(str(found))


def _draw(found: Any, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import notsodeep as nsd

    made = nsd.LearningDisplay.from_curve if isinstance(found, nsd.LearningCurve) else nsd.LearningDisplay.from_estimate
    save_figure(made(found).plot().figure_, path)


def _curve(networks: Any, mixture: Any, which: Any, number: str, ridge: str, times: str | None) -> Any:
    import notsodeep as nsd

    sizes = _range("-n", number)
    n: Any = np.unique(sizes.round()) if len(sizes) > 1 else int(sizes[0])
    rule = _range("--ridge", ridge) if times is None else _range("--times", times)
    value: Any = rule if len(rule) > 1 else float(rule[0])
    if np.ndim(n) == 0 and np.ndim(value) == 0:
        n = np.array([n])
    if np.ndim(n) and np.ndim(value):
        raise InvalidInputError("a curve runs over one thing: give a range for -n, --ridge or --times, not for two.")
    return nsd.learning_curve(networks, mixture, n, which, **{"ridge" if times is None else "times": value})


def _beside(network: Any, mixture: Any, which: Any) -> dict[str, Any]:
    """The centred DEQ, its twin for this mixture, and a plain network of the twin's depth."""
    import notsodeep as nsd

    if not isinstance(network, nsd.DEQ):
        raise InvalidInputError("--compare designs the twin of a DEQ: name an activation, not --layers.")
    traces = np.array([c.trace() for c in mixture.covariances]) + (mixture.means**2).sum(1)
    twin = nsd.match(network, float(np.sqrt(mixture.weights @ traces / mixture.p)), kernel=which)
    return {"DEQ": twin.deq, "twin": twin, "plain": twin.plain}


def _estimate(
    network: Any, which: Any, data: str, labels: str | None, standardise: bool, as_is: bool, ridge: str
) -> Any:
    import notsodeep as nsd

    if labels is None:
        raise InvalidInputError("--data needs --labels: leave-one-out asks for the class of every row.")
    value = _range("--ridge", ridge)
    if len(value) > 1:
        raise InvalidInputError("with --data give one --ridge; the curve runs over the number of rows.")
    X = points_from(data, standardise=standardise, as_is=as_is)
    return nsd.estimate_learning(network, X, labels_from(labels, len(X)), which, ridge=float(value[0]))


def _range(option: str, text: str) -> np.ndarray:
    """``a``, ``a:b`` or ``a:b:points``, in equal ratios."""
    parts = text.split(":")
    try:
        low, high = float(parts[0]), float(parts[min(1, len(parts) - 1)])
        count = int(parts[2]) if len(parts) == 3 else _POINTS
    except ValueError:
        low, high, count = -1.0, -1.0, 0
    if len(parts) > 3 or (len(parts) > 1 and (not 0 < low < high or not 2 <= count <= 10_000)) or low < 0:
        raise InvalidInputError(f"{option} takes a number, low:high or low:high:points, got {text!r}.")
    return np.geomspace(low, high, count) if len(parts) > 1 else np.array([low])
