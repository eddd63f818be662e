"""What a fitted machine keeps in order to predict: tensors, and a document that says what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..equivalents import Coefficients, EquivalentKernel
from ..equivalents.coefficients import NormProfile
from ..mixtures import MixtureStatistics
from ..networks import network_from_dict
from ..nn import ENN as Network
from ..nn.model import in_batches
from ..solve import NetworkKernel, features_of

_NUMBERS = ("t", "T", "traces", "fitted_on")


@dataclass(frozen=True, eq=False)
class Embedding:
    """A row, scaled, and with a few numbers of its own."""

    operator: EquivalentKernel
    """Of one training row: what new rows need of it does not depend on the others."""

    @staticmethod
    def of(operator: EquivalentKernel) -> Embedding:
        assert isinstance(operator.statistics, MixtureStatistics)
        st = operator.statistics
        first = replace(st, X=st.X[:1], labels=st.labels[:1], psi=st.psi[:1])
        shift = operator.shift if np.ndim(operator.shift) == 0 else np.asarray(operator.shift)[:1]
        return Embedding(
            replace(operator, X=operator.rows[:1].clone(), V=operator.V[:1], shift=shift, statistics=first)
        )

    def __call__(self, X: Tensor) -> Tensor:
        """(rows, p + r): the coordinates in which the equivalent is an inner product."""
        block = self.operator.cross(X)
        return torch.cat([torch.as_tensor(block.X_new).double(), torch.from_numpy(block.V_new).to(X.device)], dim=1)

    # -- as tensors and a JSON document ------------------------------------------------------------------------
    def described(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that new rows need; :meth:`restored` reads it back, to the last bit."""
        eq, st, c = self.operator, self.operator.statistics, self.operator.coefficients
        assert isinstance(st, MixtureStatistics)
        assert c is not None
        arrays = {"means": st.means, "V": eq.V, "core": eq.core, "shift": np.atleast_1d(eq.shift), "psi": st.psi}
        if eq.profile is not None:
            arrays |= {"references": eq.profile.references, "projection": eq.profile.projection}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        return tensors | {"row": eq.rows, "first": torch.as_tensor(st.X)}, {
            "gain": eq.gain,
            "coefficients": {f.name: getattr(c, f.name) for f in fields(c)} | {"network": c.network.to_dict()},
            "statistics": {
                "tau0": st.tau0,
                "about": st.about,
                **{name: np.asarray(getattr(st, name)).tolist() for name in _NUMBERS},
            },
        }

    @staticmethod
    def restored(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> Embedding:
        """What :meth:`described` told."""
        arrays = {name: value.numpy() for name, value in tensors.items()}
        told = document["statistics"]
        numbers = {name: np.array(told[name]) for name in _NUMBERS}
        st = MixtureStatistics(
            X=tensors["first"],
            labels=np.zeros(1, dtype=np.int64),
            tau0=told["tau0"],
            psi=arrays["psi"],
            means=arrays["means"],
            classes=(0,),
            about=told["about"],
            **numbers,
        )
        network = network_from_dict(document["coefficients"]["network"])
        c = Coefficients(**{**document["coefficients"], "network": network})
        profile = None
        if "references" in arrays:
            profile = NormProfile(c, arrays["references"], arrays["projection"], arrays["core"])
        shift = arrays["shift"] if profile is not None else float(arrays["shift"][0])
        return Embedding(
            EquivalentKernel(
                tensors["row"], document["gain"], arrays["V"], arrays["core"], shift, network, c.kernel, c, st, profile
            )
        )


# ---- predictors --------------------------------------------------------------------------------------------


_ROWS = 8192  # at a time


class Predictor(Protocol):
    """x -> k numbers."""

    def __call__(self, X: Tensor, /) -> Tensor:
        """Predictions at the rows of X, a few at a time, in double precision."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """f(x) = sum_i a_i k(x, x_i)."""

    kernel: NetworkKernel
    X: Tensor
    coefficients: Tensor
    """Shape (n, k)."""

    def __call__(self, X: Tensor) -> Tensor:
        return self.kernel.expansion(X, self.X, self.coefficients)


@dataclass(frozen=True, eq=False)
class LinearEquivalent:
    """f(x) = z(x) . w in the coordinates of the equivalent: O(p) for each row."""

    embedding: Embedding
    weights: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        return in_batches(lambda part: self.embedding(part) @ self.weights, X, _ROWS)


@dataclass(frozen=True, eq=False)
class FeatureReadout:
    """f(x) = phi(x) . w with the random features of a network."""

    model: Network
    weights: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        return in_batches(lambda part: features_of(self.model, part).double() @ self.weights, X, _ROWS)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A predictor, and how it was found."""

    predictor: Predictor
    ridge: float
    """Relative to the mean diagonal."""
    lift: float
    """Absolute: ridge times the mean diagonal."""
    leave_one_out: Tensor | None
    """(n, k), or None where it would cost more than the fit."""
    record: dict[str, Any]
    """Solver, steps, residuals."""
