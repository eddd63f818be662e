"""What must hold for any network and any data: a case returns how much it checked, or raises ``AssertionError``.

The oracle is a quadrature of the equations, which shares nothing with the library, see quadrature.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
import oracle_units
from fuzz.certificates import a_request, largest_error
from fuzz.damage import damaged, mutated
from fuzz.draws import a_mixture_sample, a_network, rows
from fuzz.quadrature import residuals, resolves
from helpers import tolerance, ulps
from notsodeep.activations import Activation
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import kernels_of, pairwise
from notsodeep.networks import KERNELS, Kernel

Array = NDArray[Any]
EXACT = 2e-10  # of float64 results among themselves, relative to the natural scale of an entry
ANGULAR = 2e-8  # of tangent kernels with kinks, where points lie on one line
ALONE = 2e-7  # of pairs and rectangles, which do not know that two points are one: an angle is a root of rounding
SINGLE = 2e-4  # of float32 against float64: a cosine known to 1e-7 is an angle known to 3e-4 near duplicates


@dataclass(frozen=True)
class Outcome:
    """What one case did."""

    inputs: int
    refused: str = ""
    against_oracle: int = 0
    longest: float = 0.0
    """Seconds of the processor for the one call that the limits speak of: at most fifty points."""
    largest: float = 0.0
    """Megabytes that this call held beyond what the process had before."""


def kernels(rng: np.random.Generator) -> Outcome:
    """Kernel matrices of one network on one data set; an input is a pair of points."""
    return _kernels(rng, a_network(rng))


def cells(rng: np.random.Generator) -> Outcome:
    """The same of networks with cells of several layers, or normalised pre-activations."""
    from fuzz.modules import a_cell

    return _kernels(rng, a_cell(rng))


def modules(rng: np.random.Generator) -> Outcome:
    """Proofs, models that work in place and functions with state; an input is a row, or a pair of rows."""
    from fuzz import modules

    calls = modules.proofs, modules.contractions, modules.in_place, modules.state, modules.fits
    return Outcome(calls[int(rng.integers(len(calls)))](rng))


def inputs(rng: np.random.Generator) -> Outcome:
    """Forms of rows, interrupts and threads; an input is a row, or a call."""
    from fuzz import inputs

    calls = *(inputs.forms,) * 6, inputs.interrupted, inputs.together
    return Outcome(calls[int(rng.integers(len(calls)))](rng))


def _kernels(rng: np.random.Generator, network: Any) -> Outcome:
    X = rows(rng)
    kinds = [k for k in KERNELS if k == "ck" or all(phi.continuous for phi in network.activations)]
    n = len(X)
    found, seconds, megabytes = _measured(lambda: kernels_of(network, X, kernels=kinds, check=False))
    for kind, K in found.items():
        _matrix(K, f"{kind} of {network!r}", _known_to(network, kind, X))
    _same_elsewhere(rng, network, X, found)
    _scaled(rng, network, X, found)
    compared = _oracle_pair(rng, network, X, found)
    limited = n <= 50
    return Outcome(n * (n + 1) // 2, "", compared, seconds * limited, megabytes * limited)


def _measured(call: Callable[[], dict[Any, Array]]) -> tuple[dict[Any, Array], float, float]:
    """What a call returns, its seconds of the processor, and the most it held, in megabytes."""
    before, start = _resident(anew=True), time.process_time()
    found = call()
    return found, time.process_time() - start, max(0.0, _resident() - before)


def _resident(anew: bool = False) -> float:
    """The largest size of this process since it was last asked ``anew``, in megabytes; zero where none tells."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _known_to(network: Any, kind: Kernel, X: Array) -> float:
    """How well entries can be known, relative to their natural scale.

    Slopes that jump see the angle between points, and of points on one line a rounded cosine knows it to 2e-8 only:
    what is found there is the kernel of points moved by their last digit.
    """
    if X.dtype != np.float64:
        return SINGLE
    return ANGULAR if kind != "ck" and any(phi.kinks for phi in network.activations) else EXACT


def _matrix(K: Array, label: str, tol: float) -> None:
    """Finite, symmetric to the bit, within Cauchy-Schwarz, positive semi-definite to rounding."""
    assert np.isfinite(K).all(), f"not finite: {label}"
    assert np.array_equal(K, K.T), f"not symmetric: {label}"
    d = np.sqrt(np.diag(K).astype(np.float64))
    assert np.isfinite(d).all(), f"a negative diagonal: {label}"
    correlations = K.astype(np.float64) / np.maximum(d[:, None], _tiny(K)) / np.maximum(d, _tiny(K))
    assert np.abs(correlations).max() <= 1 + tol, f"Cauchy-Schwarz by {np.abs(correlations).max() - 1:.1e}: {label}"
    least = float(np.linalg.eigvalsh(correlations)[0])
    assert least >= -tol * len(K), f"eigenvalue {least:.1e} of correlations: {label}"


def _tiny(K: Array) -> float:
    """Standard deviations whose squares underflow have no correlations."""
    return 1e-140 if K.dtype == np.float64 else 1e-15


def _apart(K: Array, other: Array, d: Array, e: Array | None = None) -> float:
    """The largest difference, in units of the natural scale of each entry."""
    scale = np.maximum(d[:, None], _tiny(K)) * np.maximum(d if e is None else e, _tiny(K))
    return float((np.abs(K.astype(np.float64) - other) / scale).max())


def _same_elsewhere(rng: np.random.Generator, network: Any, X: Array, found: dict[Any, Array]) -> None:
    """In another order, as a rectangle, one by one, in the other precision."""
    kinds, tol = list(found), EXACT if X.dtype == np.float64 else SINGLE
    order = rng.permutation(len(X))
    wide = X.astype(np.float64)
    again = kernels_of(network, X[order], kernels=kinds, check=False)
    cut = kernels_of(network, X, X[order[:3]], kernels=kinds, check=False)
    exact = found if X.dtype == np.float64 else kernels_of(network, wide, kernels=kinds, check=False)
    i, j = rng.integers(len(X), size=(2, min(8, len(X))))
    s = torch.from_numpy((wide**2).sum(1))
    dot = torch.from_numpy((wide[i] * wide[j]).sum(1))
    alone = pairwise(network, s[i], s[j], torch.where(torch.from_numpy(i == j), s[i], dot), kinds, check=False)
    for kind, K in found.items():
        d = np.sqrt(np.diag(exact[kind]))
        label = f"{kind} of {network!r}"
        known = _known_to(network, kind, X)
        assert _apart(again[kind], K[np.ix_(order, order)], d[order]) <= known, f"depends on the order: {label}"
        assert _apart(cut[kind], K[:, order[:3]], d, d[order[:3]]) <= max(tol, ALONE), f"a rectangle differs: {label}"
        assert _apart(K, exact[kind], d) <= tol, f"float32 differs from float64: {label}"
        scale = np.maximum(d[i], _tiny(K)) * np.maximum(d[j], _tiny(K))
        off = np.abs(alone[kind].numpy() - exact[kind][i, j]) / scale
        assert off.max() <= ALONE, f"one by one differs by {off.max():.1e}: {label}"


def _scaled(rng: np.random.Generator, network: Any, X: Array, found: dict[Any, Array]) -> None:
    """k(c x, c y) = c^2 k(x, y) for homogeneous networks, exactly for powers of two."""
    # scaled or not, their squares have room
    if not network.homogeneous or X.dtype != np.float64 or not 1e-60 < float(np.abs(X).max()) < 1e60:
        return
    factor = 2.0 ** int(rng.integers(-40, 41))
    for kind, K in kernels_of(network, factor * X, kernels=list(found), check=False).items():
        d = np.sqrt(np.diag(found[kind]))
        assert _apart(K / factor**2, found[kind], d) <= EXACT, f"not homogeneous: {kind} of {network!r}"


# ---- the oracle ------------------------------------------------------------------------------------------


def _oracle_pair(rng: np.random.Generator, network: Any, X: Array, found: dict[Any, Array]) -> int:
    """One pair, which may be nearly parallel, against a quadrature of the equations; how many were compared."""
    i, j = (int(k) for k in rng.integers(len(X), size=2))
    with np.errstate(all="ignore"):
        units = X.astype(np.longdouble) / np.linalg.norm(X.astype(np.longdouble), axis=1)[:, None]
        if rng.random() < 0.5:
            j = int(np.argsort(-np.abs(units @ units[i]).astype(float))[min(len(X) - 1, int(rng.integers(1, 3)))])
    x, y = X[i].astype(np.longdouble), X[j].astype(np.longdouble)
    s = (x @ x, y @ y, x @ y)
    pairs = {k: (float(K[i, i]), float(K[j, j]), float(K[i, j])) for k, K in found.items()}
    underflow = 1e-280 if X.dtype == np.float64 else 1e-30
    if min(pairs["ck"][:2]) < underflow or not resolves(network, s, pairs["ck"]):
        return 0
    # the cosine is rounded: kinks see the angle, and far from zero they are narrow
    own = pairs["ck"]  # a bias brings inputs together
    cosines = abs(float(s[2] / np.sqrt(s[0]) / np.sqrt(s[1]))), abs(own[2]) / math.sqrt(own[0]) / math.sqrt(own[1])
    apart = math.sqrt(max(1e-18, 1.0 - max(cosines)))
    seen = ulps(16, X.dtype) * max(1.0, math.sqrt(float(max(s[:2])) + max(pairs["ck"][:2]))) / apart
    for kernel, off in residuals(network, s, pairs).items():
        known = (EXACT if X.dtype == np.float64 else SINGLE) + (0.0 if kernel == "ck" else seen)
        assert off <= known, f"the oracle differs by {off:.1e} at {s}: {kernel} of {network!r}"
    return 1


# ---- equivalents and spectra -----------------------------------------------------------------------------


def equivalents(rng: np.random.Generator) -> Outcome:
    """The operator of the equivalent kernel against its own matrix; an input is a pair of points."""
    network, (_, X, y) = a_network(rng), a_mixture_sample(rng)
    kernel = str(rng.choice(KERNELS))
    equivalent = nsd.equivalent(network, nsd.MixtureStatistics.estimate(X, y), kernel=kernel)  # type: ignore[arg-type]
    K, v = equivalent.matrix(), rng.standard_normal(len(X))
    label = f"equivalent {kernel} of {network!r}"
    assert np.isfinite(K).all(), f"not finite: {label}"
    assert np.array_equal(K, K.T), f"not symmetric: {label}"
    size = float(np.abs(K).max()) + 1e-300
    assert np.abs(equivalent @ v - K @ v).max() <= EXACT * size * len(v), f"product differs: {label}"
    ridge = 1e-3 * size
    least = float(np.linalg.eigvalsh(K / size)[0])
    if least > -5e-4:  # the ridge lifts the rest
        w = equivalent.solve(v, ridge)
        off = np.abs(K @ w + ridge * w - v).max()
        # a low rank part beside a diagonal that is nearly none costs digits
        assert off <= 1e-6 * (size * np.abs(w).max() + np.abs(v).max()), f"solve differs by {off:.1e}: {label}"
        logdet = float(np.linalg.slogdet(K / size + 1e-3 * np.eye(len(v)))[1]) + len(v) * math.log(size)
        # and here as many
        assert abs(equivalent.logdet(ridge) - logdet) <= 1e-6 * (1 + abs(logdet)), f"logdet differs: {label}"
    return Outcome(len(X) * (len(X) + 1) // 2)


def laws(rng: np.random.Generator) -> Outcome:
    """A spectral law has mass one, a density that is none below zero, and isolated eigenvalues outside the bulk."""
    network, (mixture, X, y) = a_network(rng), a_mixture_sample(rng)
    kernel = str(rng.choice(KERNELS))
    source = mixture if rng.random() < 0.6 else nsd.MixtureStatistics.estimate(X, y)
    n = int(rng.integers(len(mixture.weights), 300)) if source is mixture else None
    law = nsd.spectral_law(network, source, n=n, kernel=kernel)  # type: ignore[arg-type]
    label = f"law of {kernel} of {network!r}"
    total = sum(law.masses) + sum(a.mass for a in law.atoms)
    assert abs(total - 1.0) < 1e-5, f"mass {total}: {label}"  # dense covariances promise 5e-6 of mass
    ends = [e for pair in law.support for e in pair]
    assert np.isfinite(ends).all(), f"support {law.support}: {label}"
    assert ends == sorted(ends), f"support {law.support}: {label}"
    if ends and ends[-1] > ends[0]:
        x = np.linspace(ends[0], ends[-1], 50)
        density, share = law.density(x), law.cdf(x)
        assert np.isfinite(density).all(), f"density: {label}"
        assert density.min() >= 0, f"density: {label}"
        room = tolerance(amplified=500)  # masses of bulks as narrow as a share of the largest
        assert (np.diff(share) >= -room).all(), f"cdf: {label}"
        assert share.max() <= 1 + room, f"cdf: {label}"
    for spike in law.spikes:
        assert math.isfinite(spike.value), f"spike: {label}"
        # beside an edge derivatives are steep, and the edge is known to a share of the bulk
        assert all(-1e-6 <= a <= 1 + 1e-3 for a in spike.alignments), f"alignments {spike.alignments}: {label}"
    return Outcome(1)


# ---- the command line, files, documents ------------------------------------------------------------------


def cli(rng: np.random.Generator) -> Outcome:
    """Command lines; an input is one line."""
    from fuzz.commands import one_line  # what the command needs, kernels do not

    for _ in range(_LINES):
        line, wrong = one_line(rng)
        assert not wrong, f"{wrong}: {line!r}"
    return Outcome(_LINES)


def files(rng: np.random.Generator) -> Outcome:
    """Damaged files, each read by everything that reads files."""
    from fuzz.readers import READERS

    for _ in range(_LINES):
        path = damaged(rng)
        for reader in READERS:
            with contextlib.suppress(NotSoDeepError, MemoryError):
                reader(path)
    return Outcome(_LINES * len(READERS))


def documents(rng: np.random.Generator) -> Outcome:
    """Changed documents of networks, activations and twins: loaded, and then themselves again, or refused."""
    for _ in range(_LINES * 10):
        load, sound = DOCUMENTS[int(rng.integers(len(DOCUMENTS)))]
        with contextlib.suppress(NotSoDeepError):
            found = load(mutated(sound, rng))
            assert load(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found, f"not itself: {found!r}"
            assert repr(found), "no name"
    return Outcome(_LINES * 10)


def machines(rng: np.random.Generator) -> Outcome:
    """Estimators; an input is a row that was predicted, twice."""
    from fuzz.arguments import folder
    from fuzz.machines import machine

    with contextlib.chdir(folder()):  # a file may be named "x"
        return Outcome(machine(rng))


def arguments(rng: np.random.Generator) -> Outcome:
    """Public calls with a wrong argument; an input is a call."""
    from fuzz.arguments import arguments as called

    return Outcome(called(rng, _LINES))


def settings(rng: np.random.Generator) -> Outcome:
    """Sound calls under settings of torch; an input is a call."""
    from fuzz.arguments import folder
    from fuzz.settings import settings as under

    with contextlib.chdir(folder()):
        return Outcome(sum(under(rng) for _ in range(_LINES)))


_LINES = 10
_NETWORKS = [
    nsd.DEQ("relu", 0.2, 0.5, 0.1),
    nsd.ENN(["tanh", nsd.activation("hermite", coefficients=(0.1, 0.5, 0.2))]),
    nsd.ENN([nsd.activation("hard_tanh", a=0.9, c=0.5).affine(skip=0.1), "elu"]),
    nsd.DEQ(nsd.activation("erf").affine(0.5, 2.0, 0.1, 0.3), 0.1),
]
_TWINS = [nsd.match(nsd.DEQ("tanh", 0.2), 1.0), nsd.match_sphere(nsd.DEQ("silu", 0.2), terms=4)]
DOCUMENTS: list[tuple[Callable[[Any], Any], Any]] = [
    *((nsd.network_from_dict, network.to_dict()) for network in _NETWORKS),
    *((Activation.from_dict, phi.to_dict()) for network in _NETWORKS for phi in network.activations),
    *((nsd.Twin.from_dict, twin.to_dict()) for twin in _TWINS),
]


def certificates(rng: np.random.Generator) -> Outcome:
    """A one-layer twin of a random range of norms: no pair that a search finds, in its kernel or in a quadrature of
    its units, exceeds its bound."""
    from fuzz.twins import check_source

    request = a_request(rng)
    twin = nsd.match_one_layer(**request)
    worst, pairs = largest_error(rng, twin)
    worst = max(worst, oracle_units.largest_error(twin, rng))
    known = ANGULAR if request["deq"].kinked else EXACT
    assert worst <= twin.bound + known, f"{request}: {worst:.3e} against {twin.bound:.3e} ({twin.certificate.assumes})"
    return Outcome(pairs + 1 + check_source(rng, twin), against_oracle=1)


def replacements(rng: np.random.Generator) -> Outcome:
    """Replacements of models; an input is a promise."""
    from fuzz.replacements import replacements

    return Outcome(replacements(rng))


def evidence(rng: np.random.Generator) -> Outcome:
    """Rows that are no evidence for a promise; an input is a promise."""
    from fuzz.replacements import alone, stale

    return Outcome((stale if rng.random() < 0.7 else alone)(rng))


def classes(rng: np.random.Generator) -> Outcome:
    """Classifiers of many classes; an input is a row."""
    from fuzz.machines import classes

    rows, seconds = classes(rng)
    return Outcome(rows, longest=seconds)


def images(rng: np.random.Generator) -> Outcome:
    """Kernels of images; an input is a pair of them."""
    from fuzz import images

    network = images.a_network(rng)
    X = images.rows(rng, network)
    kinds = [k for k in KERNELS if k == "ck" or all(phi.continuous for phi in network.activations)]
    found, seconds, megabytes = _measured(lambda: kernels_of(network, X, kernels=kinds, check=False))
    order, n = rng.permutation(len(X)), len(X)
    again = kernels_of(network, X[order], kernels=kinds, check=False)
    cut = kernels_of(network, X, X[order[:2]], kernels=kinds, check=False)
    i, j = (int(k) for k in rng.integers(n, size=2))
    wanted = images.plain(network, X[i], X[j]) if images.is_plain(network, X) else None
    for kind, K in found.items():
        label, known = f"{kind} of {network!r}", _known_to(network, kind, X)
        _matrix(K, label, known)
        d = np.sqrt(np.diag(K).astype(np.float64))
        assert _apart(again[kind], K[np.ix_(order, order)], d[order]) <= known, f"depends on the order: {label}"
        off = _apart(cut[kind], K[:, order[:2]], d, d[order[:2]])
        # cosines of sums over windows are rounded more than once, and far out kinks are narrow
        narrow = max(1.0, float(np.linalg.norm(X, axis=1).max())) if network.kinked else 1.0
        assert off <= 5.0 * narrow * max(known, ALONE), f"a rectangle differs by {off:.1e}: {label}"
        if wanted is not None:
            scale = max(d[i], _tiny(K)) * max(d[j], _tiny(K))
            off, told = abs(wanted[kind] - float(K[i, j])) / scale, f"{label}, images {i} and {j} of {X.tolist()}"
            known += ulps(64, K.dtype) * wanted["terms"] / scale  # averages cancel
            assert off <= known, f"all pairs of positions differ by {off:.1e}, not {known:.1e}: {told}"
    return Outcome(n * (n + 1) // 2, "", int(wanted is not None), seconds, megabytes)


def twins(rng: np.random.Generator) -> Outcome:
    """Twins of the papers' families, or on the sphere; an input is a number, or a pair of points."""
    from fuzz import twins

    if rng.random() < 0.5:
        twin = twins.a_match(rng)
        compared = twins.check_numbers(twin)
    else:
        twin = twins.a_sphere(rng)
        compared = twins.check_sphere(rng, twin)
    if rng.random() < 0.5:
        compared += twins.check_kernels(rng, twin)
    return Outcome(compared + twins.check_source(rng, twin), against_oracle=compared)


def derivatives(rng: np.random.Generator) -> Outcome:
    """Derivatives of kernels, and casts of networks; an input is a pair of points, or a row."""
    from fuzz.derivatives import casts, slopes

    return Outcome(slopes(rng) if rng.random() < 0.8 else casts(rng))


CASES = {
    "equivalents": equivalents,
    "kernels": kernels,
    "laws": laws,
    "cli": cli,
    "files": files,
    "documents": documents,
    "machines": machines,
    "arguments": arguments,
    "certificates": certificates,
    "derivatives": derivatives,
    "cells": cells,
    "modules": modules,
    "settings": settings,
    "inputs": inputs,
    "twins": twins,
    "images": images,
    "replacements": replacements,
    "evidence": evidence,
    "classes": classes,
}


def run_case(kind: str, seed: int) -> Outcome:
    """One case from its seed; a refusal by the library is an outcome."""
    try:
        return CASES[kind](np.random.default_rng([seed, list(CASES).index(kind)]))
    except NotSoDeepError as error:
        return Outcome(0, refused=type(error).__name__)
