"""``fit`` and ``predict``: a kernel machine from a table, and its predictions for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ...errors import DataError, InvalidInputError
from .. import options as opt
from ..app import app
from ..cluster import Scheduler, Workers, client_from
from ..files import atomic, check_target
from ..output import note, print_json, show
from ..tables import read_table, split_target

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
    scheduler: Scheduler = None,
    workers: Workers = None,
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

    import notsodeep as nsd
    from notsodeep.estimators import save_estimator

    check_target(output, force)
    deq = opt.deq_from(activation, sigma_a2, sigma_b2, sigma_c2)
    X, y, names = split_target(data, target, labels)
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
    with client_from(scheduler, workers) as model.client:
        machine.fit(X, y)
    model.client = None
    save_estimator(machine, output, {"columns": names, "target": target})
    note(f"written: {output}")
    summary = _summary(model, X, y, classify)
    if json:
        print_json(summary)
    else:
        show("\n".join(f"{name:<22} {value}" for name, value in summary.items()))


def _ridge(text: str) -> Any:
    if text == "loo":
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--ridge must be a positive number or loo, got {text!r}.") from None


def _is_classification(y: Any) -> bool:
    import numpy as np

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

    if output is not None:
        check_target(output, force)
    learner, extra = load_with_extra(model)
    X = _new_rows(data, extra)
    if X.shape[1] != learner.n_features_in_:
        raise DataError(
            f"{data} has {X.shape[1]} columns and {model} was fitted with {learner.n_features_in_}; give the same ones."
        )
    if proba and not hasattr(learner, "predict_proba"):
        raise InvalidInputError(f"{model} predicts numbers, which have no probabilities; leave --proba out.")
    found = learner.predict_proba(X) if proba else learner.predict(X)
    header = [f"p({name})" for name in learner.classes_] if proba else [str(extra.get("target") or "prediction")]
    _write(found, header, output)


def _new_rows(data: str, extra: dict[str, Any]) -> Any:
    from ..files import points_from

    table = read_table(data)
    if table is None:
        return points_from(data, as_is=True, least=1)
    wanted = extra.get("columns") or []
    if wanted and table.names:
        return table.numbers([table.column(name) for name in wanted])
    return table.numbers(list(range(len(table.cells[0]))))


def _write(found: Any, header: list[str], output: Path | None) -> None:
    import csv
    import sys

    import numpy as np

    rows = found[:, None] if found.ndim == 1 else found
    if output is not None and output.suffix == ".npy":
        with atomic(output) as temporary, open(temporary, "wb") as stream:
            np.save(stream, found)
        return
    if output is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows.tolist()])
        return
    with atomic(output) as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows.tolist()])
