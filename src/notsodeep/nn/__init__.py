"""Finite width: networks that run and train, and the way from a DEQ to its explicit twin."""

from .._equilibrium import SolverOptions
from .certify import Certificate
from .checkpoint import load, save
from .convolution import ConvDEQ
from .decide import Contraction, Decision
from .deq import DEQ
from .empirical import EmpiricalKernel, empirical_ck, empirical_ntk
from .enn import ENN, export_onnx
from .linearised import LinearisedModel, linearise
from .model import Model
from .movement import LazyReport
from .replacement import Replacement
from .student import ReplaceOptions
from .train import History, fit, fit_readout

__all__ = [
    "DEQ",
    "ENN",
    "Certificate",
    "Contraction",
    "ConvDEQ",
    "Decision",
    "EmpiricalKernel",
    "History",
    "LazyReport",
    "LinearisedModel",
    "Model",
    "ReplaceOptions",
    "Replacement",
    "SolverOptions",
    "empirical_ck",
    "empirical_ntk",
    "export_onnx",
    "fit",
    "fit_readout",
    "linearise",
    "load",
    "save",
]
