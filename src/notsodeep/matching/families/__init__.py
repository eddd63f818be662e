"""The families of twins: each file here holds a dictionary ``FAMILIES`` of functions Target -> Draft.

A function raises a :func:`refusal` where it has no network with the numbers. A new family is one new
file. It needs no other change: all files of this folder are read.
"""

import importlib
import pkgutil
from collections.abc import Callable

from ..solver import Draft
from ..target import Target

FAMILIES: dict[str, Callable[[Target], Draft]] = {}
for _file in pkgutil.iter_modules(__path__):
    FAMILIES |= importlib.import_module(f".{_file.name}", __name__).FAMILIES
