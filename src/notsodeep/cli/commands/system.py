"""``info``: what is installed, what it can run on, which data it finds."""

from __future__ import annotations

import importlib.metadata
import platform
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import __version__
from .. import options as opt
from ..app import app
from ..output import print_json, show

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
    if json:
        print_json(found)
        return
    lines = [f"notsodeep {found['notsodeep']}, Python {found['python']}, {found['platform']}"]
    lines += ["packages     " + ", ".join(f"{k} {v or 'not installed'}" for k, v in found["packages"].items())]
    lines += ["devices      " + ", ".join(found["devices"])]
    lines += ["activations  " + ", ".join(found["activations"])]
    lines += ["data         " + "; ".join(f"{k}: {v}" for k, v in found["data"].items())]
    show("\n".join(lines))


def _gather() -> dict[str, Any]:
    import notsodeep as nsd

    return {
        "notsodeep": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": _devices(),
        "activations": nsd.activation_names(),
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
    from ..._files import write_text
    from ...explore import page

    file = output or Path(tempfile.mkdtemp(prefix="notsodeep-")) / "explorer.html"
    write_text(file, page())
    if output is not None:
        show(f"wrote {file}; open it in a browser")
    elif webbrowser.open(file.as_uri()):
        show(f"opened {file}")
    else:
        show(f"no browser was found; open {file} yourself, or write it elsewhere with -o")
