"""gain * base(scale * x) + skip * x + shift, of any activation."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import ActivationError
from .base import Activation, Parity, activation
from .forms import ClosedForm, Dual, Smoothed
from .panels import Panels, Stretched, Tails
from .polynomial import Polynomial, Quadratic


@dataclass(frozen=True)
class Affine(Activation):
    """gain * base(scale * x) + skip * x + shift; :meth:`Activation.affine` builds it without nesting.

    Parameters
    ----------
    base : str, Activation or callable
    gain : float, default 1
    scale : float, default 1
        A positive number.
    skip, shift : float, default 0

    Examples
    --------
    >>> Affine("tanh", gain=2.0, shift=0.5)
    Affine(Tanh(), gain=2.0, shift=0.5)
    """

    base: Activation
    gain: float = 1.0
    scale: float = 1.0
    skip: float = 0.0
    shift: float = 0.0
    name: ClassVar[str] = "affine"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", activation(self.base))
        super().__post_init__()
        if self.scale <= 0:
            raise ActivationError(f"Affine: the input scale must be positive, got {self.scale!r}")

    def affine(self, gain: float = 1.0, scale: float = 1.0, skip: float = 0.0, shift: float = 0.0) -> Activation:
        outer = Affine(self, gain, scale, skip, shift)  # refuses what is no number
        return self.base.affine(
            self.gain * outer.gain,
            self.scale * outer.scale,
            self.skip * outer.gain * outer.scale + outer.skip,
            self.shift * outer.gain + outer.shift,
        )

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(k / self.scale for k in self.base.kinks)

    def __repr__(self) -> str:
        changed = [f for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"Affine({', '.join([repr(self.base), *(f'{f.name}={getattr(self, f.name)!r}' for f in changed)])})"

    @property
    def slope_range(self) -> tuple[float, float]:
        steepness = self.gain * self.scale
        ends = [steepness * s + self.skip if steepness else self.skip for s in self.base.slope_range]
        return (min(ends), max(ends))

    @property
    def suprema(self) -> tuple[float, float] | None:
        if (inner := self.base.suprema) is None:
            return None
        return abs(self.gain) * self.scale**2 * inner[0], abs(self.gain) * inner[1] + abs(self.shift)

    @property
    def parity(self) -> Parity | None:
        inner = self.base.parity
        if inner == "odd" and self.shift == 0.0:
            return "odd"
        return "even" if inner == "even" and self.skip == 0.0 else None

    @property
    def homogeneity(self) -> float | None:
        inner = self.base.homogeneity
        return inner if self.shift == 0.0 and (self.skip == 0.0 or inner == 1.0) else None

    def panels(self) -> Panels:
        return Stretched(self.base.panels(), self.scale)

    def tails(self) -> Tails | None:
        base = self.base.tails()
        if base is None:
            return None
        steepness = self.gain * self.scale
        left, right = ((self.gain * b + self.shift, steepness * a + self.skip) for b, a in (base.left, base.right))
        return Tails(base.reach / self.scale, left, right)

    def _value(self, x: Tensor) -> Tensor:
        out = self.base._value(x if self.scale == 1.0 else self.scale * x)
        out = out if self.gain == 1.0 else self.gain * out
        out = out if self.skip == 0.0 else out + self.skip * x
        return out if self.shift == 0.0 else out + self.shift

    def _slope(self, x: Tensor) -> Tensor:
        return self.gain * self.scale * self.base._slope(self.scale * x) + self.skip

    def _curvature(self, x: Tensor) -> Tensor:
        return self.gain * self.scale**2 * self.base._curvature(self.scale * x)

    def sides(self) -> tuple[Tensor, Tensor]:
        # through the base: a kink divided by the scale is rounded, and its neighbours may miss the base's kink
        value, slope = self.base.sides()
        kinks = value.new_tensor(self.kinks)
        return self.gain * value + self.skip * kinks + self.shift, self.gain * self.scale * slope + self.skip

    def _mean(self, tau: float) -> float:
        return self.gain * self.base._mean(self.scale * tau) + self.shift

    # -- closed forms, from those of the base ------------------------------------------------------------
    @property
    def two_slopes(self) -> tuple[float, float] | None:
        inner = self.base.two_slopes
        if inner is None or self.shift != 0.0:
            return None
        steepness = self.gain * self.scale
        return (steepness * inner[0] + self.skip, steepness * inner[1] + self.skip)

    @property
    def piecewise_linear(self) -> bool:
        return self.base.piecewise_linear

    def canonical(self) -> Activation:
        base = self.base.canonical()
        return self if base is self.base else base.affine(self.gain, self.scale, self.skip, self.shift)

    def polynomial(self) -> Polynomial | None:
        base = Quadratic(0.0, 0.0, 0.0) if self.gain == 0.0 else self.base.polynomial()
        return None if base is None else base.wrapped(self.gain, self.scale, self.skip, self.shift)

    def closed_form(self) -> ClosedForm | None:
        inner = self.base.closed_form()
        return None if inner is None else functools.partial(self._closed_form, inner)

    def mixed_form(self) -> ClosedForm | None:
        inner = self.base.mixed_form()
        return None if inner is None else functools.partial(self._closed_form, inner)

    def _closed_form(self, inner: ClosedForm, qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
        """Return the closed form from that of the base; cross terms follow from Stein's lemma."""
        s2 = self.scale**2
        value, slope = inner(s2 * qx, s2 * qy, s2 * lam)
        g, s = self.gain, self.gain * self.scale
        value, slope = g * g * value, s * s * slope
        if self.skip or self.shift:
            (mean_x, tilt_x), (mean_y, tilt_y) = (self.base._closed_means(s2 * q) for q in (qx, qy))
            value = value + self.skip * lam * (s * (tilt_x + tilt_y) + self.skip)
            value = value + self.shift * (g * (mean_x + mean_y) + self.shift)
            slope = slope + self.skip * (s * (tilt_x + tilt_y) + self.skip)
        return value, slope

    def smoothed(self, mean: Tensor, noise: Tensor) -> Smoothed | None:
        inner = self.base.smoothed(self.scale * mean, self.scale * noise)
        if inner is None:
            return None
        steepness, (value, slope, curvature) = self.gain * self.scale, inner
        value = self.gain * value + self.skip * mean + self.shift
        return value, steepness * slope + self.skip, steepness * self.scale * curvature

    def _closed_means(self, q: Tensor) -> Dual:
        mean, slope = self.base._closed_means(self.scale**2 * q)
        return self.gain * mean + self.shift, self.gain * self.scale * slope + self.skip

    # -- in torch, and as text ---------------------------------------------------------------------------
    def _source(self, x: str) -> str:
        inner = self.base._source(x if self.scale == 1.0 else f"({self.scale!r} * {x})")
        terms = [inner if self.gain == 1.0 else f"{self.gain!r} * ({inner})"]
        terms += [f"{self.skip!r} * {x}"] if self.skip else []
        terms += [repr(self.shift)] if self.shift else []
        return " + ".join(terms).replace("+ -", "- ")

    def source_lines(self, name: str) -> list[str]:
        exact = self.polynomial()
        return super().source_lines(name) if exact is None else exact.source_lines(name)
