"""``kernel`` writes kernel matrices; ``spectrum`` and ``learn`` predict what follows from them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from typer import Option

import notsodeep as nsd

from .._files import write_matrix
from .._words import Kernel
from ..errors import DataError, InvalidInputError
from . import inputs
from .command import app, complain, print_json

_EXACT = 4000  # points up to which a law is compared with the exact kernel: its eigenvalues take ten seconds
_FAR = 0.1  # Kolmogorov distance beyond which a law is no prediction
_REASON = "n or p is small, or the data has low effective rank or unequal norms; trust the exact eigenvalues"
_PICTURES = (".png", ".svg", ".pdf")
Plot = Annotated[Path | None, Option("--plot", help="Draw it into a .png, .svg or .pdf file.")]


@app.command()
def kernel(
    points: inputs.Points,
    activation: inputs.AnyPhi = None,
    output: Annotated[str, Option("--output", "-o", help="A .npy file, or - for standard output.")] = "kernel.npy",
    sigma_a2: inputs.SigmaA2 = None,
    sigma_b2: inputs.SigmaB2 = None,
    sigma_c2: inputs.SigmaC2 = 0.0,
    layers: inputs.Layers = None,
    twin: Annotated[str | None, Option("--twin", help="A twin.json instead: the kernel it matches.")] = None,
    which: Annotated[
        Kernel | None, Option("--kernel", "-k", help="ck (default), ntk or ntk_frozen; a twin says it.")
    ] = None,
    against: Annotated[
        str | None, Option("--against", help="Training rows: the kernel between X and them, prepared alike.")
    ] = None,
    standardise: inputs.Standardise = False,
    force: inputs.Force = False,
) -> None:
    r"""Write an exact kernel matrix into a .npy file, which is filled block by block on the disk.

    The file appears under its name only when it is complete.

    \b
    Examples:
      notsodeep kernel X.npy relu -o K.npy --kernel ntk
      notsodeep kernel X.npy --twin twin.json -o K.npy
      notsodeep kernel test.npy relu --against train.npy --standardise -o K.npy
      cat X.npy | notsodeep kernel - --layers tanh/tanh -o - > K.npy
    """
    if output != "-":
        inputs.check_target(Path(output), force, ".npy")
    fill: Any = _filler(twin, activation, layers, which, sigma_a2=sigma_a2, sigma_b2=sigma_b2, sigma_c2=sigma_c2)
    X, Y = _both(points, against, standardise)
    shape = (len(X), len(X if Y is None else Y))
    if output == "-":
        matrix = np.empty(shape, dtype=X.dtype)
        fill(X, Y, matrix)
        np.save(SimpleNamespace(write=sys.stdout.buffer.write), matrix)  # in pieces: a reader may close the pipe
        sys.stdout.buffer.flush()
        return
    write_matrix(Path(output), shape, X.dtype, lambda mapped: fill(X, Y, mapped))


def _filler(twin: str | None, activation: str | None, layers: str | None, which: Any, **variances: Any) -> Any:
    """Return a function that writes the kernel of a network, or of the twin in a file, into a matrix."""
    if twin is None:
        network = inputs.network_from(activation, layers, **variances)
        name: Any = which or "ck"
        return lambda X, Y, out: nsd.kernels_of(network, X, Y, kernels=(name,), out={name: out})
    inputs.refuse("the file of --twin says it", activation=activation, layers=layers, kernel=which, **variances)
    designed = inputs.read_twin(twin)
    return lambda X, Y, out: designed.kernel_matrix(X, Y, out=out)


def _both(points: str, against: str | None, standardise: bool) -> tuple[Any, Any]:
    """Return the rows, and the training rows if there are any, by whose mean and scale both are standardised."""
    if against is None:
        return inputs.points_from(points, standardise), None
    if points == "-" == against:
        raise InvalidInputError("only one of the two sets of points can come from standard input.")
    X, train = inputs.points_from(points), inputs.points_from(against)
    if X.shape[1] != train.shape[1]:
        raise DataError(
            f"{points} has {X.shape[1]} columns and {against} {train.shape[1]}: one kernel needs the same features."
        )
    if not standardise:
        return X, train
    fitted = nsd.Standardiser().fit(train)
    return fitted.transform(X), fitted.transform(train)


@app.command()
def spectrum(
    activation: inputs.AnyPhi = None,
    sigma_a2: inputs.SigmaA2 = None,
    sigma_b2: inputs.SigmaB2 = None,
    layers: inputs.Layers = None,
    which: inputs.WhichKernel = "ck",
    data: inputs.Data = None,
    labels: inputs.Labels = None,
    dimension: Annotated[int | None, Option("-p", help="Dimension of the papers' two-class mixture.")] = None,
    number: Annotated[int | None, Option("-n", help="Number of points; default 0.8 p, or the data's.")] = None,
    standardise: inputs.Standardise = False,
    plot: Plot = None,
    json: inputs.Json = False,
    force: inputs.Force = False,
) -> None:
    r"""Predict the spectrum of a kernel without sampling: the bulk, its density, the isolated eigenvalues.

    \b
    Examples:
      notsodeep spectrum relu -p 1000 -n 800
      notsodeep spectrum tanh --kernel ntk --data X.npy --labels y.npy --standardise --plot spectrum.png
      notsodeep spectrum --layers relu/relu -p 500 --json
    """
    inputs.check_target(plot, force, *_PICTURES)
    network = inputs.network_from(activation, layers, sigma_a2, sigma_b2=sigma_b2)
    source, X = _source(data, labels, dimension, number, standardise)
    law = nsd.spectral_law(network, source, n=number if data is not None else len(X), kernel=which)
    exact = nsd.kernels_of(law.coefficients.network, X[: min(law.n, _EXACT)], kernels=(which,))[which]
    display = nsd.plots.SpectrumDisplay.from_kernel(exact, law if len(exact) == law.n else None)
    if plot is not None:
        inputs.save_plot(display, plot)
    if json:
        bulks = [{"low": a, "high": b, "mass": m} for (a, b), m in zip(law.support, law.masses, strict=True)]
        atoms = [{"value": a.value, "mass": a.mass} for a in law.atoms]
        spikes = [float(spike.value) for spike in law.spikes]
        numbers = {"kernel": which, "n": law.n, "p": law.p, "bulks": bulks, "atoms": atoms, "spikes": spikes}
        print_json({**numbers, "distance": display.distance})
        return
    typer.echo(law.summary())
    if display.distance is None:
        typer.echo(f"distance  not measured: the exact kernel is compared up to {_EXACT:,} points")
        return
    typer.echo(
        f"distance  {display.distance:.3f} (Kolmogorov) from the eigenvalues of the exact kernel on these points"
    )
    if display.distance > _FAR:
        complain(f"the prediction is far from the exact spectrum: {_REASON}.", "yellow")


def _source(data: str | None, labels: str | None, p: int | None, n: int | None, standardise: bool) -> tuple[Any, Any]:
    """Return what the law is computed from, and points on which it is compared with the exact kernel."""
    if data is not None:
        inputs.refuse("is the dimension of a mixture; with --data it is the number of columns", p=p)
        statistics = inputs.statistics_from(data, labels, standardise)
        return statistics, statistics.X
    inputs.refuse("belongs to --data; the mixture of -p has its own", labels=labels, standardise=standardise)
    p = 1000 if p is None else p
    n = round(0.8 * p) if n is None else n
    if p < 16 or n < 8 or n * p > 1e9:
        raise InvalidInputError(
            f"the mixture needs p of at least 16, n of at least 8 and at most 1e9 numbers in all, got p = {p} and "
            f"n = {n}."
        )
    mixture = nsd.GaussianMixture.two_class(p)
    return mixture, mixture.sample(n, seed=0)[0]


@app.command()
def learn(
    activation: inputs.AnyPhi = None,
    sigma_a2: inputs.SigmaA2 = None,
    sigma_b2: inputs.SigmaB2 = None,
    sigma_c2: inputs.SigmaC2 = 0.0,
    layers: inputs.Layers = None,
    which: inputs.WhichKernel = "ntk",
    dimension: Annotated[int, Option("-p", help="Dimension of the two-class mixture.")] = 1000,
    number: Annotated[str, Option("-n", help="Training points: a number, or a range as 200:5000.")] = "200:5000",
    means: Annotated[float, Option("--means", help="Length of the class means.")] = 2.0,
    traces: Annotated[float, Option("--traces", help="c of the covariances I and (1 + c/sqrt(p)) I.")] = 4.0,
    ridge: Annotated[str, Option("--ridge", help="Relative to the mean diagonal: a number or a range.")] = "1e-3",
    times: Annotated[
        str | None, Option("--times", help="Gradient flow instead of a ridge: a number or a range.")
    ] = None,
    data: inputs.Data = None,
    labels: inputs.Labels = None,
    standardise: inputs.Standardise = False,
    plot: Plot = None,
    json: inputs.Json = False,
    force: inputs.Force = False,
) -> None:
    r"""Predict how well a network learns a mixture, without sampling; or estimate it from data by leave-one-out.

    \b
    Examples:
      notsodeep learn relu -p 1000 -n 200:5000 --means 2 --kernel ntk
      notsodeep learn relu -p 1000 -n 800 --times 0.01:100
      notsodeep learn relu --data X.npy --labels y.npy --standardise --ridge 0.01 --plot curve.png
    """
    inputs.check_target(plot, force, *_PICTURES)
    network = inputs.network_from(activation, layers, sigma_a2, sigma_b2=sigma_b2, sigma_c2=sigma_c2)
    display: Any = nsd.plots.LearningDisplay
    if data is not None:
        found: Any = _estimate(network, which, data, labels, standardise, ridge)
        draw = display.from_estimate
    else:
        inputs.refuse("belongs to --data", labels=labels, standardise=standardise)
        mixture = nsd.GaussianMixture.two_class(dimension, mu=means, cov=traces)
        found = _curve({activation or str(layers): network}, mixture, which, number, ridge, times)
        draw = display.from_curve
    if plot is not None:
        inputs.save_plot(draw(found), plot)
    if json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))


def _curve(networks: Any, mixture: Any, which: Any, number: str, ridge: str, times: str | None) -> Any:
    sizes = _range("-n", number)
    rule = _range("--ridge", ridge) if times is None else _range("--times", times)
    if len(sizes) > 1 and len(rule) > 1:
        raise InvalidInputError("a curve runs over one thing: give a range for -n, --ridge or --times, not for two.")
    n: Any = int(sizes[0]) if len(rule) > 1 else np.unique(sizes.round())
    value: Any = rule if len(rule) > 1 else float(rule[0])
    return nsd.learning_curve(networks, mixture, n, which, **{"ridge" if times is None else "times": value})


def _estimate(network: Any, which: Any, data: str, labels: str | None, standardise: bool, ridge: str) -> Any:
    if labels is None:
        raise InvalidInputError("--data needs --labels: leave-one-out asks for the class of every row.")
    value = _range("--ridge", ridge)
    if len(value) > 1:
        raise InvalidInputError("with --data give one --ridge; the curve runs over the number of rows.")
    X = inputs.points_from(data, standardise)
    return nsd.estimate_learning(network, X, inputs.labels_from(labels, len(X)), which, ridge=float(value[0]))


def _range(option: str, text: str) -> np.ndarray:
    """Return the numbers of ``a``, ``a:b`` or ``a:b:points``, in equal ratios; twelve of them by default."""
    parts = text.split(":")
    try:
        low, high = float(parts[0]), float(parts[min(1, len(parts) - 1)])
        count = int(parts[2]) if len(parts) == 3 else 12
    except ValueError:
        low, high, count = -1.0, -1.0, 0
    if len(parts) > 3 or (len(parts) > 1 and (not 0 < low < high or not 2 <= count <= 10_000)) or low < 0:
        raise InvalidInputError(f"{option} takes a number, low:high or low:high:points, got {text!r}.")
    return np.geomspace(low, high, count) if len(parts) > 1 else np.array([low])
