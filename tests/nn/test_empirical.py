"""Kernels of networks as they are, against Jacobians written out row by row and output by output."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from helpers import differences, solved, tolerance
from notsodeep.errors import InvalidInputError, NotSoDeepWarning
from notsodeep.nn.empirical import _matrix_free, prepared

D = torch.float64
EXACT = nsd.nn.SolverOptions(tol=1e-13)


class Tied(nn.Module):
    """A matrix that is used twice as a layer and once bare, and a factor that no layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out, self.factor = nn.Linear(5, 5), nn.Linear(5, 3), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        twice = torch.tanh(self.layer(torch.tanh(self.layer(x)) * self.factor))
        return self.out(twice) + (x @ self.layer.weight)[:, :3]


class Attention(nn.Module):
    """Inside, the rows are not the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(len(x), 2, 4)
        return self.out(self.attention(tokens, tokens, tokens)[0].flatten(1))


class Rounded(torch.autograd.Function):
    """A custom backward pass without forward mode or vmap."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.factor, self.out = nn.Linear(5, 4), nn.Parameter(torch.randn(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(Rounded.apply(torch.tanh(self.first(x)), self.factor))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(3, 4, 3, padding="same", groups=1), nn.Conv2d(4, 4, 3, groups=2),
                         nn.Flatten(), nn.Dropout(), nn.Linear(16, 3)).eval()  # fmt: skip


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    biased = nsd.DEQ("tanh", 0.2, 0.5, 0.3, readout="pre-activation")
    image, strided = (nsd.ConvDEQ("tanh", 0.2, image=(1, 4, 4), stride=stride) for stride in (1, 2))
    found: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "layers": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)), (5,)),
        "convolution": (convolutional(), (2, 8, 8)),
        "tied": (Tied(), (5,)),
        "attention": (Attention(), (8,)),
        "custom": (Custom(), (5,)),
        "deq": (nsd.nn.DEQ(biased, 5, 9, 3, bias=True, solver=EXACT), (5,)),
        "standard": (nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 5, 9, 2, solver=EXACT, parametrisation="standard"), (5,)),
        "images": (nsd.nn.ConvDEQ(image, 3, 2, solver=EXACT), (16,)),
        "strides": (nsd.nn.ConvDEQ(strided, 3, 2, solver=EXACT), (16,)),
        "one layer": (nsd.nn.ENN(nsd.match_one_layer(nsd.DEQ("relu", 0.2)), 5, 12, 2, kernel="ntk"), (5,)),
        "scalar": (nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), (5,)),
    }
    return {name: (model.double(), shape) for name, (model, shape) in found.items()}


NETWORKS = networks()


def jacobian(model: nn.Module, X: Tensor) -> Tensor:
    """(n, k, parameters), one backward pass of one row for each entry of (n, k)."""
    weights = [p for p in model.parameters() if p.requires_grad]

    def flat(output: Tensor) -> Tensor:
        grads = torch.autograd.grad(output, weights, retain_graph=True, allow_unused=True)
        pairs = zip(grads, weights, strict=True)
        return torch.cat([torch.zeros_like(w).flatten() if g is None else g.flatten() for g, w in pairs])

    return torch.stack([torch.stack([flat(output) for output in model(x[None]).reshape(-1)]) for x in X])


def rows(shape: tuple[int, ...], n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=D)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_kernel_is_that_of_the_jacobian_written_out(name: str) -> None:
    model, shape = NETWORKS[name]
    X, Y = rows(shape, 4), rows(shape, 3, 1)
    before = X.clone()
    J, other = jacobian(model, X), jacobian(model, Y)
    cross, own = (torch.einsum("nkp,mlp->nmkl", J, with_) for with_ in (other, J))
    close = {"rtol": 0.0, "atol": 10 * tolerance() * float(own.abs().max())}  # the equilibria are solved to 1e-13
    for memory in (1e9, 4e3):  # all at once, and in the smallest blocks
        options = {"memory": memory}
        torch.testing.assert_close(nsd.empirical_ntk(model, X, Y, outputs="full", **options), cross, **close)
        trace = nsd.empirical_ntk(model, X, Y, outputs="trace", **options)
        torch.testing.assert_close(trace, cross.diagonal(dim1=2, dim2=3).sum(-1), **close)
        torch.testing.assert_close(nsd.empirical_ntk(model, X, outputs="full", **options), own, **close)
    K = nsd.empirical_ntk(model, X)
    torch.testing.assert_close(K, own.diagonal(dim1=2, dim2=3).mean(-1), **close)
    assert torch.equal(K, K.T)
    assert torch.equal(X, before)
    kernel, v = nsd.nn.EmpiricalKernel(model), rows((2,), 3, 2)
    wanted = cross.diagonal(dim1=2, dim2=3).mean(-1) @ v
    torch.testing.assert_close(kernel.product(X, Y, v), wanted, **close)
    torch.testing.assert_close(kernel.diagonal(X), K.diagonal(), **close)
    x, y, tangents = prepared(model, X, Y, None, 1e4)
    torch.testing.assert_close(_matrix_free(tangents, x, y, v, False) / tangents.outputs, wanted, **close)


@pytest.mark.parametrize("parametrisation", ["ntk", "standard"])
def test_wide_networks_have_the_exact_kernel(parametrisation: str) -> None:
    X = rows((4,), 12) / 2.0
    spec = nsd.DEQ("relu", 0.2)
    model = nsd.nn.DEQ(spec, 4, 800, 4, parametrisation=parametrisation, dtype=D)
    report = nsd.lazy(model, X, start=model)
    assert report.infinite is not None
    assert report.infinite[0] == report.infinite[1] < tolerance(samples=800)
    assert nsd.lazy(model, X.tolist(), start=model).infinite == report.infinite
    if parametrisation == "ntk":
        exact = nsd.ntk(spec, X)
        K = nsd.empirical_ntk(model, X)
        assert float((K - exact).norm() / exact.norm()) < tolerance(samples=800)
        G = nsd.empirical_ck(model, X)
        assert float((G - nsd.ck(spec, X)).norm() / G.norm()) < tolerance(samples=800)


def test_arrays_single_precision_and_switches_of_autograd() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 2))
    X = rows((5,), 7)
    K = nsd.empirical_ntk(model, X.numpy())
    assert K.dtype == np.float32
    exact = nsd.empirical_ntk(copy.deepcopy(model).double(), X)
    np.testing.assert_allclose(K, exact, rtol=0, atol=tolerance(np.float32) * float(exact.abs().max()))
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            np.testing.assert_array_equal(nsd.empirical_ntk(model, X.numpy()), K)


def test_parameters_are_chosen_by_name() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    X = rows((5,), 6)
    whole = nsd.empirical_ntk(model, X)
    parts = [nsd.empirical_ntk(model, X, parameters=p) for p in ("0.*", ["2.weight"], lambda name: name == "2.bias")]
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=tolerance() * float(whole.max()))
    features = torch.tanh(model[0](X)).detach()
    for found in (parts[1], nsd.empirical_ck(model, X), nsd.empirical_ck(model, X, layer="1")):
        torch.testing.assert_close(found, features @ features.T, rtol=0, atol=tolerance(amplified=float(whole.max())))
    frozen = copy.deepcopy(model).requires_grad_(False)
    torch.testing.assert_close(nsd.empirical_ntk(frozen, X, parameters="*"), whole)


class Returns(nn.Module):
    def __init__(self, change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(5, 3), change

    def forward(self, x: Tensor):
        return self.change(self.layer(x))


BAD = {
    "no parameters": (nn.ReLU(), {}, "has no parameters"),
    "frozen": (nn.Linear(5, 2).requires_grad_(False), {}, "every parameter is frozen"),
    "unknown names": (nn.Linear(5, 2), {"parameters": "layer9.*"}, "chooses none of"),
    "an array of no dimension": (nn.Linear(5, 2), {"parameters": np.array("x")}, "must be names"),
    "tuples": (Returns(lambda y: (y, y)), {}, "returns a tuple"),
    "integers": (Returns(lambda y: y.argmax(1)), {}, "has no gradient"),
    "not per row": (Returns(lambda y: y.sum()), {}, "one row of outputs"),
    "mixed rows": (Returns(lambda y: y - y.mean(0)), {}, "depend on the other rows"),
    "batch norm": (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), {}, r"1 \(BatchNorm1d\) averages.*eval"),
    "dropout": (nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.1)), {}, "drops units"),
    "detached": (Returns(lambda y: y.detach()), {}, "do not depend on the parameters"),
    "wrong rows": (nn.Linear(4, 2), {}, "fails on rows of shape"),
    "memory": (nn.Linear(5, 2), {"memory": 0}, "positive number of bytes"),
    "other rows": (nn.Linear(5, 2), {"Y": np.ones((2, 4))}, "rows of shape"),
    "in place": (Returns(lambda y: y), {"X": np.full((3, 5), np.nan)}, "NaN"),
    "no module": (torch.relu, {}, "model must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_kernel_is_refused_in_words(name: str) -> None:
    model, options, words = BAD[name]
    with pytest.raises(InvalidInputError, match=words):
        nsd.empirical_ntk(model, options.pop("X", np.ones((3, 5))), **options)


def test_every_call_names_the_rows_on_which_a_model_fails() -> None:
    X = np.ones((3, 5), np.float32)
    for model in (nn.Linear(4, 2), nn.Bilinear(4, 3, 2)):
        calls = (
            lambda: nsd.empirical_ck(model, X),  # noqa: B023
            lambda: nsd.linearise(model)(torch.from_numpy(X)),  # noqa: B023
            lambda: nsd.nn.EmpiricalKernel(model, "ck").diagonal(X),  # noqa: B023
        )
        for call in calls:
            with pytest.raises(InvalidInputError, match=r"the model fails on rows of shape \(3, 5\)"):
                call()


def test_weights_that_no_gradient_reaches_are_named() -> None:
    model = Returns(lambda y: y)
    model.spare = nn.Linear(2, 2)
    with pytest.warns(NotSoDeepWarning, match="spare.weight"):
        K = nsd.empirical_ntk(model, np.eye(5))
    np.testing.assert_allclose(K, np.eye(5) + 1.0)


@pytest.mark.filterwarnings("ignore")
def test_torchdeq_layers() -> None:
    torchdeq = pytest.importorskip("torchdeq")

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W, self.U, self.R = nn.Linear(9, 9), nn.Linear(5, 9), nn.Linear(9, 2)
            ends = {f"{way}_{key}": value for way in "fb" for key, value in (("tol", 1e-12), ("max_iter", 200))}
            self.deq = torchdeq.get_deq(f_solver="fixed_point_iter", b_solver="fixed_point_iter", ift=True, **ends)

        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.W(z) + self.U(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.R(self.deq(lambda z: self.step(z, x), torch.zeros(len(x), 9, dtype=x.dtype))[0][-1])

    class Unrolled(nn.Module):
        def __init__(self, model: Foreign) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            z = torch.zeros(len(x), 9, dtype=x.dtype)
            for _ in range(100):
                z = self.model.step(z, x)
            return self.model.R(z)

    torch.manual_seed(0)
    model, X = Foreign().double().train(), rows((5,), 4)
    J = jacobian(Unrolled(model), X)
    wanted = torch.einsum("nkp,mlp->nmkl", J, J)
    torch.testing.assert_close(nsd.empirical_ntk(model, X, outputs="full"), wanted, rtol=0, atol=1000 * solved(1e-12))
    with pytest.raises(InvalidInputError, match="no forward-mode"):
        nsd.linearise(model)(X)


# ---- in machines ---------------------------------------------------------------------------------------------


def test_a_machine_with_the_tangent_features_of_a_network() -> None:
    model, X = NETWORKS["layers"][0], rows((5,), 40)
    new, y = rows((5,), 8, 1), X[:, 0] * X[:, 1]
    options = {"ridge": 1e-2, "scale": None, "fit_intercept": False}
    machine = nsd.DEQRegressor(network=model, **options).fit(X.numpy(), y.numpy())
    K, k = nsd.empirical_ntk(model, X), nsd.empirical_ntk(model, new, X)
    ridge = 1e-2 * float(K.diagonal().mean())
    wanted = k @ torch.linalg.solve(K + ridge * torch.eye(40), y)
    # the condition number of the system
    np.testing.assert_allclose(machine.predict(new.numpy()), wanted, rtol=0, atol=tolerance(amplified=1e4))
    by_steps = nsd.DEQRegressor(network=model, solver=nsd.solve.CG(tol=1e-10), **options).fit(X.numpy(), y.numpy())
    np.testing.assert_allclose(by_steps.predict(new.numpy()), wanted, rtol=0, atol=solved(1e-8))
    with pytest.raises(InvalidInputError, match="'ntk', 'ck'"):
        nsd.DEQRegressor(network=model, kernel="ntk_frozen").fit(X.numpy(), y.numpy())
    G, g = nsd.empirical_ck(model, X), nsd.empirical_ck(model, new, X)
    wanted = g @ torch.linalg.solve(G + 1e-2 * float(G.diagonal().mean()) * torch.eye(40), y.sign())
    classifier = nsd.DEQClassifier(network=model, kernel="ck", **options).fit(X.numpy(), np.where(y > 0, "yes", "no"))
    found = classifier.decision_function(new.numpy())
    # the condition number of the system
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance(amplified=1e4))


def test_an_operator_without_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    from notsodeep.solve import network

    monkeypatch.setattr(network, "available_bytes", lambda device: 0)
    model, X = NETWORKS["tied"][0], rows((5,), 12)
    scale, v = torch.rand(12, dtype=D), rows((2,), 12, 1)
    operator = nsd.solve.NetworkKernel(model, "ntk").operator(X, scale)
    assert isinstance(operator, network.TangentOperator)
    K = scale[:, None] * nsd.empirical_ntk(model, X) * scale
    close = {"rtol": 0.0, "atol": tolerance(amplified=float(K.norm()))}
    torch.testing.assert_close(operator @ v, K @ v, **close)
    torch.testing.assert_close(operator.diagonal(), K.diagonal(), **close)
    torch.testing.assert_close(operator.columns(torch.tensor([3, 1])), K[:, [3, 1]], **close)


# ---- to first order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layers", "deq"])
def test_the_linearised_model_is_the_first_order(name: str) -> None:
    model, shape = NETWORKS[name]
    X, step = rows(shape, 3), 1e-4
    linear = nsd.linearise(model)
    torch.testing.assert_close(linear(X), model(X), rtol=0, atol=solved(1e-12))
    torch.manual_seed(1)
    moves = [torch.randn_like(p) for p in model.parameters()]
    ends = []
    for sign in (1.0, -1.0):
        moved = copy.deepcopy(model)
        for p, move in zip(moved.parameters(), moves, strict=True):
            p.data.add_(sign * step * move)
        ends.append(moved(X).detach())
    for p, move in zip(linear.model.parameters(), moves, strict=True):
        p.data.add_(3.0 * move)  # far away: it is linear
    slope = (ends[0] - ends[1]) / (2.0 * step)
    change = (linear(X) - model(X)).detach() / 3.0
    torch.testing.assert_close(change, slope, rtol=0, atol=100 * differences(step) * float(slope.abs().max()))


def test_models_that_work_in_place_get_copies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)).double()
    X = rows((4,), 6)
    kept = X.clone()
    torch.testing.assert_close(nsd.linearise(model)(X), model(X.clone()), rtol=0, atol=tolerance())
    nsd.empirical_ntk(model, X), nsd.empirical_ck(model, X), nsd.lazy(model, X, start=copy.deepcopy(model))
    assert torch.equal(X, kept)


def test_models_are_left_as_they_are() -> None:
    """torch's functional_call had frozen a layer that a model holds under three names."""
    shared = nn.Linear(4, 4).double()
    moving = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3).double())  # writes into buffers in training mode
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), shared, moving)
    before = [(part, part.requires_grad, part.detach().clone()) for part in (*model.parameters(), *model.buffers())]
    X = torch.randn(5, 4, dtype=torch.float64)
    nsd.empirical_ntk(model, X)
    nsd.empirical_ck(model, X)
    after = [*model.parameters(), *model.buffers()]
    assert all(old is new for (old, _, _), new in zip(before, after, strict=True))
    assert all(new.requires_grad == trains for (_, trains, _), new in zip(before, after, strict=True))
    assert all(torch.equal(value, new) for (_, _, value), new in zip(before, after, strict=True))


def test_the_linearised_model_learns_as_its_kernel_says() -> None:
    """Gradient descent on half the squared error moves the residual by 1 - lr K at every step."""
    torch.manual_seed(0)
    model, X = NETWORKS["deq"][0], rows((5,), 4)
    T, linear = rows((3,), 4, 1), nsd.linearise(model)
    K = nsd.empirical_ntk(model, X, outputs="full").permute(0, 2, 1, 3).reshape(12, 12)
    residual = (model(X) - T).detach().flatten()
    lr = 0.5 / float(K.norm())
    optimiser = torch.optim.SGD([p for p in linear.parameters() if p.requires_grad], lr=lr)
    for _ in range(5):
        optimiser.zero_grad()
        (0.5 * (linear.train()(X) - T).square().sum()).backward()
        optimiser.step()
        residual = residual - lr * K @ residual
    torch.testing.assert_close((linear(X) - T).detach().flatten(), residual, rtol=0, atol=solved(1e-11))
    assert torch.equal(linear.start(X), model(X))


# ---- whether training was lazy -------------------------------------------------------------------------------


def test_the_report_measures_what_it_says() -> None:
    torch.manual_seed(0)
    X = rows((4,), 30)
    y = (X[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model[2].weight.data.mul_(2.0)
    report = nsd.lazy(model, X, start=start, y=y)
    assert report.weights == pytest.approx({"0.weight": 0.0, "0.bias": 0.0, "2.weight": 1.0})
    before = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)).double()
    before.load_state_dict(start)
    K0, K = (nsd.empirical_ntk(each, X).numpy() for each in (before, model))
    assert report.kernel == pytest.approx(np.linalg.norm(K - K0, 2) / np.linalg.norm(K0, 2), rel=solved(1e-9))
    H = np.eye(30) - 1 / 30
    L = H @ (y[:, None] == y).double().numpy() @ H
    cosines = [np.sum(H @ k @ H * other) / np.linalg.norm(H @ k @ H) / np.linalg.norm(other)
               for k, other in ((K, H @ K0 @ H), (K0, L), (K, L))]  # fmt: skip
    assert (report.alignment, *report.labels) == pytest.approx(cosines, rel=tolerance(amplified=30))
    assert report.infinite is None
    assert "use nsd.replace" in report.verdict
    lazier = nsd.nn.LazyReport({}, kernel=0.04, alignment=1.0, labels=None, infinite=None, rows=1)
    assert lazier.verdict.startswith("the kernel moved by 4 %: training was lazy")
    assert report.verdict in repr(report)
    assert "2.weight" in report._repr_html_()
    drawn = report.plot()
    assert [bar.get_width() for bar in drawn.ax_.patches][-1] == pytest.approx(100 * report.kernel)


def test_wider_networks_are_lazier() -> None:
    X = rows((6,), 40).float()
    reports = []
    for width in (16, 256):
        model = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 6, width, 1, seed=1)
        start = copy.deepcopy(model)
        nsd.nn.fit(model, (X, X[:, :1] * X[:, 1:2]), lr=0.2, epochs=20, batch_size=40)
        reports.append(nsd.lazy(model, X, start=start, y=X[:, 0] * X[:, 1]))
    assert reports[0].kernel > 2.0 * reports[1].kernel > 0.0
    assert math.isclose(reports[1].alignment, 1.0, abs_tol=tolerance(samples=256))


@pytest.mark.parametrize(("start", "words"), [(3, "copy of the model"), (nn.Linear(7, 2), "does not belong")])
def test_starts_that_are_none(start, words) -> None:
    with pytest.raises(InvalidInputError, match=words):
        nsd.lazy(nn.Linear(5, 2), np.eye(5), start=start)
    for parameters in ([], np.eye(2)):
        with pytest.raises(InvalidInputError, match="parameters"):
            nsd.lazy(nn.Linear(5, 2), np.eye(5), start=nn.Linear(5, 2), parameters=parameters)


def test_labels_that_are_none() -> None:
    for y in ([0, 1], [float("nan")] * 5, 0.5, torch.tensor(0.5)):
        with pytest.raises(InvalidInputError):
            nsd.lazy(nn.Linear(5, 2), np.eye(5), start=nn.Linear(5, 2), y=y)
