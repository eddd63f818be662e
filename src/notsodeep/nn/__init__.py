"""Finite width: networks that run and train, and the way from a DEQ to its explicit twin."""

from .base import Model
from .comparison import Comparison, Measurement, compare
from .convert import Conversion, Distillation, distil, twin_of
from .deq import DEQ
from .enn import ENN
from .equilibrium import Equilibrium, SolverOptions, solve_equilibrium
from .export import export_onnx, export_program, export_torchscript
from .history import Epoch, History
from .parts import DEQParts, Measured
from .storage import load, save
from .training import evaluate, fit

__all__ = [
    "DEQ",
    "ENN",
    "Comparison",
    "Conversion",
    "DEQParts",
    "Distillation",
    "Epoch",
    "Equilibrium",
    "History",
    "Measured",
    "Measurement",
    "Model",
    "SolverOptions",
    "compare",
    "distil",
    "evaluate",
    "export_onnx",
    "export_program",
    "export_torchscript",
    "fit",
    "load",
    "save",
    "solve_equilibrium",
    "twin_of",
]
