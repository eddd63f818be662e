"""Options that several commands share, and what is made of them: networks, rows of data, labels, output files."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

import notsodeep as nsd

from .._files import atomic, write_text
from .._words import Kernel
from ..errors import DataError, InvalidInputError, MissingExtraError, NotSoDeepError
from .command import complain

_USUAL = 0.2  # sigma_a2 of the examples in the papers

Phi = Annotated[str, Argument(metavar="ACTIVATION", help="A name, or name:parameter=value, as leaky_relu:slope=0.1")]
AnyPhi = Annotated[str | None, Argument(metavar="[ACTIVATION]", help="Activation of a DEQ.")]
Layers = Annotated[str | None, Option("--layers", help="An explicit network instead: tanh/tanh")]
SigmaA2 = Annotated[
    float | None, Option("--sigma-a2", "-s", help="Variance of the recurrent weights; default 0.2 or less.")
]
SigmaB2 = Annotated[float | None, Option("--sigma-b2", help="Variance of the input weights; default 1 - sigma_a2.")]
SigmaC2 = Annotated[float, Option("--sigma-c2", help="Variance of the bias.")]
WhichKernel = Annotated[
    Kernel, Option("--kernel", "-k", help="ck; ntk: all weights trained; ntk_frozen: input weights frozen.")
]
_FORMATS = ".npy, .npz (array X), .csv (needs notsodeep\\[csv]), or - for standard input."
Points = Annotated[str, Argument(metavar="X", help=f"Points as rows: {_FORMATS}")]
Data = Annotated[str | None, Option("--data", "-d", help=f"Points as rows: {_FORMATS}")]
Labels = Annotated[str | None, Option("--labels", "-y", help="One class per row: .npy, .npz (array y) or .csv.")]
Standardise = Annotated[bool, Option("--standardise", "--standardize", metavar="", help="Centre and scale the data.")]
Json = Annotated[bool, Option("--json", metavar="", help="Print JSON instead of text.")]
Force = Annotated[bool, Option("--force", "-f", metavar="", help="Replace an existing file.")]


# ---- networks --------------------------------------------------------------------------------------------


def network_from(phi: str | None, layers: str | None, sigma_a2: float | None, **variances: Any) -> Any:
    """Return the one network that was asked for."""
    if (phi is None) == (layers is None):
        raise InvalidInputError(
            "name one network: an activation for a DEQ (relu), or --layers tanh/tanh for an explicit one, not both."
        )
    if layers is not None:
        refuse(f"belongs to a DEQ, and --layers {layers} is an explicit network", sigma_a2=sigma_a2, **variances)
        return nsd.ENN([parse_activation(part.strip()) for part in layers.split("/")])
    return deq_from(str(phi), sigma_a2, **variances)


def deq_from(phi: str, sigma_a2: float | None, sigma_b2: float | None = None, sigma_c2: float = 0.0) -> Any:
    """Return a DEQ that has a unique equilibrium."""
    known = parse_activation(phi)
    deq = nsd.DEQ(known, _usual_variance(known) if sigma_a2 is None else sigma_a2, sigma_b2, sigma_c2)
    deq.check_contraction()
    return deq


def parse_activation(text: str) -> Any:
    """Return the activation that ``name`` or ``name:key=value,key=value`` describes."""
    name, _, rest = text.partition(":")
    parameters = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            parameters[key.strip()] = float(value)
        except ValueError:
            raise InvalidInputError(
                f"{text!r}: write parameters as name:key=number, for instance leaky_relu:slope=0.1."
            ) from None
    return nsd.activation(name, **parameters)


def _usual_variance(known: Any) -> float:
    """Return 0.2 or, where that is beyond the limit of the activation, 0.8 of the limit, with a warning."""
    limit = nsd.DEQ(known, _USUAL).limit
    if limit > _USUAL:
        return _USUAL
    chosen = float(f"{0.8 * limit:.3g}")
    text = f"--sigma-a2 {chosen} is taken: the usual {_USUAL} is beyond the limit {limit:.4g} of {known.name}."
    complain(text, "yellow")
    return chosen


def refuse(reason: str, **given: Any) -> None:
    """Refuse options that were given and would have no effect."""
    named = ["--" + name.replace("_", "-") for name, value in given.items() if value not in (None, False, 0.0)]
    if named:
        raise InvalidInputError(f"{', '.join(named)}: {reason}. Leave it out.")


# ---- data ------------------------------------------------------------------------------------------------


def points_from(source: str, standardise: bool = False) -> Any:
    """Return the rows of a file: finite numbers, standardised if that is wanted."""
    from .._arrays import as_rows

    table = _read(source, "X")
    try:
        rows = as_rows(table if isinstance(table, np.ndarray) else _numbers(table, source), source).numpy()
    except InvalidInputError as error:
        raise DataError(
            f"{error}. Rows are needed, shape (n, p); images become rows by X.reshape(len(X), -1)."
        ) from None
    if standardise:
        return nsd.standardise(rows)
    squares = float(np.mean(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)))
    if not 0.01 <= squares <= 100.0:
        text = (
            f"the rows of {source} have a mean squared norm of {squares:.3g}, far from one: is --standardise missing?"
        )
        complain(text, "yellow")
    return rows


def labels_from(source: str, n: int) -> Any:
    """Return the n labels of a file, numbers or words; a table may have a heading above them."""
    from .._arrays import as_labels

    found = _read(source, "y")
    if not isinstance(found, np.ndarray):
        cells = found.iloc[:, 0].tolist() if found.shape[1] == 1 else found.to_numpy().tolist()
        found = np.array(cells[1:] if len(cells) == n + 1 else cells)
    try:
        return as_labels(found, n)
    except InvalidInputError as error:
        raise DataError(f"{source}: {error}. One-hot labels become classes by y.argmax(1).") from None


def statistics_from(data: str, labels: str | None, standardise: bool) -> Any:
    """Return the statistics of a file of points, with labels if there are any."""
    if data == "-" == labels:
        raise InvalidInputError("data and labels cannot both come from standard input; give one of them as a file.")
    X = points_from(data, standardise)
    y = None if labels is None else labels_from(labels, len(X))
    try:
        return nsd.MixtureStatistics.estimate(X, y)
    except InvalidInputError as error:
        raise DataError(f"{labels or data}: {error}.") from None


def _read(source: str, name: str) -> Any:
    """Return the array of a .npy file, the array ``name`` of an .npz file, or a pandas table of text."""
    content = sys.stdin.buffer.read() if source == "-" else None
    try:
        with open(source, "rb") if content is None else io.BytesIO(content) as stream:
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
    text = stream.read().decode("utf-8-sig")
    if name == "y":
        return pandas.read_csv(io.StringIO(text), header=None, dtype=str, keep_default_na=False)
    first = pandas.Series(text.partition("\n")[0].split(","))
    named = bool(pandas.to_numeric(first, errors="coerce").isna().all())
    return pandas.read_csv(io.StringIO(text), header=0 if named else None)


def _numbers(table: Any, source: str) -> Any:
    words = table.select_dtypes(exclude="number").columns
    if len(words):
        raise DataError(
            f"{source}, column {words[0]!r}: it holds no numbers. Leave this column out, or encode it as numbers first."
        )
    return table.to_numpy()


def read_twin(source: str) -> Any:
    """Return the twin of a JSON file that ``notsodeep match --save`` wrote."""
    try:
        return nsd.Twin.from_dict(sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, NotSoDeepError) as error:
        raise DataError(f"{source} is not a twin: {error}. Write it again with: notsodeep match ... --save") from None


# ---- output ----------------------------------------------------------------------------------------------


def check_target(path: Path | None, force: bool, *suffixes: str) -> None:
    """Fail before the work, not after it: the folder must take a file, and an existing file stays without --force."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; give the name of a file, for instance {path / 'result'}.")
    if suffixes and path.suffix not in suffixes:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}; it is written as {' or '.join(suffixes)}.")
    if path.exists() and not force:
        raise InvalidInputError(f"{path} exists and is kept. Choose another name, or add --force to replace it.")
    if not path.parent.is_dir():
        raise InvalidInputError(f"the folder {path.parent} does not exist. Make it first, or write elsewhere.")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document, whole or not at all."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def save_plot(display: Any, path: Path) -> None:
    """Draw without a window, into a file of the format that its name says."""
    import matplotlib

    matplotlib.use("Agg")
    with atomic(path) as temporary:
        display.plot().figure_.savefig(temporary, format=path.suffix.lstrip("."), dpi=150)
