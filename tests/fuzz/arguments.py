"""Every public call, and every parameter of it given something that is seldom what was asked for.

    PYTHONPATH=src python tests/fuzz/arguments.py            # all parameters, all values
    PYTHONPATH=src python tests/fuzz/arguments.py match fit  # of these alone

What a call is given beside the wrong argument is sound, so that what comes back is the answer or a refusal by the
library's own errors.
"""

from __future__ import annotations

import array
import contextlib
import copy
import datetime
import functools
import inspect
import io
import math
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas
import scipy.sparse
import torch

matplotlib.use("Agg")
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import notsodeep as nsd
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import power_series


def _within_itself() -> list[Any]:
    held: list[Any] = [1.0]
    held.append(held)
    return held


HUGE = 10**15  # bytes that no machine gives, refused at once
JUNK: tuple[Any, ...] = (
    *("", "x", "ck", -1, 0, 1, 2, 1.5, -0.5, 1e-30, 1e30, HUGE, 2**63, 10**400, -(10**400), True, None, b"x", 1j),
    *(math.nan, math.inf, [], (), {}, set(), [1, 2], (0.5, 1.5), (1.5, 0.5), (math.nan, 1.0), ["ck", "ntk"], [None]),
    *([[1.0]], [[1.0], [1.0, 2.0]], [[]], {"a": 1}, {1: [2]}, object(), len, ..., range(3), iter(())),
    *(np.eye(2), np.eye(3), np.zeros(0), np.zeros((0, 3)), np.array("x"), np.array([1, None], dtype=object)),
    *(np.ones((2, 2, 2)), np.full((3, 3), np.nan), np.array([True, False]), np.float32(0.3), np.int64(3), np.nan),
    *(torch.eye(2), torch.tensor(0.5), torch.zeros(0), torch.ones(3, device="meta"), torch.eye(3).to_sparse()),
    *(torch.ones(3, dtype=torch.complex64), torch.float32, Path("there/is/none"), nsd.DEQ("relu", 0.1)),
    *(nsd.ENN(["tanh"]), nsd.activation("relu"), "\x00", "a" * 300, "../x\n", "\ud800"),
    *(np.str_("tanh"), Fraction(1, 3), Decimal("0.2"), np.bool_(True), np.float16(0.3), np.array(2), np.array(0.3)),
    *(np.ma.masked, np.ma.array([1.0, 2.0, 3.0], mask=[1, 0, 0]), np.eye(3)[::-1], np.broadcast_to(1.0, (3, 3))),
    *(np.full((3, 3), 5e-324), np.full((3, 3), 2**64 - 1, dtype=np.uint64), np.eye(3, dtype=np.float16)),
    *(np.where(np.eye(3) > 0, np.nan, np.inf), np.array(["2020-01-01"], dtype="M8[D]"), np.void(b"x"), 5e-324),
    *(torch.eye(3, requires_grad=True), torch.tensor(0.2, requires_grad=True), torch.eye(3, dtype=torch.bfloat16)),
    *(
        torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        torch.ones(3).expand(3, 3),
        scipy.sparse.eye_array(3),
    ),
    *(pandas.DataFrame(np.eye(3)), pandas.array([1, None, 0], dtype="Int64"), pandas.Categorical(["a", "b", "a"])),
    *(nsd.DEQ("tanh", torch.tensor(0.2, requires_grad=True)), nsd.DEQ("relu", 0.1, readout="pre-activation")),
    *(nsd.DEQ(["tanh", "relu"], 0.05), nsd.DEQ("silu", 0.1, 0.5, 0.3, normalise=True)),
    *(nsd.ConvDEQ("relu", 0.2, 0.8, image=(1, 2, 2), filter=1), nsd.Activation.from_callable(torch.sin, name="sine")),
    *(torch.nn.Linear(3, 2), torch.nn.Parameter(torch.tensor(0.2)), torch.tensor([0.5, 1.5], requires_grad=True)),
    *(torch.eye(3, dtype=torch.complex64).real, torch.tensor(True), torch.tensor(3, dtype=torch.uint8)),
    *(torch.eye(3).to(torch.float8_e5m2), torch.full((3, 3), 1e30), torch.full((3, 3), 1e-42), -torch.zeros(3, 3)),
    *(np.eye(3, dtype=np.longdouble), np.eye(3, dtype=">f8"), np.asfortranarray(np.eye(3)), np.eye(3, dtype="U1")),
    *(np.zeros(3, dtype=[("a", float)]), np.array(None), np.array([[1.0, 2.0], [3.0, None]]), np.full((3, 3), 1e200)),
    *(bytearray(b"xx"), memoryview(b"xx"), array.array("d", [1.0, 2.0]), frozenset([1]), datetime.date(2020, 1, 1)),
    *(pandas.NA, pandas.Series([1.0, 2.0, 3.0]), pandas.Series(["a", "b", "a"]), pandas.Timestamp("2020-01-01")),
    *(_within_itself(), type, NotSoDeepError, np.random.default_rng(0), slice(None), -0.0, "relu"),
    *(
        -math.inf,
        1 - 1e-16,
        2**31,
        2**53 + 1,
        "1e400",
        "0.2",
        "\u0660",
        "relu\n",
        ["relu", None],
        (0, 0),
        (2, 1),
        [10**400],
    ),
)
Sound = dict[str, Any]


@functools.cache
def calls() -> dict[str, tuple[Callable[..., Any], Callable[[], Sound]]]:
    """Public functions, classes and methods by name, each with arguments that are sound; made anew for each call."""
    deq, relu, enn, X, y = nsd.DEQ("tanh", 0.2), nsd.DEQ("relu", 0.2), nsd.ENN(["relu"]), np.eye(3), [0, 1, 1]
    rows = np.random.default_rng(0).standard_normal((12, 4))
    labels = np.arange(12) % 2
    unlabelled = np.random.default_rng(1).standard_normal((200, 3))
    mix = nsd.GaussianMixture.two_class(20)
    statistics = nsd.MixtureStatistics.estimate(rows, labels)
    twin = nsd.match(relu, 1.0)
    table = nsd.kernel_function(deq, "ck", (0.5, 1.5))
    law = nsd.spectral_law(deq, mix, n=30)
    equivalent = nsd.equivalent(deq, statistics)
    phi = nsd.activation("tanh")
    curve = nsd.learning_curve(relu, mix, [20, 40])
    many, sides = mix.sample(128)
    estimate = nsd.estimate_learning(relu, many, sides)
    nn = nsd.nn
    fitted = nsd.DEQClassifier(ridge=1e-2).fit(rows, labels)
    regressor = nsd.DEQRegressor(ridge=1e-2).fit(rows, rows[:, 0])
    process = nsd.DEQGaussianProcess(optimise=False).fit(rows, rows[:, 0])
    features = nsd.DEQFeatures(width=8).fit(rows)
    T, t = torch.from_numpy(rows), torch.from_numpy(rows[:, :1].copy())
    K = torch.from_numpy(nsd.ck(relu, rows)) + 0.1 * torch.eye(12)

    nn_linear = torch.nn.Linear(4, 2)

    def net() -> Any:
        return nn.ENN(enn, 4, 8, 2, seed=0)

    def deep() -> Any:
        return nn.DEQ(deq, 4, 8, 2, seed=0)

    def file(name: str) -> str:
        return os.path.join(folder(), name)

    nn.save(net(), file("network.safetensors"))
    data = lambda: (rows, labels)  # noqa: E731
    table_of: dict[str, tuple[Callable[..., Any], Callable[[], Sound]]] = {
        "activation": (nsd.activation, lambda: {"spec": "leaky_relu", "slope": 0.1}),
        "DEQ": (nsd.DEQ, lambda: {"phi": "tanh", "sigma_a2": 0.1}),
        "ENN": (nsd.ENN, lambda: {"activations": ["tanh"]}),
        "DEQ.centred": (deq.centred, dict),
        "DEQ.centred_scale": (deq.centred_scale, dict),
        "DEQ.from_dict": (nsd.DEQ.from_dict, lambda: {"document": deq.to_dict()}),
        "ENN.centred": (enn.centred, dict),
        "ENN.from_dict": (nsd.ENN.from_dict, lambda: {"document": enn.to_dict()}),
        "network_from_dict": (nsd.network_from_dict, lambda: {"document": enn.to_dict()}),
        "Activation.__call__": (phi.__call__, lambda: {"x": rows}),
        "Activation.derivative": (phi.derivative, lambda: {"x": rows}),
        "Activation.second_derivative": (phi.second_derivative, lambda: {"x": rows}),
        "Activation.affine": (phi.affine, dict),
        "Activation.centred": (phi.centred, lambda: {"at": 1.0}),
        "Activation.from_dict": (nsd.Activation.from_dict, lambda: {"document": phi.to_dict()}),
        "Activation.from_callable": (nsd.Activation.from_callable, lambda: {"function": torch.tanh}),
        "ck": (nsd.ck, lambda: {"network": deq, "X": X}),
        "ntk": (nsd.ntk, lambda: {"network": enn, "X": X}),
        "kernels_of": (nsd.kernels_of, lambda: {"network": deq, "X": X}),
        "kernel_function": (nsd.kernel_function, lambda: {"network": deq, "kernel": "ck", "norms": (0.5, 1.5)}),
        "KernelFunction.__call__": (table.__call__, lambda: {"X": X}),
        "KernelFunction.diagonal": (table.diagonal, lambda: {"X": X}),
        "finite_ck": (nsd.finite_ck, lambda: {"network": deq, "X": X, "width": 8}),
        "finite_ntk": (nsd.finite_ntk, lambda: {"network": enn, "X": X, "width": 8}),
        "empirical_ntk": (nsd.empirical_ntk, lambda: {"model": net().double(), "X": T}),
        "empirical_ck": (nsd.empirical_ck, lambda: {"model": net().double(), "X": T}),
        "linearise": (nsd.linearise, lambda: {"model": net()}),
        "lazy": (nsd.lazy, lambda: {"model": net().double(), "X": T, "start": net().double()}),
        "coefficients": (nsd.coefficients, lambda: {"network": deq}),
        "hermite_coefficients": (nsd.gaussian.hermite_coefficients, lambda: {"phi": "tanh", "q": 1.0, "terms": 4}),
        "moments": (nsd.gaussian.moments, lambda: {"phi": "tanh", "tau": 1.0}),
        "norm_range": (nsd.matching.norm_range, lambda: {"X": X}),
        "relative_spectral_error": (nsd.equivalents.relative_spectral_error, lambda: {"exact": X, "approximation": X}),
        "standardise": (nsd.standardise, lambda: {"X": rows}),
        "GaussianMixture": (nsd.GaussianMixture, lambda: {"means": np.zeros((2, 3)), "covariances": [1.0, 1.0]}),
        "GaussianMixture.two_class": (nsd.GaussianMixture.two_class, lambda: {"p": 20}),
        "GaussianMixture.counts": (mix.counts, lambda: {"n": 30}),
        "GaussianMixture.sample": (mix.sample, lambda: {"n": 30}),
        "MixtureStatistics.estimate": (nsd.MixtureStatistics.estimate, lambda: {"X": X, "y": y}),
        "MixtureStatistics.from_mixture": (
            nsd.MixtureStatistics.from_mixture,
            lambda: {"mix": mix, "X": np.ones((4, 20)), "y": [0, 0, 1, 1]},
        ),
        "equivalent": (nsd.equivalent, lambda: {"network": deq, "statistics": statistics}),
        "EquivalentKernel.solve": (equivalent.solve, lambda: {"v": rows[:, 0], "ridge": 0.1}),
        "EquivalentKernel.logdet": (equivalent.logdet, lambda: {"ridge": 0.1}),
        "EquivalentKernel.__matmul__": (equivalent.__matmul__, lambda: {"v": rows[:, 0]}),
        "spectral_law": (nsd.spectral_law, lambda: {"network": deq, "mixture": mix, "n": 30}),
        "SpectralLaw.density": (law.density, lambda: {"x": [1.0]}),
        "SpectralLaw.cdf": (law.cdf, lambda: {"x": [1.0]}),
        "match": (nsd.match, lambda: {"deq": deq, "statistics": 1.0}),
        "match_sphere": (nsd.match_sphere, lambda: {"deq": deq, "terms": 4}),
        "match_conv": (
            nsd.match_conv,
            lambda: {"deq": nsd.ConvDEQ("relu", 0.2, image=(1, 2, 2), filter=1), "X": np.ones((16, 4)), "layers": 1},
        ),
        "match_one_layer": (nsd.match_one_layer, lambda: {"deq": relu, "tol": 1e-2, "kinds": 1}),
        "Twin.kernel_matrix": (twin.kernel_matrix, lambda: {"X": X}),
        "Twin.verify": (twin.verify, lambda: {"X": X}),
        "Twin.from_dict": (nsd.Twin.from_dict, lambda: {"document": twin.to_dict()}),
        "pytorch_code": (nsd.pytorch_code, lambda: {"twin": twin}),
        "predict_learning": (nsd.predict_learning, lambda: {"network": deq, "mixture": mix, "n": 30}),
        "learning_curve": (nsd.learning_curve, lambda: {"networks": relu, "mixture": mix, "n": [20]}),
        "estimate_learning": (nsd.estimate_learning, lambda: {"network": relu, "X": many, "y": sides}),
        "LearningEstimate.predict": (estimate.predict, lambda: {"n": 30}),
        "nn.fit": (nsd.nn.fit, lambda: {"model": net(), "data": data(), "epochs": 1, "progress": False}),
        "replace": (
            nsd.replace,
            lambda: {
                "model": torch.nn.Linear(3, 2),
                "X": unlabelled[:100],
                "calibration": unlabelled[100:],
                "disagreement": 0.5,
                "options": nn.ReplaceOptions(steps=2),
                "progress": False,
            },
        ),
        "nn.ReplaceOptions": (nn.ReplaceOptions, dict),
        "nn.fit_readout": (nsd.nn.fit_readout, lambda: {"model": net(), "data": data()}),
        "nn.DEQ": (nn.DEQ, lambda: {"spec": deq, "in_features": 4, "width": 8, "out_features": 2}),
        "nn.DEQ.decide": (deep().decide, lambda: {"X": rows}),
        "nn.DEQ.bounded": (deep().bounded, lambda: {"X": rows, "tol": 0.1}),
        "nn.Contraction": (_decides, lambda: {"cell": lambda z, x: 0.1 * z + x, "readout": nn_linear, "X": T.float()}),
        "nn.ENN": (nn.ENN, lambda: {"network": enn, "in_features": 4, "width": 8, "out_features": 2}),
        "nn.save": (nn.save, lambda: {"model": net(), "path": file("saved")}),
        "nn.load": (nn.load, lambda: {"path": file("network.safetensors")}),
        "nn.SolverOptions": (nn.SolverOptions, dict),
        "Standardiser.fit": (nsd.Standardiser().fit, lambda: {"X": rows}),
        "Standardiser.transform": (nsd.Standardiser().fit(rows).transform, lambda: {"X": rows}),
        "Standardiser.inverse_transform": (nsd.Standardiser().fit(rows).inverse_transform, lambda: {"X": rows}),
        "DEQClassifier": (_fits(nsd.DEQClassifier, rows, labels), dict),
        "DEQClassifier.fit": (nsd.DEQClassifier().fit, lambda: {"X": rows, "y": labels}),
        "DEQClassifier.predict": (fitted.predict, lambda: {"X": rows}),
        "DEQClassifier.decision_function": (fitted.decision_function, lambda: {"X": rows}),
        "DEQClassifier.predict_proba": (fitted.predict_proba, lambda: {"X": rows}),
        "DEQRegressor": (_fits(nsd.DEQRegressor, rows, rows[:, 0]), dict),
        "DEQRegressor.fit": (nsd.DEQRegressor().fit, lambda: {"X": rows, "y": rows[:, 0]}),
        "DEQRegressor.predict": (regressor.predict, lambda: {"X": rows}),
        "DEQGaussianProcess": (_fits(nsd.DEQGaussianProcess, rows, rows[:, 0]), lambda: {"restarts": 0}),
        "DEQGaussianProcess.fit": (nsd.DEQGaussianProcess(optimise=False).fit, lambda: {"X": rows, "y": rows[:, 0]}),
        "DEQGaussianProcess.predict": (process.predict, lambda: {"X": rows}),
        "DEQGaussianProcess.sample_y": (process.sample_y, lambda: {"X": rows}),
        "DEQGaussianProcess.log_marginal_likelihood": (process.log_marginal_likelihood, dict),
        "DEQFeatures": (_fits(nsd.DEQFeatures, rows, None), lambda: {"width": 8}),
        "DEQFeatures.fit": (nsd.DEQFeatures(width=8).fit, lambda: {"X": rows}),
        "DEQFeatures.transform": (features.transform, lambda: {"X": rows}),
        "DEQKernel": (_covariance(rows), dict),
        "DEQKernel.__call__": (nsd.DEQKernel().__call__, lambda: {"X": rows}),
        "DEQKernel.diag": (nsd.DEQKernel().diag, lambda: {"X": rows}),
        "solve.NetworkKernel": (nsd.solve.NetworkKernel, lambda: {"network": relu, "kernel": "ck"}),
        "solve.CG": (nsd.solve.CG, dict),
        "solve.solve_dense": (nsd.solve.solve_dense, lambda: {"K": K, "targets": t, "ridges": [0.1]}),
        "solve.KernelTiles": (nsd.solve.KernelTiles, lambda: {"kernel": nsd.solve.NetworkKernel(relu, "ck"), "X": T}),
        "SpectrumDisplay.from_kernel": (_drawn(nsd.plots.SpectrumDisplay.from_kernel), lambda: {"kernel": X}),
        "SpectrumDisplay.plot": (_drawn(nsd.plots.SpectrumDisplay.from_kernel(X).plot), dict),
        "LearningDisplay.from_curve": (_drawn(nsd.plots.LearningDisplay.from_curve), lambda: {"curve": curve}),
        "LearningDisplay.from_curve, measured": (
            _drawn(nsd.plots.LearningDisplay.from_curve),
            lambda: {"curve": estimate},
        ),
        "TwinDisplay.from_twin": (_drawn(nsd.plots.TwinDisplay.from_twin), lambda: {"twin": nsd.match_one_layer(relu)}),
        "ConvDEQ": (nsd.ConvDEQ, lambda: {"phi": "relu", "sigma_a2": 0.1, "image": (1, 4, 4)}),
        "ConvENN": (
            nsd.ConvENN,
            lambda: {"activations": ["relu"], "sigma_a2": 1.0, "sigma_b2": 1.0, "image": (1, 4, 4)},
        ),
        "ck, images": (nsd.ck, lambda: {"network": nsd.ConvDEQ("relu", 0.1, image=(1, 1, 3), filter=1), "X": X}),
        "nn.ConvDEQ": (
            nn.ConvDEQ,
            lambda: {"spec": nsd.ConvDEQ("relu", 0.1, image=(1, 4, 4)), "width": 4, "out_features": 2},
        ),
        "nn.EmpiricalKernel": (
            _like(lambda **given: nn.EmpiricalKernel(**given)(T), nn.EmpiricalKernel),
            lambda: {"model": net().double()},
        ),
        "solve.solve_operator": (
            nsd.solve.solve_operator,
            lambda: {
                "operator": nsd.solve.KernelTiles(nsd.solve.NetworkKernel(relu, "ck"), T),
                "targets": t,
                "ridges": [0.1],
                "progress": False,
            },
        ),
        "best_scalar": (nsd.equivalents.best_scalar, lambda: {"exact": X, "approximation": X}),
        "spectral_norm": (nsd.equivalents.spectral_norm, lambda: {"kernel": X}),
        "power_series": (power_series, lambda: {"network": deq, "terms": 4}),
        "Standardiser": (_fits(nsd.Standardiser, rows, None), dict),
        "Twin": (
            nsd.Twin,
            lambda: {name: getattr(twin, name) for name in ("deq", "network", "kernel", "family", "certificate")},
        ),
        "TwinCertificate": (nsd.matching.TwinCertificate, lambda: {"kind": "sphere", "residual": 0.0, "bound": 0.1}),
        "SpectrumDisplay": (_drawn(nsd.plots.SpectrumDisplay), lambda: {"eigenvalues": rows[:, 0]}),
        "FeaturesDisplay.from_estimator": (
            _drawn(nsd.plots.FeaturesDisplay.from_estimator),
            lambda: {"estimator": nsd.DEQRegressor("relu", features="diagonal").fit(rows, rows[:, 0])},
        ),
        "LearningDisplay.plot": (_drawn(nsd.plots.LearningDisplay.from_curve(curve).plot), dict),
    }
    return table_of


_FOLDER: list[Any] = []


def folder() -> str:
    """A folder for what is written, removed with this process."""
    if not _FOLDER:
        _FOLDER.append(tempfile.TemporaryDirectory(prefix="notsodeep-fuzz-"))
    return str(_FOLDER[0].name)


def _like(made: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """``made`` with the parameters of ``function``."""
    made.__signature__ = inspect.signature(function)
    made.__name__ = getattr(function, "__qualname__", "call")
    return made  # type: ignore[no-any-return]


def _fits(kind: Any, X: Any, y: Any) -> Callable[..., Any]:
    """An estimator takes any setting, and says when it is fitted what is wrong with it."""
    return _like(lambda **given: kind(**given).fit(X, y), kind)


def _covariance(X: Any) -> Callable[..., Any]:
    return _like(lambda **given: nsd.DEQKernel(**given)(X, eval_gradient=True), nsd.DEQKernel)


def _decides(cell: Any, readout: Any, X: Any, lipschitz: Any = 0.2, width: Any = 4, rounding: Any = None) -> Any:
    return nsd.nn.Contraction(cell, readout, lipschitz, width, rounding).decide(X)


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    """A figure that is drawn, and closed."""
    from matplotlib import pyplot

    def draw(**given: Any) -> None:
        try:
            display = function(**given)
            if function.__name__ != "plot":
                display.plot()
        finally:
            pyplot.close("all")

    return _like(draw, function)


def fresh(value: Any) -> Any:
    """A copy of what a call might write to."""
    if isinstance(value, torch.Tensor) and not value.requires_grad:
        return value.clone()
    return copy.copy(value) if isinstance(value, np.ndarray | torch.Tensor | list | dict | set) else value


def endless(parameter: str, value: Any) -> bool:
    """Whether something would be done so often, or with so many units: it was asked for, and is not refused."""
    return parameter in ("draws", "epochs", "seeds", "width") and type(value) is int and value >= 2**31


def parameters(function: Callable[..., Any], sound: Sound) -> list[str]:
    """All names that a call may be given."""
    found = inspect.signature(function).parameters.values()
    named = [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [*named, *(name for name in sound if name not in named)]


def call(function: Callable[..., Any], given: Sound) -> Any:
    """Call with arguments by name, those that have none by position; ``None`` where the library refuses."""
    found = inspect.signature(function).parameters
    alone = [given[p.name] for p in found.values() if p.kind is p.POSITIONAL_ONLY and p.name in given]
    named = {name: value for name, value in given.items() if name not in found or found[name].kind is not _ALONE}
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return function(*alone, **named)
    except NotSoDeepError:
        return None
    except MemoryError:
        return None
    except (TypeError, ValueError) as error:  # scikit-learn's own checks speak for themselves
        if "sklearn" not in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts:
            raise
        return None


_ALONE = inspect.Parameter.POSITIONAL_ONLY


def arguments(rng: np.random.Generator, times: int) -> int:
    """Random public calls, one argument of each replaced; what is raised must be the library's own."""
    with contextlib.chdir(folder()):  # for what is written to a file named "x"
        for _ in range(times):
            name = str(rng.choice(sorted(calls())))
            function, sound = calls()[name]
            parameter, value = str(rng.choice(parameters(function, sound()))), JUNK[int(rng.integers(len(JUNK)))]
            if endless(parameter, value):
                continue
            try:
                call(function, {**sound(), parameter: fresh(value)})
            except TimeoutError:
                raise
            except Exception as error:
                shown = f"{name}({parameter}={value!r:.100})"
                raise AssertionError(f"{type(error).__name__}: {error}: {shown}") from error
    return times


def sweep(names: list[str]) -> Iterator[str]:
    """Every parameter of these calls with every wrong value; yields what was raised."""
    for name in names or calls():
        function, sound = calls()[name]
        try:
            call(function, sound())
        except Exception as error:
            yield f"{name}, sound: {type(error).__name__}: {error}"
        for parameter in parameters(function, sound()):
            for value in (v for v in JUNK if not endless(parameter, v)):
                signal.setitimer(signal.ITIMER_PROF, 10)
                try:
                    call(function, {**sound(), parameter: fresh(value)})
                except Exception as error:
                    last = traceback.extract_tb(error.__traceback__)
                    own = next((f for f in reversed(last) if "notsodeep" in f.filename), last[-1])
                    where = f"{own.filename.split('notsodeep/')[-1]}:{own.lineno}"
                    shown = repr(value)[:40].replace("\n", " ")
                    said = str(error).replace("\n", " ")[:90]
                    yield f"{name}({parameter}={shown}): {type(error).__name__}: {said} [{where}]"
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)


def _slow(number: int, frame: Any) -> None:
    raise TimeoutError("no answer within 10 s")


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, _slow)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.chdir(folder())  # for what is written to a file named "x"
    found = 0
    for line in sweep(sys.argv[1:]):
        found += 1
        print(line, flush=True)
    print(f"{found} failures")
    raise SystemExit(bool(found))
