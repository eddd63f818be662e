"""``kernel`` and ``spectrum``: matrices into files, and the spectra that theory predicts for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import notsodeep as nsd

from ..errors import InvalidInputError
from . import files
from . import options as opt
from .app import app, note, print_json, show, tell

_BLOCK = 512  # columns of an equivalent that are made at once
_EXACT = 4000  # points up to which the law is compared with the exact kernel
_FAR = 0.1  # Kolmogorov distance beyond which the law is no prediction
_MOST = 4 * 10**9  # numbers of a sample, 32 GB


@app.command()
def kernel(
    points: Annotated[str, typer.Argument(metavar="X", help="Points as rows: .npy, .npz, .csv, or - .")],
    activation: opt.AnyPhi = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="A .npy, .npz or .csv file, - for standard output (.npy); on a cluster also .zarr."
        ),
    ] = "kernel.npy",
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    sigma_c2: opt.SigmaC2 = None,
    layers: opt.Layers = None,
    twin: Annotated[str | None, typer.Option("--twin", help="A twin.json instead: the kernel it matches.")] = None,
    which: opt.AnyKernel = None,
    equivalent: Annotated[
        bool, typer.Option("--equivalent", help="The high-dimensional equivalent, not exact.")
    ] = False,
    own_norms: Annotated[
        bool, typer.Option("--own-norms", help="With --equivalent: keep the norm of every row, for norms that differ.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", help="Training rows: the kernel between X and them, prepared alike."),
    ] = None,
    labels: opt.Labels = None,
    centred: Annotated[bool, typer.Option("--centred", help="Centre the network at the data's tau0.")] = False,
    standardise: opt.Standardise = False,
    as_is: opt.AsIs = False,
    scheduler: opt.Scheduler = None,
    workers: opt.Workers = None,
    force: opt.Force = False,
) -> None:
    """Write a kernel matrix, exact or equivalent, into a .npy file that is filled block by block on the disk.

    The file appears under its name only when it is complete. With --scheduler or --workers a Dask cluster writes it
    tile by tile, and the same command goes on where another one ended.

    \b
    Examples:
      notsodeep kernel X.npy relu -o K.npy --kernel ntk
      notsodeep kernel X.npy tanh --equivalent --labels y.npy -o K.npy
      notsodeep kernel X.npy --twin twin.json -o K.npy
      notsodeep kernel test.npy relu --against train.npy --standardise -o K.csv
      notsodeep kernel X.npy relu -o K.zarr --workers 4
      cat X.npy | notsodeep kernel - --layers tanh/tanh -o - > K.npy
    """
    if own_norms and not equivalent:
        raise InvalidInputError("--own-norms belongs to --equivalent; the exact kernel keeps all norms anyway.")
    if labels is not None and not equivalent:
        raise InvalidInputError("--labels are used by --equivalent alone; the exact kernel does not look at them.")
    on_cluster = scheduler is not None or workers is not None
    if on_cluster:
        _check_cluster(output, force, equivalent=equivalent, against=against)
        if twin is not None:
            opt.refuse("a cluster computes the kernel that a twin matches", kernel=which)
    elif output != "-":
        check_format(Path(output))
        files.check_target(Path(output), force)
    if twin is None:
        designed, network = None, opt.network_from(activation, sigma_a2, sigma_b2, layers, sigma_c2)
    else:
        given = {"sigma_a2": sigma_a2, "sigma_b2": sigma_b2, "sigma_c2": sigma_c2, "centred": centred}
        designed = _twin(twin, activation, layers, **given)
        network = designed.network
        if which not in (None, designed.kernel):
            raise InvalidInputError(f"this twin matches {designed.kernel}, got --kernel {which}.")
    if equivalent:
        which = (which or "ck") if designed is None else _equivalent_kernel(designed)
        opt.refuse("the equivalent speaks of one set of points", against=against, centred=centred)
        statistics = opt.statistics_from(points, labels, standardise, as_is)
        operator = nsd.equivalent(network, statistics, which, own_norms=own_norms)
        n = len(statistics.X)
        _write(output, (n, n), statistics.X.dtype, lambda out: _fill_equivalent(operator, out))
        return
    if against is None:
        X, Y = files.points_from(points, standardise=standardise, as_is=as_is), None
    else:
        X, Y = files.same_preparation(points, against, standardise, as_is)
    rows = X if Y is None else Y
    if centred:
        network = network.centred(nsd.MixtureStatistics.estimate(rows).tau0)

    if on_cluster:
        source = network if designed is None else designed
        with opt.client_from(scheduler, workers) as client:
            _write_on_cluster(client, output, source, X, which or "ck")
        return

    def fill(out: Any) -> None:
        if designed is None:
            nsd.kernels_of(network, X, Y, kernels=(which or "ck",), out={which or "ck": out})
        else:
            designed.kernel_matrix(X, Y, out=out)

    _write(output, (len(X), len(rows)), X.dtype, fill)


def _twin(source: str, activation: str | None, layers: str | None, **settings: Any) -> Any:
    """The twin of a file, which says all there is to know of its networks."""
    if activation is not None or layers is not None:
        raise InvalidInputError("--twin names the network; leave out the activation and --layers.")
    opt.refuse("the file of --twin says what its networks are", **settings)
    return nsd.Twin.from_dict(files.read_json(source))


def _equivalent_kernel(twin: Any) -> Any:
    """The kernel of the twin's network that --equivalent speaks of."""
    if twin.learning_rates is not None or twin.normalise:
        has = "carries learning rates" if twin.learning_rates is not None else "divides its inputs by their norm"
        raise InvalidInputError(
            f"this twin {has}, for which --equivalent has no form; leave out --equivalent to get its exact kernel."
        )
    return "ck" if twin.trains == "readout" else twin.kernel


def _fill_equivalent(operator: Any, out: Any) -> None:
    n = len(out)
    for start in range(0, n, _BLOCK):
        columns = np.eye(n, min(_BLOCK, n - start), -start, dtype=out.dtype)
        out[:, start : start + columns.shape[1]] = operator @ columns


def check_format(path: Path) -> None:
    """The suffix decides the format; an unknown one would get bytes that its name denies."""
    if path.suffix not in ("", ".npy", ".npz", ".csv") and not path.is_dir():
        raise InvalidInputError(f"{path} ends in {path.suffix!r}; a kernel is written as .npy, .npz or .csv.")


def _write(output: str, shape: tuple[int, int], dtype: Any, fill: Any) -> None:
    """A matrix to standard output, or beside its target and then into place; .npy files are filled on the disk."""
    path = Path(output)
    if output == "-" or path.suffix in (".npz", ".csv"):
        matrix = np.empty(shape, dtype=dtype)
        fill(matrix)
        if output == "-":
            _stream(matrix)
            return
        with files.atomic(path) as temporary:
            _save(temporary, path.suffix, matrix)
    else:
        with files.matrix_file(path, shape, dtype) as mapped:
            fill(mapped)
    note(f"written: {path}, {shape[0]} x {shape[1]}, {dtype}")


def _check_cluster(output: str, force: bool, **given: Any) -> None:
    """Workers write symmetric matrices, into formats that hold tiles."""
    opt.refuse("a cluster computes the exact kernel of one set of points", **given)
    if Path(output).suffix not in (".npy", ".zarr"):
        raise InvalidInputError(f"a cluster writes .npy or .zarr, tile by tile, got {output}.")
    if Path(output).suffix == ".npy":
        files.check_target(Path(output), force)


def _write_on_cluster(client: Any, output: str, source: Any, X: Any, which: Any) -> None:
    zarr = Path(output).suffix == ".zarr"
    write: Any = nsd.distributed.kernel_to_zarr if zarr else nsd.distributed.kernel_to_npy
    write(source, X, output, which, client=client, dtype=X.dtype.name)
    note(f"written: {output}, {len(X)} x {len(X)}, {X.dtype}")


def _stream(matrix: Any) -> None:
    """Row by row: a reader that has seen enough may close the pipe at any of them."""
    sys.stdout.buffer.write(files.matrix_header(matrix.shape, matrix.dtype))
    for row in matrix:
        sys.stdout.buffer.write(row.tobytes())
    sys.stdout.buffer.flush()


def _save(path: Path, suffix: str, matrix: Any) -> None:
    with open(path, "wb") as stream:
        if suffix == ".npz":
            np.savez(stream, K=matrix)
        else:
            np.savetxt(stream, matrix, delimiter=",", fmt="%.9g" if matrix.dtype == np.float32 else "%.17g")


@app.command()
def spectrum(
    activation: opt.AnyPhi = None,
    sigma_a2: opt.SigmaA2 = None,
    sigma_b2: opt.SigmaB2 = None,
    layers: opt.Layers = None,
    which: opt.WhichKernel = "ck",
    data: opt.Data = None,
    labels: opt.Labels = None,
    dimension: Annotated[int | None, typer.Option("-p", help="Dimension of the papers' two-class mixture.")] = None,
    number: Annotated[int | None, typer.Option("-n", help="Number of points; default 0.8 p, or the data's.")] = None,
    standardise: opt.Standardise = False,
    as_is: opt.AsIs = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw it, with the eigenvalues of the exact kernel.")
    ] = None,
    json: opt.Json = False,
    force: opt.Force = False,
) -> None:
    """Predict the spectrum of a kernel without sampling: the bulk, its density, the isolated eigenvalues.

    \b
    Examples:
      notsodeep spectrum relu -p 1000 -n 800
      notsodeep spectrum tanh --kernel ntk --data X.npy --labels y.npy --standardise --plot spectrum.png
      notsodeep spectrum --layers relu/relu -p 500 --json
    """
    files.check_plot(plot, force)
    network = opt.network_from(activation, sigma_a2, sigma_b2, layers)
    source, X = _source(data, labels, dimension, number, standardise, as_is)
    law = nsd.spectral_law(network, source, n=number if data is not None else len(X), kernel=which)
    display = _display(law, X)
    if plot is not None:
        files.save_plot(display, plot)
    if json:
        bulks = [{"low": a, "high": b, "mass": m} for (a, b), m in zip(law.support, law.masses, strict=True)]
        atoms = [{"value": a.value, "mass": a.mass} for a in law.atoms]
        spikes = [float(spike.value) for spike in law.spikes]
        numbers = {"kernel": which, "n": law.n, "p": law.p, "bulks": bulks, "atoms": atoms, "spikes": spikes}
        print_json({**numbers, "distance": display.distance})
    else:
        show(law.summary())
        _report(display, law, data is not None)


def _source(
    data: str | None, labels: str | None, p: int | None, n: int | None, standardise: bool, as_is: bool
) -> tuple[Any, Any]:
    if data is not None:
        if p is not None:
            raise InvalidInputError("-p is the dimension of a mixture; with --data it is the number of columns.")
        statistics = opt.statistics_from(data, labels, standardise, as_is)
        return statistics, statistics.X
    if labels is not None:
        raise InvalidInputError("--labels belong to --data; the mixture of -p has its own.")
    opt.refuse("the mixture of -p has its own scale, this belongs to --data", standardise=standardise, as_is=as_is)
    p = 1000 if p is None else p
    n = round(0.8 * p) if n is None else n
    if p < 16 or n < 8 or n * p > _MOST:
        raise InvalidInputError(
            f"the mixture needs p of at least 16, n of at least 8 and at most {_MOST:.0e} numbers in all, got "
            f"p = {p} and n = {n}."
        )
    mixture = nsd.GaussianMixture.two_class(p)
    return mixture, mixture.sample(n, seed=0)[0]


def _display(law: Any, X: Any) -> Any:
    """The eigenvalues of the exact kernel beside the law, where the points are few enough to compute them."""
    exact = nsd.kernels_of(law.coefficients.network, X[: min(law.n, _EXACT)], kernels=(law.kernel,))[law.kernel]
    return nsd.plots.SpectrumDisplay.from_kernel(exact, law if len(exact) == law.n else None)


def _report(display: Any, law: Any, measured: bool) -> None:
    """How far the law is from the exact kernel on these points; a large distance has a reason."""
    if display.distance is None:
        show(f"distance  not measured: the exact kernel is compared up to {_EXACT:,} points")
        return
    show(f"distance  {display.distance:.3f} (Kolmogorov) from the eigenvalues of the exact kernel on these points")
    if display.distance > _FAR:
        reason = (
            "data with more points than features, of low effective rank, or of unequal norms does not concentrate as a "
            "mixture in high dimension does"
            if measured
            else "p and n are small for a law of their limit"
        )
        tell(
            f"the predicted spectrum is {display.distance:.2f} away from the exact one: {reason}. Trust the exact "
            f"eigenvalues (notsodeep kernel), not this law. n = {law.n}, p = {law.p}."
        )
