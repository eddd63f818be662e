"""``kernel`` writes kernel matrices; ``spectrum`` and ``learn`` predict what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Option

import notsodeep as nsd

from .._files import write_matrix
from .._words import Kernel
from ..errors import InvalidInputError
from . import inputs
from .command import as_json, command, complain

_EXACT = 4000  # points up to which a law is compared with the exact kernel: its eigenvalues take ten seconds
_LARGEST = 20_000  # points and dimensions of a mixture: its rows take 3 GB then
_PICTURES = (".png", ".svg", ".pdf")


@command
def kernel(
    points: inputs.Points,
    activation: inputs.MaybePhi = None,
    output: Annotated[Path, Option("--output", "-o", help="A .npy file.")] = Path("kernel.npy"),
    sigma_a2: inputs.SigmaA2 = None,
    which: Annotated[Kernel | None, Option("--kernel", "-k", help="Kernel of the DEQ; default ck.")] = None,
    twin: Annotated[Path | None, Option("--twin", help="A twin.json instead: the kernel it matches.")] = None,
    against: Annotated[Path | None, Option("--against", help="Training rows: the kernel between X and them.")] = None,
    standardise: inputs.Standardise = False,
    device: Annotated[str | None, Option("--device", help="cpu, cuda or cuda:1; default cpu.")] = None,
    force: inputs.Force = False,
) -> None:
    """Write an exact kernel matrix into a .npy file, which is filled block by block on the disk.

    The file appears under its name only when it is complete.

    Examples
    --------
      notsodeep kernel X.npy relu -o K.npy --kernel ntk
      notsodeep kernel X.npy --twin twin.json -o K.npy
      notsodeep kernel test.npy relu --against train.npy --standardise -o K.npy
    """
    from .._arrays import as_device, as_rows

    inputs.check_target(output, force, ".npy")
    if activation is not None and inputs.is_data(activation) and not inputs.is_data(str(points)):
        points, activation = Path(activation), str(points)  # either order
    if (activation is None) == (twin is None):
        raise InvalidInputError("name one network: an activation for a DEQ (relu), or --twin twin.json.")
    if twin is None:
        source = inputs.deq_from(str(activation), sigma_a2)
    else:
        inputs.refuse("the file of --twin says it", kernel=which, sigma_a2=sigma_a2)
        source = inputs.read_twin(twin)
    files = [points] if against is None else [against, points]  # the training rows give mean and scale
    rows = inputs.prepared(*files, standardise=standardise)[::-1]
    given = [as_rows(part).to(as_device(device) or "cpu") for part in rows]
    name: Kernel = which or "ck"

    def fill(out: Any) -> None:
        if isinstance(source, nsd.Twin):
            source.kernel_matrix(*given, out=out)
        else:
            nsd.kernels_of(source, *given, kernels=(name,), out={name: out})

    write_matrix(output, (len(rows[0]), len(rows[-1])), rows[0].dtype, fill)


@command
def spectrum(
    activation: inputs.Phi,
    sigma_a2: inputs.SigmaA2 = None,
    which: inputs.WhichKernel = "ck",
    dimension: Annotated[int | None, Option("-p", min=16, max=_LARGEST, help="Dimension of the mixture.")] = None,
    number: Annotated[int | None, Option("-n", min=8, max=_LARGEST, help="Number of points; default 0.8 p.")] = None,
    *,
    table: inputs.Table,
    shown: inputs.Shown,
) -> None:
    """Predict the spectrum of a kernel without sampling: the bulk, its density, the isolated eigenvalues.

    Examples
    --------
      notsodeep spectrum relu -p 1000 -n 800
      notsodeep spectrum tanh --kernel ntk --data X.npy --labels y.npy --standardise --plot spectrum.png
      notsodeep spectrum silu -p 500 --json
    """
    inputs.check_target(shown.plot, shown.force, *_PICTURES)
    network = inputs.deq_from(activation, sigma_a2)
    source, X = _source(table, dimension, number)
    if shown.plot is not None and len(X) > _EXACT:
        raise InvalidInputError(f"--plot shows exact eigenvalues too, of at most {_EXACT:,} points; got {len(X):,}.")
    law = nsd.spectral_law(network, source, n=len(X), kernel=which)
    distance = None
    if len(X) <= _EXACT:
        exact = nsd.kernels_of(law.network, X, kernels=(which,))[which]
        display = nsd.plots.SpectrumDisplay.from_kernel(exact, law)
        distance = display.distance
        if shown.plot is not None:
            inputs.save_plot(display, shown.plot)
    if shown.json:
        bulks = [{"low": a, "high": b, "mass": m} for (a, b), m in zip(law.support, law.masses, strict=True)]
        atoms = [{"value": a.value, "mass": a.mass} for a in law.atoms]
        spikes = [float(spike.value) for spike in law.spikes]
        numbers = {"kernel": which, "n": law.n, "p": law.p, "bulks": bulks, "atoms": atoms, "spikes": spikes}
        typer.echo(as_json({**numbers, "distance": distance}))
        return
    typer.echo(law.summary())
    if distance is not None:
        typer.echo(f"distance  {distance:.3f} (Kolmogorov) from the eigenvalues of the exact kernel on these points")
        if distance > 0.1:  # in Kolmogorov's distance: the law is no prediction
            reason = "n or p is small, or the data has low effective rank or unequal norms"
            complain(f"the prediction is far from the exact spectrum: {reason}.", "yellow")


def _source(table: inputs.Table, p: int | None, n: int | None) -> tuple[Any, Any]:
    """Return what the law is computed from, and points on which it is compared with the exact kernel."""
    data, labels, standardise = table
    if data is not None:
        inputs.refuse("is the size of a mixture; --data has its own columns and rows", p=p, n=n)
        (X,) = inputs.prepared(data, standardise=standardise)
        y = None if labels is None else inputs.labels_from(labels, len(X))
        return nsd.MixtureStatistics.estimate(X, y), X
    inputs.refuse("belongs to --data; the mixture of -p has its own", labels=labels, standardise=standardise)
    p = 1000 if p is None else p
    n = round(0.8 * p) if n is None else n
    mixture = nsd.GaussianMixture.two_class(p)
    return mixture, mixture.sample(n, seed=0)[0]


@command
def learn(
    activation: inputs.Phi,
    sigma_a2: inputs.SigmaA2 = None,
    which: inputs.WhichKernel = "ntk",
    dimension: Annotated[int, Option("-p", help="Dimension of the mixture.")] = 1000,
    number: Annotated[str, Option("-n", help="Training points: a number, or a range such as 200:5000.")] = "200:5000",
    means: Annotated[float, Option("--means", help="Length of the class means.")] = 2.0,
    ridge: Annotated[str, Option("--ridge", help="Relative to the mean diagonal: a number or a range.")] = "1e-3",
    *,
    table: inputs.Table,
    shown: inputs.Shown,
) -> None:
    """Predict how well a network learns a mixture, without sampling; or estimate it from data by leave-one-out.

    Examples
    --------
      notsodeep learn relu -p 1000 -n 200:5000 --means 2 --kernel ntk
      notsodeep learn relu --data X.npy --labels y.npy --standardise --ridge 0.01 --plot curve.png
    """
    inputs.check_target(shown.plot, shown.force, *_PICTURES)
    data, labels, standardise = table
    deq = inputs.deq_from(activation, sigma_a2)
    if data is None:
        inputs.refuse("belongs to --data", labels=labels, standardise=standardise)
        mixture = nsd.GaussianMixture.two_class(dimension, mu=means, cov=4.0)
        sizes, ridges = _range("-n", number), _range("--ridge", ridge)
        if len(sizes) > 1 and len(ridges) > 1:
            raise InvalidInputError("a curve runs over one thing: give a range for -n or for --ridge, not for both.")
        n: Any = int(sizes[0]) if len(ridges) > 1 else np.unique(sizes.round())
        rule: Any = ridges if len(ridges) > 1 else float(ridges[0])
        curve: Any = nsd.learning_curve({activation: deq}, mixture, n, which, ridge=rule)
    elif labels is None:
        raise InvalidInputError("--data needs --labels: leave-one-out asks for the class of every row.")
    elif len(given := _range("--ridge", ridge)) > 1:
        raise InvalidInputError("with --data give one --ridge; the curve runs over the number of rows.")
    else:
        (X,) = inputs.prepared(data, standardise=standardise)
        curve = nsd.estimate_learning(deq, X, inputs.labels_from(labels, len(X)), which, ridge=float(given[0]))
    if shown.plot is not None:
        inputs.save_plot(nsd.plots.LearningDisplay.from_curve(curve), shown.plot)
    typer.echo(as_json(curve.to_dict()) if shown.json else str(curve))


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
