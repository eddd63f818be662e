"""Options that several commands share, and what is made of them: networks, rows of data, labels, output files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from typer import Argument, Option

import notsodeep as nsd

from .._files import atomic
from .._words import Kernel
from ..errors import DataError, InvalidInputError, MissingExtraError, NotSoDeepError
from .command import complain

# names of activations without parameters for the shell's completion, since torch takes a second to load
NAMES = (
    *("arctan", "cos", "elu", "erf", "gelu", "hard_swish", "hard_tanh", "leaky_relu", "linear", "mish"),
    *("relu", "selu", "sigmoid", "silu", "sin", "softplus", "tanh"),
)


_CLASSES = ("label", "labels", "class", "classes", "target", "y")  # of columns that are hardly meant as features


def activations_from(incomplete: str) -> list[str]:
    """Return the names of activations that begin so."""
    return [name for name in NAMES if name.startswith(incomplete)]


_PHI = "A name, or name:parameter=value, such as leaky_relu:slope=0.1"
Phi = Annotated[str, Argument(metavar="ACTIVATION", help=_PHI, autocompletion=activations_from)]
MaybePhi = Annotated[str | None, Argument(metavar="[ACTIVATION]", help=_PHI, autocompletion=activations_from)]
SigmaA2 = Annotated[
    float | None, Option("--sigma-a2", "-s", help="Variance of the recurrent weights; default 0.2 or less.")
]
WhichKernel = Annotated[
    Kernel, Option("--kernel", "-k", help="ck; ntk: all weights trained; ntk_frozen: input weights frozen.")
]
_SUFFIXES = (".npy", ".npz", ".csv")
_FORMATS = ".npy, .npz (array X) or .csv (needs notsodeep\\[csv])."
Points = Annotated[Path, Argument(metavar="X", help=f"Points as rows: {_FORMATS}")]
Data = Annotated[Path | None, Option("--data", "-d", help=f"Points as rows: {_FORMATS}")]
Labels = Annotated[Path | None, Option("--labels", "-y", help="One class per row: .npy, .npz (array y) or .csv.")]
Standardise = Annotated[bool, Option("--standardise", "--standardize", help="Centre and scale the data.")]
Json = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
Force = Annotated[bool, Option("--force", "-f", help="Replace an existing file.")]
Plot = Annotated[Path | None, Option("--plot", help="Write the figure to a .png, .svg or .pdf file.")]


class Table(NamedTuple):
    """Options for rows of data in the place of a mixture."""

    data: Data = None
    labels: Labels = None
    standardise: Standardise = False


class Shown(NamedTuple):
    """Options for what is printed and drawn."""

    plot: Plot = None
    json: Json = False
    force: Force = False


class Saved(NamedTuple):
    """Options for what is printed and stored."""

    json: Json = False
    save: Annotated[Path | None, Option("--save", help="Write the twin to a JSON file.")] = None
    force: Force = False


class Promise(NamedTuple):
    """Options of a promise."""

    disagreement: Annotated[float, Option("--disagreement", help="The largest share of other answers.")] = 0.002
    confidence: Annotated[float, Option("--confidence", help="The probability that this holds.")] = 0.95
    tolerance: Annotated[float | None, Option("--tolerance", help="For numbers: the error that is agreement.")] = None


# ---- networks --------------------------------------------------------------------------------------------


def deq_from(text: str, sigma_a2: float | None) -> Any:
    """Return the DEQ of an activation, ``name`` or ``name:key=value,key=value``, if it has a unique equilibrium."""
    phi = _activation(text)
    if sigma_a2 is None:
        bare = nsd.DEQ(phi, 0.0)
        sigma_a2 = bare.usual_variance
        if sigma_a2 != 0.2:
            beyond = f"the usual 0.2 is beyond the limit {bare.limit:.4g} of {phi.name}"
            complain(f"--sigma-a2 {sigma_a2} is taken: {beyond}.", "yellow")
    deq = nsd.DEQ(phi, sigma_a2)
    deq.check_contraction()
    return deq


def is_data(text: str) -> bool:
    """Return whether a word of the command line is a file of data rather than an activation."""
    return text.endswith(_SUFFIXES) or Path(text).is_file()


def _activation(text: str) -> Any:
    if text.endswith(_SUFFIXES):
        raise InvalidInputError(f"{text!r} is a file where an activation stands, such as relu; swap the two.")
    name, _, listed = text.partition(":")
    try:
        parts = [part.split("=") for part in listed.split(",") if part]
        parameters = {key.strip(): float(value) for key, value in parts}
    except ValueError:
        example = "leaky_relu:slope=0.1"
        raise InvalidInputError(f"{text!r}: write parameters as name:key=number, for instance {example}.") from None
    return nsd.activation(name, **parameters)


def refuse(reason: str, **given: Any) -> None:
    """Refuse options that were given and would have no effect."""
    named = ["--" + name.replace("_", "-") for name, value in given.items() if value not in (None, False)]
    if named:
        raise InvalidInputError(f"{', '.join(named)}: {reason}. Leave it out.")


# ---- data ------------------------------------------------------------------------------------------------


def points_from(source: Path, images: bool = False) -> Any:
    """Return the rows of a file of finite numbers, or its images (n, channels, height, width)."""
    from .._arrays import as_rows

    table = _read(source, "X")
    if not isinstance(table, np.ndarray):
        words = table.select_dtypes(exclude="number").columns
        if len(words):
            raise DataError(f"{source}, column {words[0]}: no numbers. Leave it out, or encode it as numbers.")
        if classes := [name for name in table.columns if str(name).lower() in _CLASSES]:
            complain(
                f"{source}: the column {classes[0]} is taken for a feature; labels have a file of their own.", "yellow"
            )
        if table.shape[1] > 1 and len(table) > 2 and table.iloc[:, 0].diff().iloc[1:].eq(1).all():
            complain(f"{source}: the first column counts the rows and is taken for a feature.", "yellow")
        table = table.to_numpy()
    if images and table.ndim == 4:
        return as_rows(table.reshape(len(table), -1), str(source)).numpy().reshape(table.shape)
    return as_rows(table, str(source)).numpy()


def prepared(*sources: Path, standardise: bool) -> list[Any]:
    """Return the rows of all files, standardised by the mean and scale of the first, or with a word on their norms."""
    rows = [points_from(path) for path in sources]
    if standardise:
        scaled = nsd.standardise(*rows)
        return list(scaled) if len(rows) > 1 else [scaled]
    squares = float(np.mean(np.einsum("ij,ij->i", rows[0], rows[0], dtype=np.float64)))
    if not 0.01 <= squares <= 100.0:
        norms = f"the rows of {sources[0]} have a mean squared norm of {squares:.3g}, far from one"
        complain(f"{norms}: is --standardise missing?", "yellow")
    return rows


def labels_from(source: Path, n: int) -> Any:
    """Return the labels of a file, numbers or words; a table may have a heading above its n rows."""
    table = _read(source, "y")
    if isinstance(table, np.ndarray):
        return table
    cells = table.iloc[:, 0].str.strip().tolist() if table.shape[1] == 1 else table.to_numpy().tolist()
    # one line more is a heading where it is a word that is no label; else a row of the data is missing
    heading = len(cells) == n + 1 and cells[0] not in cells[1:] and not str(cells[0]).lstrip("-").isdigit()
    if "" in cells[heading:]:
        raise DataError(
            f"{source}: line {cells.index('', heading) + 1} has no label. Fill it in, or leave the row out."
        )
    return np.array(cells[heading:])


def _read(source: Path, name: str) -> Any:
    """Return the array of a .npy file, the array ``name`` of an .npz file, or a pandas table of text."""
    try:
        with source.open("rb") as stream:
            head = stream.read(6)
            stream.seek(0)
            if head[:4] == b"PK\x03\x04":
                with np.load(stream, allow_pickle=False) as archive:
                    return archive[name]
            return np.load(stream, allow_pickle=False) if head == b"\x93NUMPY" else _table(stream, name)
    except (NotSoDeepError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever NumPy, pandas and the archives below them raise on damaged files
        reason = str(error).splitlines()[0] if str(error) else "it ends too early"
        raise DataError(
            f"{source} cannot be read as numbers: {reason}. Give a .npy file (np.save), an .npz file with an array X "
            "(labels: y), or comma-separated text in UTF-8."
        ) from None


def _table(stream: Any, name: str) -> Any:
    """Return comma-separated text as a table; a first line of rows that holds no number names the columns."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "csv") from None
    text = stream.read().decode("utf-8-sig").rstrip("\r\n") + "\n"
    if name == "y":
        kept: Any = {"header": None, "dtype": str, "keep_default_na": False, "skip_blank_lines": False}
        return pandas.read_csv(io.StringIO(text), **kept)
    first = [cell.strip().strip('"') for cell in text.partition("\n")[0].split(",")]
    named = bool(pandas.to_numeric(pandas.Series(first), errors="coerce").isna().all())
    if len(first) > 1 and first[0] in ("", "Unnamed: 0") and (named or _counts(first[1:])):
        raise DataError(
            "the first column has no name, as the index that pandas writes; leave it out (index=False), or name it."
        )
    if named and len(set(first)) < len(first):
        raise DataError(f"two columns have one name: {', '.join(first)[:200]}. Give each its own.")
    if len(first) > 2 and _counts(first):
        complain(
            f"the first line, {','.join(first[:3])}..., is taken for a row; remove it if it names columns.", "yellow"
        )
    table = pandas.read_csv(io.StringIO(text), header=None, skiprows=int(named))
    if named and table.shape[1] != len(first):
        raise DataError(f"the first line names {len(first)} columns, and the rows have {table.shape[1]} cells.")
    return table.set_axis(first, axis=1) if named else table


def _counts(cells: list[str]) -> bool:
    """Return whether these are the numbers 0, 1, 2 ... or 1, 2, 3 ..., as columns without names have them."""
    return cells in ([str(k + start) for k in range(len(cells))] for start in (0, 1))


def read_twin(source: Path) -> Any:
    """Return the twin of a JSON file that ``notsodeep match --save`` wrote."""
    try:
        return nsd.Twin.from_dict(source.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, NotSoDeepError) as error:
        raise DataError(f"{source} is not a twin: {error}. Write it again with: notsodeep match ... --save") from None


# ---- output ----------------------------------------------------------------------------------------------


def check_target(path: Path | None, force: bool, *suffixes: str) -> None:
    """Fail before the work, not after it: the folder must take a file, and an existing file stays without --force."""
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}; it is written as {' or '.join(suffixes)}.")
    if path.exists() and not force:
        raise InvalidInputError(f"{path} exists and is kept. Choose another name, or add --force to replace it.")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInputError(f"the folder {path.parent} does not exist or cannot be written to. Choose another one.")


def save_plot(display: Any, path: Path) -> None:
    """Draw without a window, into a file of the format that its name says."""
    import matplotlib

    matplotlib.use("Agg")
    with atomic(path) as temporary:
        display.plot().figure_.savefig(temporary, format=path.suffix.lstrip("."), dpi=150)
