"""Finite width: networks that run and train, and the way from a DEQ to its explicit twin."""

from .._equilibrium import SolverOptions
from .certify import Certificate
from .checkpoint import load, save
from .convolution import ConvDEQ
from .deq import DEQ
from .enn import ENN, export_onnx
from .model import Model
from .replacement import Replacement
from .student import ReplaceOptions
from .train import History, fit, fit_readout

__all__ = [
    "DEQ",
    "ENN",
    "Certificate",
    "ConvDEQ",
    "History",
    "Model",
    "ReplaceOptions",
    "Replacement",
    "SolverOptions",
    "export_onnx",
    "fit",
    "fit_readout",
    "load",
    "save",
]
