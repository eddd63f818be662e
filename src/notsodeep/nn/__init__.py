"""Finite width: networks that run and train, and the way from a DEQ to its explicit twin."""

from .base import Model
from .deq import DEQ
from .enn import ENN
from .equilibrium import Equilibrium, SolverOptions, solve_equilibrium

__all__ = ["DEQ", "ENN", "Equilibrium", "Model", "SolverOptions", "solve_equilibrium"]
