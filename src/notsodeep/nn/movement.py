"""How far training moved a network: its weights, and the kernel along which it learns."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import checked, shown
from .._arrays import as_labels, as_numbers
from .._words import Drawn, as_html
from ..equivalents.distance import relative_spectral_error
from ..errors import InvalidInputError
from .empirical import empirical_kernel
from .model import Model
from .tangents import chosen

_LAZY, _FAR = 0.1, 0.5  # movements of the kernel: the study "lazy" measures what predictions are worth at each


@dataclass(frozen=True, eq=False)
class LazyReport(Drawn):
    """Hold what :func:`notsodeep.lazy` found; it prints itself, and ``plot`` draws it.

    Attributes
    ----------
    weights : dict
        |w - w0| / |w0| of every parameter, by name; over |w| where the start is zero.
    kernel : float
        |K - K0| / |K0| of the empirical NTK, in the spectral norm.
    alignment : float
        The cosine of K and K0, both centred.
    labels : pair of floats, or None
        The cosine of the centred kernel and of that of the labels, before and after.
    infinite : pair of floats, or None
        The relative distance of the exact kernel of the specification from K0, and from K, in the spectral norm.
    rows : int
        How many rows it was measured on.

    Examples
    --------
    >>> LazyReport({"w": 0.01}, kernel=0.04, alignment=0.99, labels=None, infinite=None, rows=50).verdict
    'the kernel moved by 4 %: training was lazy, and what the twin and predict_learning say of gradient descent ...'
    """

    weights: dict[str, float]
    kernel: float
    alignment: float
    labels: tuple[float, float] | None
    infinite: tuple[float, float] | None
    rows: int

    @property
    def verdict(self) -> str:
        """What the movement means, in one sentence."""
        said = f"the kernel moved by {_percent(self.kernel)}: "
        if self.kernel < _LAZY:
            return (
                said + "training was lazy, and what the twin and predict_learning say of gradient descent should hold"
            )
        if self.kernel < _FAR:
            return said + "between the two regimes; compare with nsd.linearise before you trust a fixed kernel"
        return said + "the network learned features that no fixed kernel has; use nsd.replace for a cheap stand-in"

    def _lines(self) -> list[tuple[str, str]]:
        found = [("kernel", _percent(self.kernel)), ("alignment with the start", f"{self.alignment:.3f}")]
        found += [("alignment with the labels", "{:.3f} -> {:.3f}".format(*self.labels))] if self.labels else []
        if self.infinite:
            found += [("from infinite width", " -> ".join(_percent(share) for share in self.infinite))]
        return found + [(f"weights {name}", _percent(share)) for name, share in self.weights.items()]

    def __repr__(self) -> str:
        wide = max(len(name) for name, _ in self._lines())
        told = "\n".join(f"{name:<{wide}}  {value}" for name, value in self._lines())
        return f"{self.verdict} ({self.rows} rows)\n{told}"

    def _repr_html_(self) -> str:
        return as_html(self.verdict, self._lines())


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


@checked
def lazy(
    model: nn.Module, X: Any, *, start: Any, y: Any = None, parameters: Any = None, progress: bool | None = None
) -> LazyReport:
    """Measure how far training moved a network and its kernel, and whether a fixed kernel describes it.

    Theory based on a kernel, such as a twin or :func:`notsodeep.predict_learning`, describes gradient descent as long
    as training is lazy: the weights move little, and the empirical NTK does not change. It does not describe Adam.

    Parameters
    ----------
    model : nn.Module
        The trained network, of any kind that :func:`notsodeep.empirical_ntk` takes.
    X : array of shape (n, ...)
        Rows to measure on; a few hundred are enough.
    start : nn.Module or dict
        A copy of the network before training (``copy.deepcopy``), or a copy of its ``state_dict``.
    y : array of shape (n,), optional
        Classes or targets, for the alignment of the kernel with them.
    parameters : str, sequence of str, or callable, optional
        See :func:`notsodeep.empirical_ntk`.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Returns
    -------
    LazyReport
        Its attributes are the movements of the weights and of the kernel; ``verdict`` is one sentence.

    Examples
    --------
    >>> import copy, notsodeep as nsd, torch
    >>> X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    >>> model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), in_features=5, width=128, out_features=1)
    >>> start = copy.deepcopy(model)
    >>> history = nsd.nn.fit(model, (X, X[:, :1]), lr=0.1, epochs=1)
    >>> report = nsd.lazy(model, X, start=start, y=X[:, 0])
    >>> 0 < report.kernel < 0.5, 0.9 < report.alignment <= 1
    (True, True)
    """
    before = _started(model, start)
    now, then = (chosen(each, list(chosen(model)) if parameters is None else parameters) for each in (model, before))
    own = model if isinstance(model, Model) else None
    names = [name for name in now if own is None or name != "bias"]  # the theory does without
    rates = {} if own is None else own.theory_rates()
    rows = as_numbers(X, "X").detach()
    K, K0 = (empirical_kernel(each, rows, names, rates, progress).cpu().double() for each in (model, before))
    if not float(K0.norm()):
        raise InvalidInputError("the kernel of the start is zero: its gradients vanish on all of these rows")
    ideal = None if y is None else _label_kernel(y, len(K)).to(K)
    exact = own.infinite_kernel(rows).cpu().double() if own is not None and parameters is None else None
    return LazyReport(
        weights={name: _moved(now[name].detach(), then[name].detach()) for name in now},
        kernel=relative_spectral_error(K0, K),
        alignment=_alignment(K0, K),
        labels=None if ideal is None else (_alignment(K0, ideal), _alignment(K, ideal)),
        infinite=None if exact is None else (relative_spectral_error(exact, K0), relative_spectral_error(exact, K)),
        rows=len(K),
    )


def _started(model: nn.Module, start: Any) -> nn.Module:
    """Return the model with its weights at the start."""
    state = start.state_dict() if isinstance(start, nn.Module) else start
    if not isinstance(state, Mapping):
        raise InvalidInputError(
            f"start must be a copy of the model before training (copy.deepcopy), or its state_dict, got "
            f"{type(start).__name__}"
        )
    found = copy.deepcopy(model)
    try:
        found.load_state_dict(dict(state))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"start does not belong to this model: {error}") from error
    return found


def _moved(now: Tensor, then: Tensor) -> float:
    size = float(then.norm()) or float(now.norm()) or 1.0
    return float((now - then).norm()) / size


def _alignment(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two kernels, centred."""
    a, b = (k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in (a, b))
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size else 0.0


def _label_kernel(y: Any, rows: int) -> Tensor:
    """Return the kernel of the targets: real numbers as they are, and for classes whether two rows share one."""
    try:
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"y must be an array of {rows} targets, one for each row, got {shown(y)}") from error
    if given.dtype.kind == "f":
        targets = as_numbers(np.atleast_1d(given), "y").double()
        if len(targets) != rows or not bool(torch.isfinite(targets).all()):
            raise InvalidInputError(f"y must hold {rows} finite targets, one for each row, got shape {given.shape}")
        targets = targets.reshape(rows, -1)
        return targets @ targets.mT
    codes = torch.from_numpy(np.unique(as_labels(given, rows), return_inverse=True)[1])
    return (codes[:, None] == codes).double()
