"""Finite width: networks that run and train, and the way from a DEQ to its explicit twin."""

from .._equilibrium import Equilibrium, SolverOptions, solve_equilibrium
from .certify import Certificate, Drift
from .checkpoint import load, save
from .deq import DEQ
from .enn import ENN, export_onnx, export_program
from .model import Model
from .replacement import Replacement, Timing
from .student import ReplaceOptions
from .train import Epoch, History, evaluate, fit, fit_readout

__all__ = [
    "DEQ",
    "ENN",
    "Certificate",
    "Drift",
    "Epoch",
    "Equilibrium",
    "History",
    "Model",
    "ReplaceOptions",
    "Replacement",
    "SolverOptions",
    "Timing",
    "evaluate",
    "export_onnx",
    "export_program",
    "fit",
    "fit_readout",
    "load",
    "save",
    "solve_equilibrium",
]
