"""The twin: a shallow explicit network with the kernel of a DEQ, and the certificate that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import kernels as _kernels
from .._arguments import checked, whole
from .._arrays import as_rows, like
from ..activations import Affine
from ..equivalents import Coefficients, best_scalar, relative_spectral_error
from ..errors import InvalidInputError
from ..networks import DEQ, ENN, Kernel, Network, is_tangent
from .certificates import (
    Certificate,
    Implications,
    Location,
    MixtureCertificate,
    SphereCertificate,
    Tried,
    UniformCertificate,
    Verification,
    check_number,
)
from .names import MatchKernel, Trains, kernel_names
from .twin_json import built_from, document_of, twin_html


@dataclass(frozen=True, repr=False)
class Twin:
    """An explicit network matched to a DEQ, with its certificate.

    What is proven depends on the kind of ``certificate``: for one mixture (:func:`match`), for unit-norm inputs
    (:func:`match_sphere`) or for all inputs (:func:`match_uniform`). Its numbers can be read from the twin as well;
    those that a kind does not have are ``None`` or empty.
    """

    deq: Network
    """The DEQ it matches; with a mixture's certificate the centred one. :func:`match_one_layer` takes explicit networks
    as well: then that one."""
    network: ENN
    kernel: MatchKernel
    """``"ck"``, ``"ntk"``, ``"ntk_frozen"`` or ``"both"`` (CK and NTK of all weights)."""
    family: str
    certificate: Certificate
    learning_rates: tuple[float, ...] | None = None
    """One multiplier per weight matrix (W_1 ... W_L, readout); ``None`` where all are 1."""
    reason: str = ""
    """Why this family and size."""
    trains: Trains = ""  # type: ignore[assignment]  # __post_init__ fills it in
    """``"readout"``: the hidden weights are frozen features, the twin's kernel is its CK whatever the DEQ's is called;
    ``"all"``: an NTK, all weights trained (``"ntk_frozen"``: all but W_1). Left out, it follows from the kernel."""
    kinds: int | None = None
    """Kinds of units of a one-layer twin."""

    def __post_init__(self) -> None:
        kernel_names(self.kernel)
        if not isinstance(self.deq, DEQ) and not (isinstance(self.deq, ENN) and self.kinds is not None):
            raise InvalidInputError(f"a twin matches a DEQ; one of kinds of units an ENN as well. Got {self.deq!r}")
        if not isinstance(self.certificate, Certificate):
            raise InvalidInputError(f"a twin carries a certificate, got {type(self.certificate).__name__}")
        if self.trains == "":
            object.__setattr__(self, "trains", self._usual())
        if self.trains not in ("all", "readout") or (self.kernel, self.trains) == ("both", "readout"):
            raise InvalidInputError(
                f"trains must be 'all' or, for one kernel, 'readout'; got {self.trains!r} for {self.kernel!r}"
            )
        if not isinstance(self.family, str) or not isinstance(self.reason, str):
            raise InvalidInputError(f"family and reason are texts, got {self.family!r} and {self.reason!r}")
        if self.kinds is not None:
            whole("kinds", self.kinds)
        self._check_rates()

    def _usual(self) -> Trains:
        """A CK is the kernel of training the readout; so is the frozen NTK of one layer."""
        alone = self.kernel == "ntk_frozen" and self.depth == 1 and self.learning_rates is None
        return "all" if is_tangent(self.kernel) and not alone else "readout"

    def _check_rates(self) -> None:
        rates = self.learning_rates
        if rates is None:
            return
        if len(rates) != self.depth + 1:
            raise InvalidInputError(
                f"a network of {self.depth} hidden layers takes {self.depth + 1} learning rates, got {len(rates)}"
            )
        for rate in rates:
            check_number("a learning rate", rate)

    # ---- what the certificate says -------------------------------------------------------------------------

    @property
    def residual(self) -> float:
        """The certificate's: of the matched numbers (mixture), or the largest error seen (sphere, uniform)."""
        return self.certificate.residual

    @property
    def tau0(self) -> float | None:
        """The scale of the inputs that a mixture's twin is for."""
        return self.certificate.tau0 if isinstance(self.certificate, MixtureCertificate) else None

    @property
    def targets(self) -> tuple[Coefficients, ...]:
        """The DEQ's numbers, one record per matched kernel (mixture)."""
        return self.certificate.targets if isinstance(self.certificate, MixtureCertificate) else ()

    @property
    def achieved(self) -> tuple[Coefficients, ...]:
        """The network's numbers, in the same order (mixture)."""
        return self.certificate.achieved if isinstance(self.certificate, MixtureCertificate) else ()

    @property
    def target(self) -> Coefficients | None:
        """The DEQ's numbers (for ``"both"``: those of the CK)."""
        return self.targets[0] if self.targets else None

    @property
    def coefficients(self) -> Coefficients | None:
        """The numbers the network achieves (for ``"both"``: those of the CK)."""
        return self.achieved[0] if self.achieved else None

    @property
    def conditioning(self) -> float | None:
        """Condition number of the matching equations at the solution (mixture)."""
        return self.certificate.conditioning if isinstance(self.certificate, MixtureCertificate) else None

    @property
    def shift(self) -> float:
        """What centring subtracted from the activation of the DEQ as it was given; 0 where nothing was."""
        return self.certificate.shift if isinstance(self.certificate, MixtureCertificate) else 0.0

    @property
    def bound(self) -> float | None:
        """Proven bound on the kernel's error: of every entry (sphere), or relative to the diagonal (uniform)."""
        return None if isinstance(self.certificate, MixtureCertificate) else self.certificate.bound

    @property
    def normalise(self) -> bool:
        """True if inputs must be divided by their norm first (sphere)."""
        return self.certificate.normalise if isinstance(self.certificate, SphereCertificate) else False

    @property
    def norms(self) -> tuple[float, float] | None:
        """The range of norms that a uniform bound holds for; ``None``: all, or no such bound."""
        return self.certificate.norms if isinstance(self.certificate, UniformCertificate) else None

    @property
    def location(self) -> Location | None:
        """Where the largest error was seen (uniform)."""
        return self.certificate.location if isinstance(self.certificate, UniformCertificate) else None

    @property
    def table(self) -> tuple[Tried, ...]:
        """Size against accuracy, for the sizes that were tried (uniform)."""
        return self.certificate.table if isinstance(self.certificate, UniformCertificate) else ()

    @property
    def diagonals(self) -> tuple[tuple[str, float], ...]:
        """Kernel name -> largest k_deq(x, x) (uniform)."""
        return self.certificate.diagonals if isinstance(self.certificate, UniformCertificate) else ()

    @checked
    def implications(
        self,
        n: int,
        ridge: float,
        *,
        time: float | None = None,
        targets: float | None = None,
        largest_norm: float = 1.0,
        kernel: str | None = None,
    ) -> Implications:
        """What the uniform bound means for kernel matrices and predictions: :meth:`UniformCertificate.implications`."""
        if not isinstance(self.certificate, UniformCertificate):
            raise InvalidInputError(
                f"only a bound for all inputs has implications; this certificate is of the kind "
                f"{self.certificate.kind!r}. Use match_uniform"
            )
        return self.certificate.implications(
            n, ridge, time=time, targets=targets, largest_norm=largest_norm, kernel=kernel
        )

    @property
    def implicit(self) -> DEQ:
        """The DEQ it matches; a twin of an explicit network has none and says so."""
        if isinstance(self.deq, DEQ):
            return self.deq
        raise InvalidInputError(f"this twin matches an explicit network, {self.deq!r}; here a DEQ is needed")

    # ---- kernels -------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Hidden layers of the network."""
        return self.network.depth

    @property
    def plain(self) -> ENN:
        """The plain network to compare with: the DEQ's own activation in every layer, the twin's depth."""
        network = ENN([self.deq.activations[-1]] * self.depth)
        return network if self.tau0 is None else network.centred(self.tau0)

    @checked
    def kernel_matrix(self, X: Any, Y: Any = None, kernel: Kernel | None = None, *, out: Any = None) -> Any:
        """The twin's exact kernel under its own training rule, to hold against :func:`ck` or :func:`ntk` of the DEQ.

        ``trains == "readout"``: the network's CK; else its NTK with the twin's learning rates. A twin of ``"both"``
        gives its NTK unless ``kernel="ck"`` asks for the other one. ``out`` is filled as that of :func:`ck` is.
        """
        names = kernel_names(self.kernel)
        name = names[-1] if kernel is None else kernel
        if name not in names:
            raise InvalidInputError(f"this twin matches {' and '.join(names)}, got kernel={kernel!r}")
        if self.normalise:
            X, Y = _unit(X), None if Y is None else _unit(Y)
        return self._own(X, Y, (name,), out)[name]

    def _own(self, X: Any, Y: Any, names: tuple[Kernel, ...], out: Any = None) -> dict[Kernel, Any]:
        """The network's kernels, under the names of the DEQ's kernels that they match."""
        kinds: tuple[Kernel, ...] = ("ck",) if self.trains == "readout" else names
        into = None if out is None else {kinds[0]: out}
        rates = None if self.trains == "readout" else self.learning_rates
        found = _kernels.kernels_of(self.network, X, Y, kernels=kinds, learning_rates=rates, out=into)
        return dict(zip(names, found.values(), strict=True))

    def verify(self, X: Any) -> Verification:
        """Distances of the exact kernels of DEQ and twin on the rows of X, beside those of the plain network."""
        points = as_rows(X).to(torch.float64)
        if self.normalise:
            points = _unit(points)
        names = kernel_names(self.kernel)
        truth = _kernels.kernels_of(self.deq, points, kernels=names, check=False)
        if any(not bool((K.diagonal() > 1e-300).any()) for K in truth.values()):
            raise InvalidInputError("the DEQ's kernel vanishes on these points: there is no relative distance to it")
        twin = self._own(points, None, names)
        plain = _kernels.kernels_of(self.plain, points, kernels=names)
        scaled = {k: best_scalar(truth[k], plain[k]) for k in names}
        return Verification(
            len(points),
            {k: relative_spectral_error(truth[k], twin[k]) for k in names},
            {k: relative_spectral_error(truth[k], plain[k]) for k in names},
            {k: scaled[k].distance for k in names},
            {k: scaled[k].scalar for k in names},
            self.shift,
        )

    # ---- text ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        proof = f"residual={self.residual:.1e}" if self.bound is None else f"bound={self.bound:.2g}"
        layers = "1 layer" if self.depth == 1 else f"{self.depth} layers"
        centred = "" if self.shift == 0.0 else "centred "
        return f"<Twin of the {centred}{_base(self.deq)}: {self.kernel}, {self.family}, {layers}, {proof}>"

    def __str__(self) -> str:
        lines = [
            self._title(),
            f"kernel    {self.kernel}" + ("" if self.tau0 is None else f" at tau0 = {self.tau0:.6g}"),
        ]
        lines.append(f"trains    {self._trained()}")
        kinds = "" if self.kinds is None else f" of {self.kinds} kind{'s' if self.kinds > 1 else ''} of units"
        lines.append(f"family    {self.family}, {self.depth} hidden layer{'s' if self.depth > 1 else ''}{kinds}")
        lines += [f"layer {i}   {a!r}" for i, a in enumerate(self.network.activations, 1)]
        if self.learning_rates is not None:
            lines.append("rates     " + ", ".join(f"{r:.6g}" for r in self.learning_rates))
        lines += self.certificate.lines()
        lines += [f"reason    {self.reason}"] if self.reason else []
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        return twin_html(self)

    def _title(self) -> str:
        if self.shift == 0.0:
            return f"{'One-layer twin' if isinstance(self.deq, ENN) else 'Twin'} of {self.deq!r}"
        return (
            f"Twin of the centred DEQ (activation shifted by {-self.shift:.6g}): {self.deq!r}; the DEQ as given differs"
        )

    def _trained(self) -> str:
        if self.trains == "readout":
            return "the readout; the hidden weights are frozen features"
        return "all weights but W_1" if self.kernel == "ntk_frozen" else "all weights"

    def to_dict(self) -> dict[str, Any]:
        """A JSON document; :meth:`from_dict` reads it back."""
        return document_of(self)

    @staticmethod
    def from_dict(document: Mapping[str, Any] | str) -> Twin:
        """A twin of any kind from what :meth:`to_dict` wrote, or from its JSON text; files of 0.1.0 included."""
        return built_from(document, Twin)


def _base(network: Network) -> str:
    """What a short text calls it."""
    if isinstance(network, ENN):
        return repr(network)
    phi = network.activation
    while isinstance(phi, Affine):
        phi = phi.base
    return f"{phi.name} DEQ"


def _unit(X: Any) -> Any:
    """Rows of norm one, in the container they came in."""
    rows = as_rows(X)
    norms = rows.norm(dim=1, keepdim=True)
    if not bool((norms > 0).all()):
        raise InvalidInputError("this twin divides rows by their norm, and a row of the data is zero; drop it")
    return like(rows / norms, X)
