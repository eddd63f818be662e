"""The shallow explicit network that has a DEQ's kernel: one layer, the papers' families, the unit sphere.

The function ``match`` is in the module ``match``, which keeps its name here.
"""

from .certificates import Tried, TwinCertificate, Verification
from .convolution import ConvTwin, match_conv
from .one_layer import match_one_layer, norm_range
from .sphere import match_sphere
from .twin import Trains, Twin

__all__ = [
    "ConvTwin",
    "Trains",
    "Tried",
    "Twin",
    "TwinCertificate",
    "Verification",
    "match_conv",
    "match_one_layer",
    "match_sphere",
    "norm_range",
]
