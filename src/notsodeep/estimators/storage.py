"""A fitted regressor or classifier in one safetensors file: tensors, and a JSON document of what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._arguments import checked
from ..errors import CheckpointError, InvalidInputError, NotSoDeepError
from ..matching import Twin
from ..mixtures.standardise import Standardiser
from ..networks import network_from_dict
from ..nn.checkpoint import read_file, write_file
from ..solve import NetworkKernel
from .machine import FittedMachine
from .ridge import DEQClassifier, DEQRegressor


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
    tensors = {"X": machine.X, "coefficients": machine.coefficients}
    document: dict[str, Any] = {
        "kind": "estimator",
        "estimator": type(model).__name__,
        "kernel": machine.kernel.kernel,
        "twin" if isinstance(machine.kernel.network, Twin) else "network": machine.kernel.network.to_dict(),
        "ridge": machine.ridge,
        "absolute_ridge": machine.absolute_ridge,
        "record": machine.record,
        "flat": model._flat,
    }
    if isinstance(model, DEQClassifier):
        document |= {"classes": model.classes_.tolist(), "temperature": model.temperature_}
    if before:
        tensors["standardiser.mean"] = torch.from_numpy(before[0].mean_)
        document["scale"] = before[0].scale_
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
        Where the file is damaged, or holds something else.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_estimator(nsd.DEQRegressor("relu").fit(X, X[:, 0]), f"{folder}/model.safetensors")
    ...     load_estimator(f"{folder}/model.safetensors").predict(X).shape
    (20,)
    """
    tensors, document = read_file(path)
    if document.get("kind") != "estimator":
        raise CheckpointError(f"{path} holds a {document.get('kind')}, not an estimator")
    try:
        return _restored(tensors, document)
    except (KeyError, TypeError, ValueError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe an estimator: {error!r}") from error


def _restored(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> Any:
    source = Twin.from_dict(document["twin"]) if "twin" in document else network_from_dict(document["network"])
    kernel, ridge = NetworkKernel(source, document["kernel"]), float(document["ridge"])
    X, coefficients = tensors["X"], tensors["coefficients"]
    if X.ndim != 2 or coefficients.ndim != 2 or len(X) != len(coefficients):
        raise ValueError(f"rows {tuple(X.shape)} and coefficients {tuple(coefficients.shape)} do not fit together")
    maker = {"DEQRegressor": DEQRegressor, "DEQClassifier": DEQClassifier}[document["estimator"]]
    model = maker(network=source, kernel=kernel.kernel, ridge=ridge)
    absolute, record = float(document["absolute_ridge"]), dict(document["record"])
    model._machine = FittedMachine(kernel, X, coefficients, ridge, absolute, record)
    model._loo, model._flat, model.n_features_in_ = None, bool(document["flat"]), X.shape[1]
    if isinstance(model, DEQClassifier):
        model.classes_, model.temperature_ = np.array(document["classes"]), float(document["temperature"])
        if coefficients.shape[1] != (1 if len(model.classes_) == 2 else len(model.classes_)):
            raise ValueError(f"{coefficients.shape[1]} outputs do not fit {len(model.classes_)} classes")
    if "scale" not in document:
        return model
    standardiser, mean = Standardiser(), tensors["standardiser.mean"].numpy()
    if len(mean) != X.shape[1]:
        raise ValueError(f"a mean of {len(mean)} columns does not fit rows of {X.shape[1]}")
    standardiser.mean_, standardiser.scale_, standardiser.n_features_in_ = mean, float(document["scale"]), len(mean)
    return make_pipeline(standardiser, model)
