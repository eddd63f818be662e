"""The twin: a shallow explicit network with the kernel of a DEQ, and the certificate that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from typing import Any, Literal

import torch

from .. import kernels as _kernels
from .._arguments import check_settings, checked, not_negative, positive_int
from .._arrays import as_rows
from .._files import parsed
from .._words import Drawn
from ..equivalents import Coefficients, best_scalar, relative_spectral_error
from ..errors import InvalidInputError, SerialisationError, warn
from ..networks import ENN, Dense, Kernel, Network, check_kernel, is_tangent
from ..units.norm_units import outside, row_norms
from .certificates import TwinCertificate, Verification, document_of

Trains = Literal["all", "readout"]


@dataclass(frozen=True, repr=False)
class Twin(Drawn):
    """An explicit network matched to a DEQ, with its certificate.

    What is known depends on the kind of ``certificate``: for all inputs (:func:`match_one_layer`), for one mixture
    (:func:`match`) or for unit-norm inputs (:func:`match_sphere`). Numbers that a kind does not have are ``None``.

    Parameters
    ----------
    deq : DEQ or ENN
        The network it matches, an ENN for one-layer twins only; with a mixture's certificate the centred one.
    network : ENN
        The twin itself.
    kernel : {"ck", "ntk", "ntk_frozen"}
        The kernel of ``deq`` that it matches.
    family : str
        The kind of its activations.
    certificate : TwinCertificate
        What is known, and on what it rests.
    learning_rates : tuple of float, optional
        One multiplier per weight matrix (W_1 ... W_L, readout); ``None`` where all are 1.
    reason : str
        Why this family and size.
    trains : {"readout", "all"}, optional
        ``"readout"``: the twin's kernel is its CK, whatever the DEQ's is called. ``"all"``: its NTK, with all weights
        trained (``"ntk_frozen"``: all but W_1). It follows from the kernel if it is left out.
    kinds : int, optional
        The number of kinds of units of a one-layer twin.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> twin = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2), "ntk")
    >>> twin.depth, twin.trains, twin.bound < 1e-4
    (1, 'all', True)
    """

    deq: Network
    network: ENN
    kernel: Kernel
    family: str
    certificate: TwinCertificate
    learning_rates: tuple[float, ...] | None = None
    reason: str = ""
    trains: Trains = None  # type: ignore[assignment]  # __post_init__ fills it in
    kinds: int | None = None

    def __post_init__(self) -> None:
        check_kernel(self.deq, self.kernel)
        if self.trains is None:
            # a CK is the kernel of training the readout; so is the frozen NTK of one layer
            alone = self.kernel == "ntk_frozen" and self.depth == 1 and self.learning_rates is None
            object.__setattr__(self, "trains", "all" if is_tangent(self.kernel) and not alone else "readout")
        check_settings(self)
        if not self.deq.implicit and self.kinds is None:
            raise InvalidInputError(f"a twin matches a DEQ, or as one layer of units an ENN, got {self.deq!r}")
        if self.kinds is not None:
            positive_int("kinds", self.kinds)
        rates = self.learning_rates
        if rates is not None and len(rates) != self.depth + 1:
            raise InvalidInputError(
                f"a network of {self.depth} hidden layers takes {self.depth + 1} learning rates, got {len(rates)}"
            )
        for rate in rates or ():
            not_negative("a learning rate", rate)

    # ---- what the certificate says -------------------------------------------------------------------------

    @property
    def residual(self) -> float:
        """The deviation of the matched numbers (mixture), or the largest error seen (sphere, uniform)."""
        return self.certificate.residual

    @property
    def bound(self) -> float | None:
        """Bound on the error of every entry: absolute (sphere), or relative to the diagonal (uniform)."""
        return self.certificate.bound

    @property
    def tau0(self) -> float | None:
        """The scale of the inputs that a mixture's twin is for."""
        return self.certificate.tau0

    @property
    def coefficients(self) -> Coefficients | None:
        """The four numbers that the network achieves (mixture)."""
        return self.certificate.achieved

    @property
    def norms(self) -> tuple[float, float] | None:
        """The range of norms that a uniform bound holds for; ``None``: all, or no such bound."""
        return self.certificate.norms

    # ---- kernels -------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return self.network.depth

    @property
    def plain(self) -> ENN:
        """The plain network to compare with: the DEQ's own activation in every layer, the twin's depth."""
        network = ENN([self.deq.activations[-1]] * self.depth)
        return network if self.tau0 is None else network.centred(self.tau0)

    @checked
    def kernel_matrix(self, X: Any, Y: Any = None, *, out: Any = None) -> Any:
        """Compute the twin's exact kernel of the rows of X and Y, under its own training rule.

        It is the network's CK if ``trains == "readout"``, else its NTK with ``learning_rates``: what to hold against
        :func:`ck` or :func:`ntk` of the DEQ. ``out`` is where the result is written, as in :func:`ck`.
        """
        self.check_norms(X, Y)
        name, rates = self._rule
        into: dict[Kernel, Any] | None = None if out is None else {name: out}
        return _kernels.kernels_of(self.network, X, Y, kernels=(name,), learning_rates=rates, out=into)[name]

    @property
    def function(self) -> _kernels.KernelFunction:
        """The kernel of the twin as a function of rows."""
        name, rates = self._rule
        return _kernels.kernel_function(self.network, name, learning_rates=rates)

    @property
    def _rule(self) -> tuple[Kernel, tuple[float, ...] | None]:
        return ("ck", None) if self.trains == "readout" else (self.kernel, self.learning_rates)

    def check_norms(self, *rows: Any) -> None:
        """Warn of rows whose norms lie outside the range of the bound."""
        for part in rows if self.norms is not None else ():
            if part is not None and (said := outside(row_norms(as_rows(part)), self.norms)):
                warn(said)

    @checked
    def verify(self, X: Any) -> Verification:
        """Measure how far the exact kernels of the twin, and of the plain network, are from the DEQ's on rows X."""
        points = as_rows(X).to(torch.float64)
        truth = _kernels.kernels_of(self.deq, points, kernels=(self.kernel,), check=False)[self.kernel]
        if not bool((truth.diagonal() > 1e-300).any()):
            raise InvalidInputError("the DEQ's kernel vanishes on these points: there is no relative distance to it")
        plain = _kernels.kernels_of(self.plain, points, kernels=(self.kernel,))[self.kernel]
        scaled = best_scalar(truth, plain)
        return Verification(
            len(points),
            self.kernel,
            relative_spectral_error(truth, self.kernel_matrix(points)),
            relative_spectral_error(truth, plain),
            scaled.distance,
            scaled.scalar,
            self.certificate.shift,
        )

    # ---- text ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        proof = f"residual={self.residual:.1e}" if self.bound is None else f"bound={self.bound:.2g}"
        layers = "1 layer" if self.depth == 1 else f"{self.depth} layers"
        centred = "centred " if self.certificate.shift else ""
        return f"<Twin of the {centred}{self.deq.title}: {self.kernel}, {self.family}, {layers}, {proof}>"

    def __str__(self) -> str:
        shift, title = self.certificate.shift, f"Twin of {self.deq!r}"
        if shift:
            whose = f"the centred DEQ (activation shifted by {-shift:.6g})"
            title = f"Twin of {whose}: {self.deq!r}; the DEQ as given differs"
        trained = "all weights but W_1" if self.kernel == "ntk_frozen" else "all weights"
        if self.trains == "readout":
            trained = "the readout; the hidden weights are frozen features"
        scale = "" if self.tau0 is None else f" at tau0 = {self.tau0:.6g}"
        kinds = "" if self.kinds is None else f" of {self.kinds} kind{'s' if self.kinds > 1 else ''} of units"
        lines = [
            title,
            f"kernel    {self.kernel}{scale}",
            f"trains    {trained}",
            f"family    {self.family}, {self.depth} hidden layer{'s' if self.depth > 1 else ''}{kinds}",
            *(f"layer {i}   {a!r}" for i, a in enumerate(self.network.activations, 1)),
        ]
        if self.learning_rates is not None:
            lines.append("rates     " + ", ".join(f"{r:.6g}" for r in self.learning_rates))
        lines += self.certificate.lines()
        lines += [f"reason    {self.reason}"] if self.reason else []
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document; :meth:`from_dict` reads it back."""
        networks = {"deq": self.deq.to_dict(), "network": self.network.to_dict()}
        others = {f.name: document_of(getattr(self, f.name)) for f in fields(self) if f.name not in networks}
        return {"twin": 3, **networks, **others}

    @staticmethod
    def from_dict(document: Mapping[str, Any] | str) -> Twin:
        """Build a twin of any kind from what :meth:`to_dict` wrote, or from its JSON text."""
        content = parsed(document, "a twin")
        if content.pop("twin", None) != 3:
            raise SerialisationError("expected a JSON object with the key 'twin' equal to 3")
        try:
            deq: Any
            deq, network = Dense.from_dict(content["deq"]), ENN.from_dict(content["network"])
            rates = None if content["learning_rates"] is None else tuple(content["learning_rates"])
            certificate = TwinCertificate.from_dict(content["certificate"], deq, network)
            twin = Twin(
                **{**content, "deq": deq, "network": network, "learning_rates": rates, "certificate": certificate}
            )
            str(twin), hash(twin)  # numbers so large that it cannot be printed are refused here
            return twin
        except KeyError as error:
            raise SerialisationError(f"the description of this twin is incomplete: {error} is missing") from None
        except (InvalidInputError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SerialisationError(f"this does not describe a twin: {error}") from None
