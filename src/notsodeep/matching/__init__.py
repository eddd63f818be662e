"""The shallow explicit network that has a DEQ's kernel: families, solver, certificate."""

from .certificates import (
    Certificate,
    Implications,
    Location,
    MixtureCertificate,
    SphereCertificate,
    Tried,
    UniformCertificate,
    Verification,
)
from .families import Family
from .match import match
from .names import MatchKernel, Trains, kernel_names, norm_range
from .one_layer import match_one_layer
from .sphere import match_sphere, tabulate
from .twin import Twin
from .uniform import match_uniform

__all__ = [
    "Certificate",
    "Family",
    "Implications",
    "Location",
    "MatchKernel",
    "MixtureCertificate",
    "SphereCertificate",
    "Trains",
    "Tried",
    "Twin",
    "UniformCertificate",
    "Verification",
    "kernel_names",
    "match",
    "match_one_layer",
    "match_sphere",
    "match_uniform",
    "norm_range",
    "tabulate",
]
