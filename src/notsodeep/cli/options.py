"""Options that several commands share, and what is built from them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import notsodeep as nsd

from .._words import Kernel as Kernel
from ..errors import ClusterError, ContractionError, DataError, InvalidInputError, MissingExtraError
from .app import note, tell
from .files import labels_from, points_from

_USUAL = 0.2

Phi = Annotated[
    str, typer.Argument(metavar="ACTIVATION", help="A name, or name:parameter=value, as leaky_relu:slope=0.1")
]
AnyPhi = Annotated[str | None, typer.Argument(metavar="[ACTIVATION]", help="Of a DEQ.")]
Layers = Annotated[str | None, typer.Option("--layers", help="An explicit network instead: tanh/tanh")]
SigmaA2 = Annotated[
    float | None,
    typer.Option(
        "--sigma-a2", "-s", help="Variance of the recurrent weights; default 0.2, or 0.8 of the limit if that is less."
    ),
]
SigmaB2 = Annotated[
    float | None, typer.Option("--sigma-b2", help="Variance of the input weights; default 1 - sigma_a2.")
]
SigmaC2 = Annotated[float | None, typer.Option("--sigma-c2", help="Variance of the bias; none unless given.")]
Tau0 = Annotated[
    float | None, typer.Option("--tau0", help="Root mean square norm of the inputs; default 1, or the data's.")
]
WhichKernel = Annotated[
    Kernel, typer.Option("--kernel", "-k", help="ck; ntk: all weights trained; ntk_frozen: input weights frozen.")
]
AnyKernel = Annotated[
    Kernel | None,
    typer.Option("--kernel", "-k", help="ck (default), ntk, ntk_frozen; of a twin one that it matches (default)."),
]
Data = Annotated[
    str | None,
    typer.Option("--data", "-d", help="Points as rows: .npy, .npz (array X), .csv, or - for standard input."),
]
Labels = Annotated[str | None, typer.Option("--labels", "-y", help="One class per row: .npy, .npz (array y) or .csv.")]
Standardise = Annotated[
    bool,
    typer.Option("--standardise", "--standardize", help="Centre the data and scale it to mean squared norm 1."),
]
AsIs = Annotated[bool, typer.Option("--as-is", help="Take data of an unusual scale as it is.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")]


def tau0_from(tau0: float | None) -> float:
    """A norm whose fourth power is a number too."""
    if tau0 is None:
        return 1.0
    if not 1e-70 <= tau0 <= 1e70:
        raise InvalidInputError(f"--tau0 must be positive, between 1e-70 and 1e70, got {tau0:g}. Scale the data.")
    return tau0


def parse_activation(text: str) -> Any:
    """``name`` or ``name:key=value,key=value``."""
    name, _, rest = text.partition(":")
    parameters = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        try:
            parameters[key.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidInputError(
                f"{text!r}: write parameters as name:key=number, for instance leaky_relu:slope=0.1."
            )
    return nsd.activation(name, **parameters)


def deq_from(phi: str, sigma_a2: float | None, sigma_b2: float | None, sigma_c2: float | None = None) -> Any:
    """A DEQ inside its contraction range."""
    known = parse_activation(phi)
    deq = nsd.DEQ(known, _usual_variance(known) if sigma_a2 is None else sigma_a2, sigma_b2, sigma_c2 or 0.0)
    try:
        deq.check_contraction()
    except ContractionError as error:  # the advice that follows speaks of Python arguments
        raise ContractionError(f"{str(error).split('. ')[0]}. Lower --sigma-a2.") from None
    return deq


def _usual_variance(known: Any) -> float:
    """0.2, or where that is beyond the limit of the activation, 0.8 of the limit; the choice is told."""
    limit = nsd.DEQ(known, _USUAL).limit
    if limit > _USUAL:
        return _USUAL
    chosen = float(f"{0.8 * limit:.3g}")
    tell(f"--sigma-a2 {chosen} is taken: the usual {_USUAL} is beyond the limit {limit:.4g} of {known.name}.")
    return chosen


def network_from(
    phi: str | None,
    sigma_a2: float | None,
    sigma_b2: float | None,
    layers: str | None,
    sigma_c2: float | None = None,
) -> Any:
    """The one network that was asked for."""
    if (phi is None) == (layers is None):
        raise InvalidInputError(
            "name one network: an activation for a DEQ (relu), or --layers tanh/tanh for an explicit one, not both."
        )
    if layers is not None:
        given = {"sigma_a2": sigma_a2, "sigma_b2": sigma_b2, "sigma_c2": sigma_c2}
        refuse(f"belongs to a DEQ and --layers {layers} is an explicit network", **given)
        return nsd.ENN([parse_activation(part.strip()) for part in layers.split("/")])
    return deq_from(str(phi), sigma_a2, sigma_b2, sigma_c2)


def refuse(reason: str, **given: Any) -> None:
    """Options that were given and would have no effect."""
    named = ["--" + name.replace("_", "-") for name, value in given.items() if value not in (None, False)]
    if named:
        raise InvalidInputError(f"{', '.join(named)}: {reason}. Leave it out.")


def statistics_from(data: str, labels: str | None, standardise: bool, as_is: bool) -> Any:
    """The statistics of a file of points, with labels if there are any."""
    if data == "-" and labels == "-":
        raise InvalidInputError("data and labels cannot both come from standard input; give one of them as a file.")
    X = points_from(data, standardise=standardise, as_is=as_is)
    y = None if labels is None else labels_from(labels, len(X))
    try:
        return nsd.MixtureStatistics.estimate(X, y)
    except InvalidInputError as error:
        raise DataError(f"{labels or data}: {error}.") from None


# ---- the client of a cluster, for the time of a command ----------------------------------------------------

Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Compute on the Dask cluster of this address: tcp://host:8786")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Compute on so many processes of this machine (Dask).")
]
_PATIENCE = 15  # seconds for a scheduler to answer


@contextlib.contextmanager
def client_from(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """A client, or None where neither was asked for; a cluster of processes goes with the command."""
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise InvalidInputError("give --scheduler for a cluster that runs, or --workers for one of this machine.")
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtraError("distributed", "dask") from None
    with contextlib.ExitStack() as stack:
        if workers is not None:
            threads = max(1, (os.cpu_count() or 1) // workers)
            local = LocalCluster(
                n_workers=workers, threads_per_worker=threads, dashboard_address=":0", silence_logs="ERROR"
            )
            scheduler = stack.enter_context(local).scheduler_address
        try:
            client = stack.enter_context(Client(scheduler, timeout=_PATIENCE))
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no scheduler answers at {scheduler} ({error or type(error).__name__}). Start one with: dask scheduler"
            ) from None
        note(f"cluster: {len(client.scheduler_info(n_workers=-1)['workers'])} workers, {client.dashboard_link}")
        yield client
