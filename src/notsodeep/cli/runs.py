"""``compare``, ``reproduce``, ``bench`` and ``demo``, which run for a while; ``info`` and ``explore``."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import notsodeep as nsd

from .. import __version__
from .._words import Method
from ..errors import InvalidInputError
from . import files
from . import options as opt
from .app import answer, app, print_json, show, table


@app.command()
def compare(
    activation: opt.Phi,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    data: opt.Data = None,
    labels: opt.Labels = None,
    standardise: opt.Standardise = False,
    as_is: opt.AsIs = False,
    width: Annotated[int, typer.Option("--width", "-m", min=1, help="Width of every layer.")] = 512,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Networks of each kind.")] = 3,
    method: Annotated[Method, typer.Option("--method", help="ridge: the readout in closed form.")] = "ridge",
    train: Annotated[
        Literal["readout", "frozen", "all"],
        typer.Option("--train", help="What trains; more than the readout needs sgd or adam."),
    ] = "readout",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of sgd and adam.")] = 20,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate; default 1 of sgd, 0.01 of adam.")] = None,
    json: opt.Json = False,
) -> None:
    """Train a DEQ, its twin and a plain network of the same depth, side by side; a fifth of the data is kept to test.

    Without --data the handwritten digits that come with scikit-learn are used.

    \b
    Examples:
      notsodeep compare relu
      notsodeep compare tanh --width 1024 --seeds 5
      notsodeep compare relu --data X.npy --labels y.npy --standardise --method sgd --epochs 10
    """
    if method == "ridge" and train != "readout":
        raise InvalidInputError("--method ridge solves for the readout alone; to train more take --method sgd or adam.")
    deq = opt.deq_from(activation, sigma_a2, sigma_b2)
    X, y = _labelled(data, labels, standardise, as_is)
    statistics = nsd.MixtureStatistics.estimate(X, y)
    kernels: dict[str, opt.Kernel] = {"readout": "ck", "frozen": "ntk_frozen", "all": "ntk"}
    twin = nsd.match(deq, statistics, kernel=kernels[train])
    found = nsd.compare(
        twin.implicit, twin, (X, y), width=width, seeds=seeds, method=method, train=train, epochs=epochs, lr=lr
    )
    answer(json, found.to_dict(), found.table())


def _labelled(data: str | None, labels: str | None, standardise: bool, as_is: bool) -> tuple[Any, Any]:
    import numpy as np

    if data is None:
        if labels is not None:
            raise InvalidInputError("--labels belong to --data; give both, or neither for the built-in digits.")
        opt.refuse("the built-in digits are standardised already", standardise=standardise, as_is=as_is)
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return nsd.standardise(X), y
    if labels is None:
        raise InvalidInputError("a comparison speaks of accuracy and needs labels: add --labels y.npy.")
    X = files.points_from(data, standardise=standardise, as_is=as_is)
    codes = np.unique(files.labels_from(labels, len(X)), return_inverse=True)[1]
    return X, codes


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; without one, the list is shown.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: seconds instead of minutes.")] = False,
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where numbers and figures go.")] = Path("results"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the data sets; default NOTSODEEP_DATA, else the cache.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda, for what trains.")] = "cpu",
    scheduler: opt.Scheduler = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """Redo a published figure: numbers as JSON, and the figure drawn from them.

    \b
    Examples:
      notsodeep reproduce
      notsodeep reproduce all --quick
      notsodeep reproduce equivalents_error --quick --output figures
      notsodeep reproduce learning --workers 4
    """
    experiments = nsd.experiments
    known = experiments.names()
    if name is None:
        answer(json, {n: asdict(s) for n, s in experiments.STUDIES.items()}, _studies())
        return
    if name not in (*known, "all"):
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidInputError(f"there is no experiment {name!r}; {hint}Known: {', '.join(known)}.")
    chosen = known if name == "all" else (name,)
    with opt.client_from(scheduler, workers) as client:
        options = {"quick": quick, "folder": folder, "data": data, "device": device, "client": client}
        found = {one: experiments.reproduce(one, **options) for one in chosen}
    if json:
        print_json(found if name == "all" else found[name])
        return
    for one, document in found.items():
        seconds = sum(point["seconds"] or 0.0 for point in document["points"].values())
        figures = len(list((folder / one).glob(f"{document['size']}*.svg")))
        text = (
            f"{one:<18} {len(document['points']):>3} points, {seconds:6.1f} s, {figures:>2} figures in {folder / one}"
        )
        show(text)


def _studies() -> Any:
    """The list of studies, with what they show and how long they take on two cores (or as said)."""
    rows = [[name, study.shows, study.quick, study.full] for name, study in nsd.experiments.STUDIES.items()]
    return table("Studies: notsodeep reproduce NAME", dict.fromkeys(("name", "shows", "--quick", "full"), "left"), rows)


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks; without one, all of them.")] = None,
    root: Annotated[Path, typer.Option("--root", help="A checkout of the repository.")] = Path(),
) -> None:
    """Run the benchmarks of a checkout: every figure is a ratio measured in one run.

    \b
    Examples:
      notsodeep bench
      notsodeep bench kernels --root ~/notsodeep
    """
    folder = root / "benchmarks"
    known = sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))
    if not known:
        raise InvalidInputError(
            f"{folder} holds no benchmarks. They come with a checkout, not with the package: use --root."
        )
    unknown = [n for n in names or [] if n not in known]
    if unknown:
        raise InvalidInputError(f"there is no benchmark {unknown[0]!r}; known: {', '.join(known)}.")
    code = subprocess.run([sys.executable, "-m", "benchmarks", *(names or [])], cwd=root).returncode
    if code:
        raise typer.Exit(1)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where report.html goes.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a few seconds.")] = False,
) -> None:
    """Two DEQs, their twins, one table and a report: everything in about a minute.

    \b
    Examples:
      notsodeep demo
      notsodeep demo --quick --output out
    """
    from notsodeep import demo as show_case

    show_case.main(folder, quick=quick)


# ---- what is installed, what it can run on, which data it finds ----------------------------------------------

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "typer", "rich", "safetensors", "onnx")


@app.command()
def info(json: opt.Json = False) -> None:
    """Versions, devices, activations and data: what to send with a question.

    \b
    Examples:
      notsodeep info
      notsodeep info --json
    """
    found = _gather()
    lines = [f"notsodeep {found['notsodeep']}, Python {found['python']}, {found['platform']}"]
    lines += ["packages     " + ", ".join(f"{k} {v or 'not installed'}" for k, v in found["packages"].items())]
    lines += ["devices      " + ", ".join(found["devices"])]
    lines += ["activations  " + ", ".join(found["activations"])]
    lines += ["data         " + "; ".join(f"{k}: {v}" for k, v in found["data"].items())]
    answer(json, found, "\n".join(lines))


def _gather() -> dict[str, Any]:
    return {
        "notsodeep": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": _devices(),
        "activations": nsd.activations.activation_names(),
        "data": _data(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import torch

    names = [f"cpu ({torch.get_num_threads()} threads)"]
    names += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return names + (["mps"] if torch.backends.mps.is_available() else [])


def _data() -> dict[str, str]:
    """The folder where data sets are looked for, and what lies in it; nothing is loaded."""
    from notsodeep.datasets.catalogue import data_folder

    folder = data_folder()
    entries = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    return {"digits": "built in", str(folder): ", ".join(entries) or "empty; set NOTSODEEP_DATA to use another folder"}


# ---- the explorer --------------------------------------------------------------------------------------


@app.command()
def explore(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the page there instead of opening it.")
    ] = None,
) -> None:
    """Open the explorer: one page in your browser, no server, nothing fetched, nothing sent.

    \b
    Examples:
      notsodeep explore
      notsodeep explore -o explorer.html
    """
    from .._files import write_text
    from ..explore import page

    file = output or Path(tempfile.mkdtemp(prefix="notsodeep-")) / "explorer.html"
    write_text(file, page())
    if output is not None:
        show(f"wrote {file}; open it in a browser")
    elif webbrowser.open(file.as_uri()):
        show(f"opened {file}")
    else:
        show(f"no browser was found; open {file} yourself, or write it elsewhere with -o")
