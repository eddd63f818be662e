"""The shallow explicit network that has a DEQ's kernel: one layer, the papers' families, the unit sphere.

The function ``match`` is in the module ``match``, which keeps its name here.
"""

from .certificates import (
    Certificate,
    MixtureCertificate,
    SphereCertificate,
    Tried,
    UniformCertificate,
    Verification,
)
from .one_layer import match_one_layer, norm_range
from .sphere import match_sphere
from .twin import Trains, Twin

__all__ = [
    "Certificate",
    "MixtureCertificate",
    "SphereCertificate",
    "Trains",
    "Tried",
    "Twin",
    "UniformCertificate",
    "Verification",
    "match_one_layer",
    "match_sphere",
    "norm_range",
]
