"""Command lines drawn from the command's own parameters: each ends in numbers or in a refusal, never in a trace."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import typer
from typer.testing import CliRunner

from fuzz.damage import damaged, desk
from notsodeep.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
WEIGHTS = {"match": 6, "kernel": 5, "spectrum": 3, "learn": 3}  # the demo and the explorer are tested elsewhere
NUMBERS = ["0.2", "0.1", "1", "0", "-1", "1e-300", "1e300", "nan", "inf", "-inf", "x", "", "0.05", "2", "1e400", "0x10"]
COUNTS = ["2", "16", "40", "0", "-3", "1", "99999999999999999999", "x", "3.5", "", "1e3", "64"]
PHI = ["relu", "tanh", "erf", "gelu", "sin", "linear", "hard_tanh", "leaky_relu:slope=0.3", "cos", "sigmoid", "silu"]
ODD_PHI = [
    "",
    "x",
    "relu:",
    "relu:a=1",
    "leaky_relu:slope=nan",
    "leaky_relu:slope=1e400",
    "hermite",
    "elu:alpha=x",
    "X.npy",
]
RANGES = [
    "0.01",
    "0.1:1",
    "1:0.1",
    "0:1",
    "a:b",
    "",
    "1e-3:1:4",
    "1:2:3:4",
    "nan",
    "40:90",
    "40",
    "1e9",
    "0.5,1.5",
    "1,1",
]
CHOICES = {
    "kernel": ["ck", "ntk", "ntk_frozen", "both", "CK", ""],
    "route": ["one-layer", "papers", "sphere", "hermite", "hard_tanh", "skip", "leaky_relu", "quadratic", "x"],
    "code": ["ntk", "standard", "x"],
}
CHOICES["which"] = CHOICES["kernel"]
FILES = {
    "data": ["X.npy", "single.npy", "X.npz", "X.csv", "table.csv"],
    "labels": ["y.npy", "y.csv", "X.npz"],
    "twin": ["twin.json"],
}
FILES |= {"points": FILES["data"], "against": FILES["data"]}
ODD_FILES = ["nothing.npy", "folder", "", "-", "\x00", "x" * 300, "twin.json", "y.npy", "network.safetensors"]
RESULTS = ["out.npy", "out.csv", "out.npz", "out.json", "out.png", "out.svg", "out.xyz", "folder", "no/where", "", "-"]
SMALL = {"dimension": ["16", "32", "48"]}
_NO_NUMBER = re.compile(r"(?<![\w.])(nan|[-+]?inf(inity)?)(?![\w.])", re.IGNORECASE)


def a_line(rng: np.random.Generator) -> list[str]:
    """A command with arguments: mostly sound ones, some at the borders, some absurd."""
    shares = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())
    name = str(rng.choice(list(WEIGHTS), p=shares))
    sound = rng.random() < 0.4  # a line without absurdities gets further
    line = [name]
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            if parameter.required or rng.random() < 0.6:
                line.append(_value(rng, parameter.name, sound))
        elif parameter.name == "help":
            continue
        elif parameter.is_flag:
            line += [str(parameter.opts[0])] * (rng.random() < (0.7 if parameter.name in ("force", "json") else 0.2))
        elif parameter.name in SMALL:  # what decides how long it takes is always said
            line += [str(parameter.opts[0]), _value(rng, parameter.name, sound)]
        elif parameter.name in ("output", "save", "plot", "folder") or rng.random() < 0.25:
            values = [_value(rng, parameter.name, sound) for _ in range(parameter.nargs)]
            line += [str(rng.choice(parameter.opts)), *values]
    if name == "learn":
        line += ["-n", str(rng.choice(["40", "60:90:2", "0", "x"])) if not sound else "40"]
    if rng.random() < 0.05:
        line.insert(int(rng.integers(len(line) + 1)), str(rng.choice(["--nonsense", "-", "--", "-x", "é", "--json=1"])))
    return line


def _value(rng: np.random.Generator, name: str, sound: bool) -> str:
    def one(pool: list[str], odd: list[str]) -> str:
        return str(rng.choice(pool if sound or not odd or rng.random() < 0.7 else odd))

    if name in FILES:
        if not sound and rng.random() < 0.4:
            return damaged(rng).name
        return one(FILES[name], ODD_FILES)
    if name == "activation":
        return one(PHI, ODD_PHI)
    if name in SMALL:
        return one(SMALL[name], [c for c in COUNTS if c not in ("40", "64")])
    if name in CHOICES:
        return one(CHOICES[name][:3], CHOICES[name])
    if name in ("output", "save", "plot", "folder"):
        return one(RESULTS[:6], RESULTS)
    if name in ("times", "ridge", "number"):
        return one(RANGES[:2], RANGES)
    return one(NUMBERS[:3], NUMBERS)


def run_line(line: list[str], folder: Path) -> str:
    """Run it in this process; what was wrong with the outcome, or nothing."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, line, prog_name="notsodeep")
    said = f"{done.stdout}{done.stderr}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{type(done.exception).__name__}: {done.exception}"
    if "Traceback (most recent" in said:
        return "a trace was printed"
    if done.exit_code == 0:
        found = _NO_NUMBER.search(done.stdout.replace("norms=(0, inf)", ""))  # an advice, no result
        return f"{found.group()} in the output" if found else ""
    if done.exit_code not in (1, 2):
        return f"exit code {done.exit_code}"
    return "" if len(done.stderr.strip()) > 15 else f"refused without a word: {said!r}"


def run_closed(line: list[str], folder: Path) -> str:
    """Run it in this process with a closed standard output, where nothing can succeed; what was wrong, or nothing."""
    told = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(None), contextlib.redirect_stderr(told):
        try:
            app(line, prog_name="notsodeep")
        except SystemExit as end:
            return _refusal(end.code, told.getvalue())
    return "no exit code"


def run_shell(line: list[str], folder: Path) -> str:
    """The same in a process of its own, as a shell closes it."""
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "notsodeep", *line]
    done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return _refusal(done.returncode, done.stderr)


def _refusal(code: Any, told: str) -> str:
    told = " ".join(told.split())
    return "" if code == 1 and "standard output is closed" in told else f"exit code {code} and {told[-300:]!r}"


def one_line(rng: np.random.Generator) -> tuple[list[str], str]:
    """A drawn command line and what was wrong with it."""
    line = a_line(rng)
    where = float(rng.random())  # its results go
    if where < 0.1:
        help = [["--help"], ["--version"], [line[0], "-h"]] if rng.random() < 0.2 else [line]
        line = help[int(rng.integers(len(help)))]
        wrong = run_closed(line, desk())
    elif where < 0.105 and not any("\x00" in part for part in line):  # a process takes seconds
        wrong = run_shell(line, desk())
    else:
        wrong = run_line(line, desk())
    for result in desk().glob("out.*"):
        if not wrong and line[0] == "kernel" and result.suffix == ".npy":
            wrong = "" if np.isfinite(np.load(result)).all() else "the kernel that was written is not finite"
        shutil.rmtree(result) if result.is_dir() else result.unlink()
    return line, wrong
