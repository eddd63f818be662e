"""The families of twins. Each is a function (target, with_rates) -> Draft | Refusal."""

from collections.abc import Callable

from ..._words import FamilyName as FamilyName
from ..target import Target
from .draft import Draft, Refusal
from .general import Family, solve_family
from .hard_tanh import hard_tanh
from .hermite import hermite, quadratic
from .leaky import leaky_relu
from .skip import skip

__all__ = ["FAMILIES", "Draft", "Family", "FamilyName", "Refusal", "solve_family"]

FAMILIES: dict[str, Callable[[Target, bool | None], Draft | Refusal]] = {
    "hard_tanh": hard_tanh,
    "leaky_relu": leaky_relu,
    "quadratic": quadratic,
    "hermite": hermite,
    "skip": skip,
}
