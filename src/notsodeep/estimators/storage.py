"""A fitted regressor or classifier in one safetensors file: tensors, and a JSON document of what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import checked, not_negative
from ..errors import CheckpointError, InvalidInputError, NotSoDeepError
from ..matching import Twin
from ..networks import Kernel, network_from_dict
from ..nn.checkpoint import check_shapes, read_file, write_file
from ..solve import NetworkKernel
from .features import Features
from .machine import FittedMachine
from .ridge import DEQClassifier, DEQRegressor
from .standardise import Scale, Standardiser


@checked
def save_estimator(estimator: Any, path: str | Path) -> None:
    """Write what prediction needs of a fitted estimator; nothing is pickled.

    Parameters
    ----------
    estimator : DEQRegressor or DEQClassifier
        Alone, or after a Standardiser in a pipeline.
    path : str or Path
        A safetensors file.

    Returns
    -------
    None

    Raises
    ------
    InvalidInputError
        For other estimators, and for an activation that wraps a Python function.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_estimator(nsd.DEQRegressor("relu").fit(X, X[:, 0]), f"{folder}/model.safetensors")
    """
    steps = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]
    *before, model = steps
    known = not before or (len(before) == 1 and isinstance(before[0], Standardiser))
    if not known or not isinstance(model, DEQRegressor | DEQClassifier):
        raise InvalidInputError(
            "a DEQRegressor or a DEQClassifier is saved, alone or after a Standardiser in a pipeline, got "
            + " and ".join(type(step).__name__ for step in steps)
        )
    check_is_fitted(model)
    machine = model._machine
    source: Any = machine.kernel.network
    if machine.kernel.empirical is not None:
        raise InvalidInputError(
            "a machine with the kernel of a torch module is stored by pickle or joblib, module and all"
        )
    tensors = {"X": machine.X, "coefficients": machine.coefficients, "mean": machine.mean}
    document: dict[str, Any] = {
        "kind": "estimator",
        "estimator": type(model).__name__,
        "kernel": machine.kernel.kernel,
        "twin" if isinstance(source, Twin) else "network": source.to_dict(),
        "ridge": machine.ridge,
        "absolute_ridge": machine.absolute_ridge,
        "record": machine.record,
        "flat": model._flat,
        "best": model.best_,
    }
    if isinstance(model, DEQClassifier):
        document |= {"classes": model.classes_.tolist(), "multilabel": model._multilabel}
        tensors["temperature"] = torch.as_tensor(model.temperature_, dtype=torch.float64)
    if model._features is not None:
        tensors["features"] = model._features.root
    for name, scaler in zip(("scaler", "standardiser"), (model.scaler_, *before), strict=False):
        for part in ("mean", "scale"):
            tensors[f"{name}.{part}"] = torch.as_tensor(getattr(scaler, f"{part}_"), dtype=torch.float64)
        document[name] = scaler.chosen_
    write_file(path, tensors, document)


@checked
def load_estimator(path: str | Path) -> Any:
    """Read an estimator that :func:`save_estimator` wrote.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    DEQRegressor, DEQClassifier, or a pipeline of a Standardiser and one of them
        Its DEQ is in ``network``; ``loo_`` is not stored.

    Raises
    ------
    CheckpointError
        If the file is damaged or holds something else.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_estimator(nsd.DEQRegressor("relu").fit(X, X[:, 0]), f"{folder}/model.safetensors")
    ...     load_estimator(f"{folder}/model.safetensors").predict(X).shape
    (20,)
    """
    tensors, document = read_file(path, "estimator", _SCHEMA)
    try:
        return _restored(tensors, document)
    except (KeyError, TypeError, ValueError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe an estimator: {error!r}") from error


# all that a document may set: no path, device or cluster is among it
_SCHEMA: dict[str, Any] = {
    "estimator": Literal["DEQRegressor", "DEQClassifier"],
    "kernel": Kernel,
    "flat": bool,
    "twin": dict[str, Any] | None,
    "network": dict[str, Any] | None,
    "record": dict[str, Any],
    "ridge": float,
    "absolute_ridge": float,
    "scaler": Scale,
    "standardiser": Scale,
    "classes": list[Any] | None,
    "multilabel": bool | None,
    "best": dict[str, Any],
}


def _restored(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> Any:
    source = Twin.from_dict(document["twin"]) if document["twin"] else network_from_dict(document["network"])
    kernel, X, coefficients = NetworkKernel(source, document["kernel"]), tensors["X"], tensors["coefficients"]
    shapes = {"coefficients": (len(X), *coefficients.shape[1:2]), "mean": coefficients.shape[1:]}
    check_shapes(tensors, {"X": (len(X), *X.shape[1:2]), **shapes})
    kernel(X[:1].double(), X[:1].double())  # the network takes such rows
    ridge, absolute = (not_negative(name, document[name]) for name in ("ridge", "absolute_ridge"))
    maker = {"DEQRegressor": DEQRegressor, "DEQClassifier": DEQClassifier}[document["estimator"]]
    model = maker(network=source, kernel=kernel.kernel, ridge=ridge, scale=document["scaler"])
    model._set_machine(FittedMachine(kernel, X, coefficients, tensors["mean"], ridge, absolute, document["record"]))
    model.scaler_, model.best_ = _scaler("scaler", tensors, document), document["best"]
    model._features = _features(tensors, X.shape[1])
    model._flat, model.n_features_in_ = document["flat"], X.shape[1]
    if document["flat"] and coefficients.shape[1] != 1:
        raise ValueError(f"{coefficients.shape[1]} outputs do not make one number for each row")
    if isinstance(model, DEQClassifier):
        _restore_classes(model, tensors, document)
    given = "standardiser.mean" in tensors
    return make_pipeline(_scaler("standardiser", tensors, document), model) if given else model


def _features(tensors: Mapping[str, Tensor], p: int) -> Features | None:
    root = tensors.get("features")
    if root is None:
        return None
    check_shapes(tensors, {"features": (p,) if root.ndim == 1 else (p, p)})
    return Features(root)


def _restore_classes(model: DEQClassifier, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    classes, outputs = np.array(document["classes"]), tensors["coefficients"].shape[1]
    alike = len(set(map(type, document["classes"]))) == 1 and np.array_equal(np.unique(classes), classes)
    least = 1 if document["multilabel"] else 2
    if len(classes) < least or not alike:
        raise ValueError(f"classes are at least {least} different labels of one kind, in order")
    if outputs != (1 if least == 2 == len(classes) else len(classes)):
        raise ValueError(f"{outputs} outputs do not fit {len(classes)} classes")
    temperature = tensors["temperature"]
    check_shapes(tensors, {"temperature": (outputs,) if document["multilabel"] else ()})
    if not bool((temperature > 0).all()):
        raise ValueError("a temperature must be positive")
    model.classes_, model._multilabel = classes, bool(document["multilabel"])
    model.temperature_ = temperature.numpy() if model._multilabel else float(temperature)


def _scaler(name: str, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> Standardiser:
    scaler, mean, scale = Standardiser(document[name]), tensors[f"{name}.mean"], tensors[f"{name}.scale"]
    check_shapes(tensors, {f"{name}.mean": tensors["X"].shape[1:], f"{name}.scale": mean.shape if scale.ndim else ()})
    if not bool((scale > 0).all()):
        raise ValueError("a scale must be positive")
    scaler.mean_, scaler.scale_ = mean.numpy(), scale.numpy() if scale.ndim else float(scale)
    scaler.chosen_, scaler.n_features_in_ = document[name], len(mean)
    return scaler
