"""``learn``: how well a network will do before it is trained; ``fit`` and ``predict``: a kernel machine of a table."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import notsodeep as nsd

from ..errors import DataError, InvalidInputError
from . import files
from . import options as opt
from .app import answer, app, note

_POINTS = 12  # of a range without its own number


@app.command()
def learn(
    activation: opt.AnyPhi = None,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    sigma_c2: opt.SigmaC2 = None,
    layers: opt.Layers = None,
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
    files.check_plot(plot, force)
    network = opt.network_from(activation, sigma_a2, sigma_b2, layers, sigma_c2)
    if data is not None:
        found: Any = _estimate(network, which, data, labels, standardise, as_is, ridge)
    else:
        mixture = nsd.GaussianMixture.two_class(dimension, mu=means, cov=traces)
        networks = _beside(network, mixture, which) if compare else {activation or str(layers): network}
        found = _curve(networks, mixture, which, number, ridge, times)
    if plot is not None:
        display: Any = nsd.plots.LearningDisplay
        files.save_plot(display.from_curve(found) if data is None else display.from_estimate(found), plot)
    answer(json, found.to_dict(), str(found))


def _curve(networks: Any, mixture: Any, which: Any, number: str, ridge: str, times: str | None) -> Any:
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
    if not isinstance(network, nsd.DEQ):
        raise InvalidInputError("--compare designs the twin of a DEQ: name an activation, not --layers.")
    twin = nsd.match(network, mixture.tau0, kernel=which)
    return {"DEQ": twin.deq, "twin": twin, "plain": twin.plain}


def _estimate(
    network: Any, which: Any, data: str, labels: str | None, standardise: bool, as_is: bool, ridge: str
) -> Any:
    if labels is None:
        raise InvalidInputError("--data needs --labels: leave-one-out asks for the class of every row.")
    value = _range("--ridge", ridge)
    if len(value) > 1:
        raise InvalidInputError("with --data give one --ridge; the curve runs over the number of rows.")
    X = files.points_from(data, standardise=standardise, as_is=as_is)
    return nsd.estimate_learning(network, X, files.labels_from(labels, len(X)), which, ridge=float(value[0]))


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


# ---- machines ------------------------------------------------------------------------------------------------

Task = Literal["auto", "classify", "regress"]
Method = Literal["kernel", "equivalent", "features"]


@app.command()
def fit(
    data: Annotated[str, typer.Argument(help="Rows: .csv (with a header or not), .npy, .npz (array X), or -.")],
    activation: Annotated[str, typer.Argument(metavar="[ACTIVATION]", help="Of the DEQ.")] = "relu",
    output: Annotated[Path, typer.Option("--output", "-o", help="The model: a .safetensors file.")] = Path(
        "model.safetensors"
    ),
    target: Annotated[str | None, typer.Option("--target", "-t", help="Column to predict: a name or a number.")] = None,
    labels: opt.Labels = None,
    task: Annotated[Task, typer.Option("--task", help="auto: words and few whole numbers are classes.")] = "auto",
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    sigma_c2: opt.SigmaC2 = None,
    kernel: opt.WhichKernel = "ntk",
    ridge: Annotated[str, typer.Option("--ridge", help="Relative to the mean diagonal; loo: chosen from the data.")] = (
        "loo"
    ),
    method: Annotated[
        Method, typer.Option("--method", help="kernel (exact), equivalent or features of the twin.")
    ] = "kernel",
    width: Annotated[int, typer.Option("--width", help="Of --method features.")] = 4096,
    as_is: Annotated[bool, typer.Option("--as-is", help="Do not centre and scale the data.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A solve of many rows goes on from this file if it is stopped.")
    ] = None,
    scheduler: opt.Scheduler = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
    force: opt.Force = False,
) -> None:
    """Fit kernel ridge regression with a DEQ's exact kernel, and save it (safetensors and JSON, no pickle).

    \b
    Examples:
      notsodeep fit iris.csv --target species -o iris.safetensors
      notsodeep fit X.npy tanh --labels y.npy --kernel ck --ridge 1e-3
      notsodeep fit houses.csv --target price --task regress
      notsodeep fit X.npy relu --labels y.npy --ridge 1e-3 --scheduler tcp://host:8786
    """
    from sklearn.pipeline import make_pipeline

    from notsodeep.estimators import save_estimator

    files.check_target(output, force)
    deq = opt.deq_from(activation, sigma_a2, sigma_b2, sigma_c2)
    X, y, names = _rows_and_target(data, target, labels)
    classify = _is_classification(y) if task == "auto" else task == "classify"
    maker = nsd.DEQClassifier if classify else nsd.DEQRegressor
    model = maker(
        deq.activation,
        sigma_a2=deq.variances[0],
        sigma_b2=sigma_b2,
        sigma_c2=deq.variances[2],
        kernel=kernel,
        ridge=_ridge(ridge),
        method=method,
        width=width,
        checkpoint=checkpoint,
    )
    machine = model if as_is else make_pipeline(nsd.Standardiser(), model)
    with opt.client_from(scheduler, workers) as model.client:
        machine.fit(X, y)
    model.client = None
    save_estimator(machine, output, {"columns": names, "target": target})
    note(f"written: {output}")
    summary = _summary(model, X, y, classify)
    answer(json, summary, "\n".join(f"{name:<22} {value}" for name, value in summary.items()))


def _rows_and_target(data: str, target: str | None, labels: str | None) -> tuple[Any, Any, list[str]]:
    """Rows, what to predict (words or numbers), and the names of the columns, if there are any."""
    if (target is None) == (labels is None):
        raise InvalidInputError("say what to predict: --target COLUMN of the data, or --labels FILE, not both.")
    if labels is not None:
        X, names = files.read_rows(data)
        return X, files.labels_from(labels, len(X)), list(names)
    table = files.read(data)
    if not isinstance(table, files.Columns):
        raise InvalidInputError("an array has no named columns; give what to predict with --labels FILE.")
    aim = table.column(str(target))
    columns = [i for i in range(len(table.cells[0])) if i != aim]
    if not columns:
        raise DataError(f"{data} has no columns besides the target.")
    X, y = files.as_points(table.numbers(columns), data), files.as_values([row[aim] for row in table.cells])
    return X, y, [table.names[i] for i in columns] if table.names else []


def _ridge(text: str) -> Any:
    if text == "loo":
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--ridge must be a positive number or loo, got {text!r}.") from None


def _is_classification(y: Any) -> bool:
    return y.dtype.kind in "USOb" or (y.dtype.kind in "iu" and len(np.unique(y)) <= max(2, len(y) // 10))


def _summary(model: Any, X: Any, y: Any, classify: bool) -> dict[str, Any]:
    """What was fitted, with the leave-one-out score where there is one."""
    told: dict[str, Any] = {
        "model": type(model).__name__,
        "rows": len(X),
        "features": X.shape[1],
        "ridge (relative)": model.ridge_,
        "solver": model.record_["solver"],
    }
    if not hasattr(model, "loo_"):
        return told
    if classify:
        told["classes"] = len(model.classes_)
        chosen = (model.loo_ > 0).astype(int) if model.loo_.ndim == 1 else model.loo_.argmax(1)
        return told | {"leave-one-out accuracy": float((model.classes_[chosen] == y).mean())}
    spread = float(((y - y.mean()) ** 2).mean())
    error = float(((model.loo_ - y) ** 2).mean())
    return told | {"leave-one-out R2": 1.0 - error / spread if spread > 0 else 0.0}


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="What notsodeep fit wrote.")],
    data: Annotated[str, typer.Argument(help="Rows: .csv, .npy, .npz (array X), or -.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help=".csv or .npy; default: print.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Probabilities of the classes instead of the class.")] = False,
    force: opt.Force = False,
) -> None:
    """Predict with a saved model. Columns are found by name where both files have names.

    \b
    Examples:
      notsodeep predict iris.safetensors new.csv
      notsodeep predict iris.safetensors new.csv --proba -o probabilities.csv
    """
    from notsodeep.estimators.storage import load_with_extra

    files.check_target(output, force)
    learner, extra = load_with_extra(model)
    X, _ = files.read_rows(data, extra.get("columns") or ())
    if X.shape[1] != learner.n_features_in_:
        raise DataError(
            f"{data} has {X.shape[1]} columns and {model} was fitted with {learner.n_features_in_}; give the same ones."
        )
    if proba and not hasattr(learner, "predict_proba"):
        raise InvalidInputError(f"{model} predicts numbers, which have no probabilities; leave --proba out.")
    found = learner.predict_proba(X) if proba else learner.predict(X)
    header = [f"p({name})" for name in learner.classes_] if proba else [str(extra.get("target") or "prediction")]
    _write(found, header, output)


def _write(found: Any, header: list[str], output: Path | None) -> None:
    rows = found[:, None] if found.ndim == 1 else found
    if output is not None and output.suffix == ".npy":
        with files.atomic(output) as temporary, open(temporary, "wb") as stream:
            np.save(stream, found)
        return
    if output is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows.tolist()])
        return
    with files.atomic(output) as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows.tolist()])
