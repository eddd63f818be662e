"""Models of torch: proofs against plain iteration, models that work in place, functions whose state changes."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import notsodeep as nsd
from fuzz.draws import PLAIN
from helpers import tolerance
from notsodeep.errors import ActivationError, NotSoDeepError

KNOWN = tolerance(amplified=1e2)  # layers may be steep, and tables are sums of series
SMOOTH = ("tanh", "erf", "gelu", "silu", "softplus", "sin")


def a_cell(rng: np.random.Generator) -> nsd.DEQ:
    """A DEQ whose cell has several layers, or whose pre-activations are normalised, mostly with a unique solution."""
    layers = [str(rng.choice(PLAIN)) for _ in range(int(rng.integers(1, 4)))]
    normalise = len(layers) == 1 or bool(rng.random() < 0.3)
    limit = nsd.DEQ(layers, 0.0, 0.8, 0.2, normalise=normalise).limit
    sigma_a2 = float(rng.uniform(0.0, 0.95)) * min(limit, 1.0)
    return nsd.DEQ(layers, sigma_a2, float(rng.uniform(0.1, 2.0)), float(rng.choice([0.2, 1.0])), normalise=normalise)


def proofs(rng: np.random.Generator) -> int:
    """Classes and outputs that are proven, against the equilibrium by plain iteration in double precision."""
    names = [str(rng.choice(PLAIN)) for _ in range(int(rng.choice([1, 1, 2])))]
    share = float(rng.uniform(0.0, 0.9)) * min(nsd.DEQ(names, 0.0).limit, 1.0)
    deq = nsd.DEQ(names, share, sigma_b2=0.8, sigma_c2=float(rng.choice([0.0, 0.3])))
    dtype = [torch.float32, torch.float64][int(rng.integers(2))]
    model = nsd.nn.DEQ(
        deq, 4, int(rng.integers(2, 40)), int(rng.integers(2, 6)), seed=int(rng.integers(99)), dtype=dtype
    )
    weights = list(model.parameters())
    with torch.no_grad():
        weights[int(rng.integers(len(weights)))].mul_(float(rng.choice([1.0, 1e-3, 1.5, 1e-30, 1e30, np.nan])))
    X = rng.standard_normal((40, 4)) * float(rng.choice([1.0, 1e-3, 100.0]))
    tol = float(10.0 ** rng.uniform(-9, -1))
    decided, near = model.decide(X), model.bounded(X, tol)
    truth = _equilibrium(copy.deepcopy(model).double(), torch.from_numpy(X))
    wrong = torch.from_numpy(decided.classes) != truth.argmax(1)
    assert not bool((wrong & torch.from_numpy(decided.proven)).any()), f"a class: {model!r}"
    off = (torch.from_numpy(near.outputs).double() - truth).abs().amax(1)[torch.from_numpy(near.proven)]
    # what remains of plain iteration
    assert bool((off <= tol + tolerance() * (1.0 + float(truth.abs().max()))).all()), f"{off.max()} > {tol}: {model!r}"
    return len(X)


def _equilibrium(model: Any, x: Tensor) -> Tensor:
    a, b, c = (v**0.5 for v in model.spec.variances)
    root, z = model.width**0.5, x.new_zeros(len(x), model.width)
    with torch.no_grad():
        drive = b * x @ model.input.T + (0.0 if model.offset is None else c * model.offset)
        for _ in range(4000):
            before, z = z, a * z @ model.recurrent.T + drive
            for k, phi in enumerate(model.spec.activations):
                z = phi(z if k == 0 else z @ model.inner[k - 1].T) / root
            if torch.equal(before, z):
                break
        return z @ model.readout.T  # type: ignore[no-any-return]


def contractions(rng: np.random.Generator) -> int:
    """The same of cells that contract by what their caller says, in the norm of the caller."""
    width, inputs, outputs = (int(n) for n in rng.integers(1, 12, 3))
    outputs += 1
    dtype = [torch.float32, torch.float64][int(rng.integers(2))]
    rate = float(rng.choice([0.0, rng.uniform(0.0, 0.95), 0.99]))
    W, U, R, X = (
        torch.from_numpy(rng.standard_normal(shape)).to(dtype)
        for shape in ((width, width), (width, inputs), (outputs, width), (40, inputs))
    )
    W *= rate * (1.0 - 1e-6) / float(torch.linalg.matrix_norm(W.double(), 2))  # rounding of the weights adds to it
    X *= float(rng.choice([1.0, 1e-3, 100.0, 1e6]))
    R *= float(rng.choice([1.0, 1e-6, 1e6]))
    phi = nsd.activation(str(rng.choice(["tanh", "relu", "sin", "linear", "hard_tanh"])))

    def cell(z: Tensor, x: Tensor) -> Tensor:
        return phi(z @ W.to(z).T + x @ U.to(x).T)

    problem = nsd.nn.Contraction(cell, lambda z: z @ R.to(z).T, rate, width)
    tol = float(10.0 ** rng.uniform(-6, 0))
    decided, near = problem.decide(X), problem.bounded(X, tol)
    x = X.double()
    z = x.new_zeros(len(x), width)
    for _ in range(8000):
        before, z = z, cell(z, x)
        if torch.equal(before, z):
            break
    truth = z @ R.double().T
    wrong = torch.as_tensor(decided.classes) != truth.argmax(1)
    label = f"{phi!r} at the rate {rate}, {dtype}, widths {width}, {inputs}, {outputs}"
    top = truth.topk(2, 1).values
    apart = top[:, 0] - top[:, 1] > tolerance() * (1.0 + truth.abs().amax(1))  # of two that are equal either is right
    assert not bool((wrong & apart & torch.as_tensor(decided.proven)).any()), f"a class: {label}"
    off = (torch.as_tensor(near.outputs).double() - truth).abs().amax(1)[torch.as_tensor(near.proven)]
    # what remains of plain iteration
    assert bool((off <= tol + tolerance() * (1.0 + float(truth.abs().max()))).all()), f"{off.max()} > {tol}: {label}"
    return len(X)


def fits(rng: np.random.Generator) -> int:
    """Training at rates up to absurd ones: an answer or a refusal, and weights that are numbers."""
    name = str(rng.choice(PLAIN))
    if rng.random() < 0.5:
        deq = nsd.DEQ(name, 0.8 * min(nsd.DEQ(name, 0.0).limit, 1.0), 1.0)
        model: Any = nsd.nn.DEQ(deq, 3, int(rng.integers(2, 12)), 2, seed=0)
    else:
        model = nsd.nn.ENN(nsd.ENN([name, "relu"]), 3, 8, 2, seed=0)
    X = (rng.standard_normal((12, 3)) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32)
    data = (X, rng.integers(2, size=12)) if rng.random() < 0.5 else (X, 10.0 ** rng.uniform(-3, 10) * X[:, :2])
    rate, optimiser = float(10.0 ** rng.uniform(-4, 12)), str(rng.choice(["adam", "sgd"]))
    with contextlib.suppress(NotSoDeepError):
        nsd.nn.fit(model, data, optimiser=optimiser, lr=rate, epochs=3, progress=False)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters()), f"rate {rate}, {optimiser}: {model!r}"
    return len(X)


class _Writes(nn.Module):
    """Works in place on what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(0.5).add_(1.0)


class _Counts(nn.Module):
    """Writes into a buffer at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return 1.5 * x


def _state(model: nn.Module) -> list[tuple[int, bool, Tensor]]:
    return [(id(part), part.requires_grad, part.detach().clone()) for part in (*model.parameters(), *model.buffers())]


def in_place(rng: np.random.Generator) -> int:
    """Kernels and first orders of models, against Jacobians; their rows and their state stay as they are."""
    torch.manual_seed(int(rng.integers(1 << 30)))
    layers: list[nn.Module] = [_Writes() if rng.random() < 0.4 else nn.Identity()]
    width = 4
    for _ in range(int(rng.integers(1, 4))):
        after = int(rng.integers(2, 6))
        shared = nn.Linear(after, after, bias=bool(rng.random() < 0.5))
        thrice = nn.Sequential(*(shared, nn.Tanh()) * int(rng.integers(1, 4)))
        kinds = (nn.ReLU(inplace=True), nn.Tanh(), nn.ELU(inplace=True), nn.LayerNorm(after), nn.PReLU(), _Writes())
        kinds = (*kinds, _Counts(), thrice)
        layers += [nn.Linear(width, after, bias=bool(rng.random() < 0.7)), kinds[int(rng.integers(len(kinds)))]]
        width = after
    model = nn.Sequential(*layers).double()
    X = torch.from_numpy(rng.standard_normal((5, 4)))
    kept, before, leaves = X.clone(), _state(model), {name: p.detach() for name, p in model.named_parameters()}
    parts = jacrev(lambda p: functional_call(copy.deepcopy(model), p, (X.clone(),)))(leaves)
    J = torch.cat([part.reshape(len(X), width, -1) for part in parts.values()], -1)
    wanted = torch.einsum("nkp,mkp->nm", J, J) / width
    room = KNOWN * float(wanted.abs().max() + 1.0)
    assert float((nsd.empirical_ntk(model, X) - wanted).abs().max()) <= room, f"kernel of {model}"
    nsd.empirical_ck(model, X)
    same = zip(_state(model), before, strict=True)
    assert all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in same), f"state has changed: {model}"
    assert float((nsd.linearise(model)(X) - model(X.clone())).abs().max()) <= room, f"outputs of {model}"
    assert torch.equal(X, kept), f"rows were overwritten: {model}"
    return len(X) ** 2


def state(rng: np.random.Generator) -> int:
    """A function that reads a variable: its kernel is that of the value it has, or refused."""
    held = [float(rng.uniform(0.3, 1.5)), float(rng.normal()), 0.0]
    name = str(rng.choice(SMOOTH))
    phi = nsd.activation(name)

    def function(x: Tensor) -> Tensor:
        return phi(held[0] * x + held[1]) + held[2] * torch.sin(x)

    network, X = nsd.ENN([function]), rng.standard_normal((int(rng.choice([3, 80])), 3))
    nsd.ck(network, X)
    which = int(rng.integers(3))
    held[which] += float(10.0 ** rng.uniform(-5, 0))
    try:
        nsd.ck(network, X)
    except ActivationError:
        pass
    else:
        raise AssertionError(f"{name}: a change of variable {which} to {held} was not seen")
    after = nsd.ck(nsd.ENN([function]), X)
    fresh = nsd.ck(nsd.ENN([lambda x: phi(held[0] * x + held[1]) + held[2] * torch.sin(x)]), X)
    assert np.abs(after - fresh).max() <= KNOWN * np.abs(fresh).max(), f"{name}: an old table"
    return len(X)
