"""How a row enters the equivalent of a kernel, once the training rows are forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..equivalents import Coefficients, EquivalentKernel
from ..equivalents.norms import NormProfile
from ..mixtures import MixtureStatistics
from ..networks import network_from_dict

__all__ = ["Embedding"]

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
