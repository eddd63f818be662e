"""What any fit with a certificate per kernel can say of itself."""

from __future__ import annotations

from typing import Any

__all__ = ["Certified"]


class Certified:
    """A fit whose kernels are certified one by one."""

    suprema: tuple[Any, ...]
    """One certified supremum per kernel, each with ``bound`` and ``sampled``."""

    @property
    def worst(self) -> int:
        """The kernel that decides."""
        return max(range(len(self.suprema)), key=lambda i: self.suprema[i].bound)

    @property
    def bound(self) -> float:
        return self.suprema[self.worst].bound

    @property
    def sampled(self) -> float:
        return max(s.sampled for s in self.suprema)
