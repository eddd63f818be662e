"""The figures of the studies, each drawn from a stored document alone: file suffix -> figure, one message each."""

from .accuracy import draw_accuracy
from .distilled import distilled_table, draw_distilled
from .errors import draw_errors, draw_mixtures, draw_variants
from .kernels import draw_eigenvalues, draw_kernels, draw_sphere
from .learning import draw_learning
from .one_layer import draw_one_layer, draw_one_layer_accuracy, draw_one_layer_lazy, draw_one_layer_width
from .routes import draw_routes
from .uniform import draw_depths, draw_odd, draw_training, draw_uniform

__all__ = [
    "distilled_table",
    "draw_accuracy",
    "draw_depths",
    "draw_distilled",
    "draw_eigenvalues",
    "draw_errors",
    "draw_kernels",
    "draw_learning",
    "draw_mixtures",
    "draw_odd",
    "draw_one_layer",
    "draw_one_layer_accuracy",
    "draw_one_layer_lazy",
    "draw_one_layer_width",
    "draw_routes",
    "draw_sphere",
    "draw_training",
    "draw_uniform",
    "draw_variants",
]
