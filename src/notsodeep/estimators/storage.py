"""A fitted regressor or classifier in one safetensors file: tensors, and a JSON document of what they mean.

A standardiser may come before it, in a pipeline of two.
"""

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
from ..mixtures.standardise import Standardiser
from ..nn.checkpoint import build, read_file, write_file
from ..solve import NetworkKernel, Source
from .predictors import Embedding, Expansion, FeatureReadout, Fitted, LinearEquivalent, Predictor
from .ridge import DEQClassifier, DEQRegressor

_PLAIN = ("sigma_a2", "sigma_b2", "sigma_c2", "kernel", "ridge", "method", "solver", "tol", "own_norms", "width")


@checked
def save_estimator(estimator: Any, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write what prediction needs of a DEQRegressor or a DEQClassifier, alone or after a Standardiser in a pipeline.

    Nothing is pickled. ``extra`` is a JSON document of the caller's own, which :func:`load_with_extra` gives back.
    """
    standardiser, model = _parts(estimator)
    check_is_fitted(model)
    tensors, predictor = _described(model._fitted.predictor)
    document: dict[str, Any] = {
        "kind": "estimator",
        "estimator": type(model).__name__,
        "parameters": {name: getattr(model, name) for name in _PLAIN},
        "predictor": predictor,
        "fit": {"ridge": model.ridge_, "lift": model.lift_, "record": model.record_, "features": model.n_features_in_},
        "extra": dict(extra or {}),
    }
    if isinstance(model, DEQClassifier):
        document |= {"classes": model.classes_.tolist(), "temperature": model.temperature_}
    else:
        document |= {"flat": model._flat}
    if standardiser is not None:
        tensors |= {"standardiser.mean": torch.from_numpy(standardiser.mean_)}
        document |= {"scale": standardiser.scale_}
    write_file(path, tensors, document)


def _parts(estimator: Any) -> tuple[Standardiser | None, DEQRegressor | DEQClassifier]:
    steps = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]
    *before, model = steps
    known = not before or (len(before) == 1 and isinstance(before[0], Standardiser))
    if not known or not isinstance(model, DEQRegressor | DEQClassifier):
        raise InvalidInputError(
            "a DEQRegressor or a DEQClassifier is saved, alone or after a Standardiser in a pipeline, got "
            + " and ".join(type(step).__name__ for step in steps)
        )
    return (before[0] if before else None), model


@checked
def load_estimator(path: str | Path) -> Any:
    """What :func:`save_estimator` wrote: an estimator, or a pipeline of a standardiser and an estimator."""
    return load_with_extra(path)[0]


def load_with_extra(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """The estimator, and the caller's document."""
    tensors, document = read_file(path)
    if document.get("kind") != "estimator":
        raise CheckpointError(f"{path} holds a {document.get('kind')}, not an estimator")
    try:
        return _restored(tensors, document)
    except (KeyError, TypeError, ValueError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe an estimator: {error!r}") from error


def _restored(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> tuple[Any, Any]:
    maker = {"DEQRegressor": DEQRegressor, "DEQClassifier": DEQClassifier}[document["estimator"]]
    predictor, source = _rebuilt(tensors, document["predictor"])
    model = maker(network=source, **document["parameters"])
    fit = document["fit"]
    model._result = Fitted(predictor, fit["ridge"], fit["lift"], None, fit["record"])
    model._loo, model._stream, model.n_features_in_ = None, None, fit["features"]
    if isinstance(model, DEQClassifier):
        model.classes_, model._temperature = np.array(document["classes"]), document["temperature"]
    else:
        model._flat = document["flat"]
    if "scale" not in document:
        return model, document["extra"]
    standardiser = Standardiser()
    standardiser.mean_, standardiser.scale_ = tensors["standardiser.mean"].numpy(), document["scale"]
    standardiser.n_features_in_ = len(standardiser.mean_)
    return make_pipeline(standardiser, model), document["extra"]


def _described(predictor: Predictor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if isinstance(predictor, Expansion):
        tensors = {"X": predictor.X, "coefficients": predictor.coefficients}
        return tensors, {"kind": "expansion", **predictor.kernel.to_dict()}
    if isinstance(predictor, FeatureReadout):
        states = {f"model.{name}": value for name, value in predictor.model.state_dict().items()}
        return states | {"weights": predictor.weights}, {"kind": "features", "model": predictor.model.config()}
    assert isinstance(predictor, LinearEquivalent)
    tensors, told = predictor.embedding.described()
    return {**{f"embedding.{k}": v for k, v in tensors.items()}, "weights": predictor.weights}, {
        "kind": "equivalent",
        "embedding": told,
    }


def _rebuilt(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> tuple[Predictor, Source]:
    if document["kind"] == "features":
        states = {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
        model: Any = build(document["model"], dtype=states["weights.0"].dtype)
        model.load_state_dict(states)
        return FeatureReadout(model.requires_grad_(False), tensors["weights"]), model.spec
    if document["kind"] == "equivalent":
        parts = {name[10:]: value for name, value in tensors.items() if name.startswith("embedding.")}
        embedding = Embedding.restored(parts, document["embedding"])
        return LinearEquivalent(embedding, tensors["weights"]), embedding.operator.network
    kernel = NetworkKernel.from_dict(document)
    return Expansion(kernel, tensors["X"], tensors["coefficients"]), kernel.network
