"""A twin as plain PyTorch source: a file to paste into a project that does not know notsodeep."""

from __future__ import annotations

from ._arguments import checked, positive_int
from ._words import Parametrisation
from .matching import Twin
from .units import NormUnits


@checked
def pytorch_code(
    twin: Twin,
    in_features: int = 784,
    width: int = 4096,
    out_features: int = 10,
    parametrisation: Parametrisation = "ntk",
) -> str:
    """Write a twin as PyTorch source: a module ``Twin`` that needs torch alone.

    Parameters
    ----------
    twin : Twin
        The result of :func:`match_one_layer`, :func:`match` or :func:`match_sphere`.
    in_features, width, out_features : int
        Defaults of the module's constructor, which may be changed there.
    parametrisation : {"ntk", "standard"}
        Weights of variance one, or of 1 / fan-in for the usual learning rates: the same function at the start.

    Returns
    -------
    str
        The source. In "ntk" a twin with learning rates has a method ``parameter_groups(lr)`` for an optimiser.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> source = nsd.pytorch_code(nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2)), in_features=8)
    >>> names = {}
    >>> exec(source, names)
    >>> sum(weight.shape[1] == 8 for weight in names["Twin"]().parameters())
    1
    """
    in_features, width, out_features = (
        positive_int(name, value, 1, 10**9)  # a size beyond this is a slip of the pen, not a layer
        for name, value in (("in_features", in_features), ("width", width), ("out_features", out_features))
    )
    functions = [phi.source_lines(f"layer_{i}") for i, phi in enumerate(twin.network.activations, 1)]
    used = [] if twin.certificate.norms is None else ["import warnings"]
    typed = any(isinstance(phi, NormUnits) for phi in twin.network.activations)  # printed as the library has them
    used += ["from collections.abc import Callable"] if typed else []
    used += ["", "import torch", *(["from torch import Tensor"] if typed else [])]
    parts = ["import math", *used, *[line for f in functions for line in ("", "", *f)], "", ""]
    return "\n".join([*parts, *_module(twin, in_features, width, out_features, parametrisation == "standard")]) + "\n"


def _module(twin: Twin, in_features: int, width: int, out_features: int, standard: bool) -> list[str]:
    steps = []
    spread, over_k, over_width = (
        ("math.sqrt(x.shape[-1]) * x", " / math.sqrt(k)", " / math.sqrt(width)") if standard else ("x", "", "")
    )
    rates = "1 / fan-in: train with Adam at 1e-3" if standard else "one: train with Adam at 1e-3 sqrt(fan-in)"
    for i, phi in enumerate(twin.network.activations):
        norms = ", x" if isinstance(phi, NormUnits) else ""
        before = f"torch.nn.functional.linear({spread}, self.weights[{i}]){norms}"
        steps.append(f"        x = layer_{i + 1}({before}) / math.sqrt(self.width)")
    return [
        "class Twin(torch.nn.Module):",
        f'    """{twin.depth} hidden layer{"s" if twin.depth > 1 else ""} with the {_quoted(str(twin.kernel))} of a',
        f"    {_quoted(repr(twin.deq))}.",
        "",
        f"    The weights have variance {rates} or so.",
        '    """',
        "",
        f"    def __init__(self, in_features={in_features}, width={width}, out_features={out_features}):",
        "        super().__init__()",
        "        self.width = width",
        f"        sizes = [in_features] + [width] * {twin.depth}",
        "        self.weights = torch.nn.ParameterList(",
        f"            torch.nn.Parameter(torch.randn(m, k){over_k}) for k, m in zip(sizes, sizes[1:])",
        "        )",
        f"        self.readout = torch.nn.Parameter(torch.randn(out_features, width){over_width})",
        *([] if standard else _groups(twin)),
        "",
        "    def forward(self, x):",
        *_warning(twin),
        *steps,
        f"        return torch.nn.functional.linear({spread}, self.readout)",
    ]


def _warning(twin: Twin) -> list[str]:
    if twin.certificate.norms is None:
        return []
    low, high = twin.certificate.norms
    return [
        "        norm = torch.linalg.vector_norm(x, dim=-1)",
        f"        outside = (norm < {(1.0 - 1e-5) * low!r}) | (norm > {(1.0 + 1e-5) * high!r})",
        "        if not torch.compiler.is_compiling() and bool(outside.any()):",
        f'            warnings.warn("norms outside {low:.4g} to {high:.4g}: the error is not bounded there")',
    ]


def _groups(twin: Twin) -> list[str]:
    if twin.learning_rates is None:
        return []
    return [
        "",
        "    def parameter_groups(self, lr):",
        f"        rates = {list(map(float, twin.learning_rates))!r}",
        "        return [{'params': [w], 'lr': lr * r} for w, r in zip([*self.weights, self.readout], rates)]",
    ]


def _quoted(text: str) -> str:
    """Return text that may stand between quotes: whatever it holds, it ends neither the string nor the line."""
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
