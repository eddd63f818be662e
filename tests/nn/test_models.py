"""DEQ and ENN at finite width: the theory's formulas, what trains, and how they live with the rest of PyTorch."""

from __future__ import annotations

import copy
import math
import os
import pickle
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import notsodeep as nsd
from helpers import solved, tolerance
from notsodeep.activations import Activation, Hermite, LeakyReLU, Quadratic
from notsodeep.errors import InvalidInputError

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / math.sqrt(5)

EXACT = nsd.nn.SolverOptions(tol=1e-12)


def deq(phi: str = "relu", **options) -> nsd.nn.DEQ:
    return nsd.nn.DEQ(nsd.DEQ(phi, sigma_a2=0.2), 5, 32, 3, dtype=torch.float64, solver=EXACT, **options)


def enn(layers: list, **options) -> nsd.nn.ENN:
    return nsd.nn.ENN(nsd.ENN(layers), 5, 32, 3, dtype=torch.float64, **options)


# -- formulas --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phi", ["relu", "tanh", "gelu"])
def test_the_features_solve_the_equation_of_the_theory(phi: str) -> None:
    model = deq(phi)
    z = model.features(X)
    A, B = model.recurrent, model.input
    right = model.spec.activation(math.sqrt(0.2) * z @ A.mT + math.sqrt(0.8) * X @ B.mT) / math.sqrt(32)
    torch.testing.assert_close(z, right, rtol=0, atol=solved(1e-12))
    torch.testing.assert_close(model(X), z @ model.readout.mT)


LAYERS = [
    ["relu"],
    ["tanh", "linear"],
    [LeakyReLU(0.3, 1.7), LeakyReLU(-0.2, 0.4).affine(shift=-0.1)],
    [LeakyReLU(0.5, -1.0), "hard_tanh"],
    [Hermite((0.1, 0.7, -0.2, 0.05), scale=0.8), Quadratic(0.3, 1.0, -0.2)],
    [Activation.affine(nsd.activation("hard_tanh", a=0.7, c=1.3), gain=-2.0, scale=0.5), "silu"],
    [nsd.activation("relu").affine(gain=0.5, skip=0.3, shift=0.2), "erf"],
]


@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_explicit_networks_compute_the_formula_of_the_theory(layers: list) -> None:
    model = enn(layers)
    x = X
    for weight, phi in zip(model.weights, model.spec.activations, strict=True):
        x = phi(x @ weight.mT) / math.sqrt(32)
    torch.testing.assert_close(model.features(X), x, rtol=tolerance(), atol=tolerance())
    torch.testing.assert_close(model(X), x @ model.readout.mT, rtol=tolerance(), atol=tolerance())


@pytest.mark.parametrize("build", [nsd.nn.DEQ, nsd.nn.ENN])
def test_type_and_device_are_checked_like_other_arguments(build: type) -> None:
    spec = nsd.DEQ("relu", sigma_a2=0.2) if build is nsd.nn.DEQ else nsd.ENN(["relu"])
    assert build(spec, 5, 8, 3, dtype=torch.float64, device="cpu").readout.dtype == torch.float64
    with pytest.raises(InvalidInputError, match="dtype must be a dtype or None, got 'float64'"):
        build(spec, 5, 8, 3, dtype="float64")
    with pytest.raises(InvalidInputError, match=r"unknown arguments \['dtyp'\]; there are .* dtype, device"):
        build(spec, 5, 8, 3, dtyp=torch.float64)


def test_inputs_of_any_leading_shape() -> None:
    for model in (deq(), enn(["relu"])):
        assert model(X[0]).shape == (3,)
        assert model(X.reshape(2, 3, 5)).shape == (2, 3, 3)
        torch.testing.assert_close(model(X.reshape(2, 3, 5)).reshape(6, 3), model(X), rtol=0, atol=solved(1e-12))


def test_a_batch_without_rows() -> None:
    for model in (deq(), enn(["relu"])):
        assert model(X[:0]).shape == (0, 3)
        model(X[:0]).sum().backward()


def test_inference_mode() -> None:
    for model in (deq(), enn(["relu", "hard_tanh"])):
        with torch.inference_mode():
            out = model(X)
        torch.testing.assert_close(out, model(X).detach(), rtol=0, atol=solved(1e-12))


def test_half_precision_is_honest() -> None:
    """bfloat16 cannot meet 1e-5, which is said; at a tolerance it can meet the result is right to that tolerance."""
    model = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 5, 64, 3, dtype=torch.bfloat16)
    with pytest.warns(nsd.errors.ConvergenceWarning, match="rounding error of the data type"):
        model(X.bfloat16())
    loose = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 5, 64, 3, dtype=torch.bfloat16, solver=nsd.nn.SolverOptions(tol=2e-2))
    exact = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 5, 64, 3, dtype=torch.float64)
    gap = (loose.features(X.bfloat16()).double() - exact.features(X)).norm() / exact.features(X).norm()
    assert float(gap.detach()) < 0.04


def test_a_sample_does_not_depend_on_its_batch() -> None:
    model = deq()
    together = model(X * torch.tensor([[1.0], [10.0], [0.0], [1e-3], [1.0], [5.0]], dtype=torch.float64))
    torch.testing.assert_close(together[0], model(X[0]), rtol=0, atol=solved(1e-12))
    assert float(together[2].detach().abs().max()) == 0.0


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 5))
def test_symmetries_of_the_activation_are_those_of_the_network(factor: float, seed: int) -> None:
    """phi(c x) = c phi(x) gives f(c x) = c f(x); an odd phi gives an odd f."""
    relu, tanh = deq("relu", seed=seed), deq("tanh", seed=seed)
    torch.testing.assert_close(relu(factor * X), factor * relu(X), rtol=0, atol=10.0 * solved(1e-12) * factor)
    torch.testing.assert_close(tanh(-factor * X), -tanh(factor * X), rtol=0, atol=10.0 * solved(1e-12))


def test_seeds_decide_the_weights() -> None:
    same, other = deq(seed=1), deq(seed=2)
    assert torch.equal(deq(seed=1).recurrent, same.recurrent)
    assert not torch.equal(other.recurrent, same.recurrent)
    state = torch.random.get_rng_state()
    deq(seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_have_unit_variance() -> None:
    model = nsd.nn.DEQ(nsd.DEQ("tanh", 0.1), 50, 400, 10)
    for weight in (model.recurrent.detach(), model.input.detach()):
        # the mean square of N normals is 1 within 4 sqrt(2/N)
        assert float(weight.square().mean()) == pytest.approx(1.0, abs=4 * math.sqrt(2 / weight.numel()))


@pytest.mark.parametrize("sigma_c2", [0.0, 0.3])
def test_a_readout_of_pre_activations_has_the_kernels_of_the_theory(sigma_c2: float) -> None:
    spec = nsd.DEQ("tanh", 0.2, sigma_c2=sigma_c2, readout="pre-activation")
    width = 1024
    model = nsd.nn.DEQ(spec, 5, width, 1, dtype=torch.float64)
    assert (model.width, model.readout.shape[1]) == (width, width + 5 + (sigma_c2 > 0))
    kernels = empirical(model, X)
    for found, exact in zip(kernels, (nsd.ck(spec, X), nsd.ntk(spec, X)), strict=True):
        scale = float(torch.as_tensor(exact).abs().max())
        torch.testing.assert_close(found, exact, rtol=0, atol=tolerance(samples=width) * scale)


# -- what trains -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        ("ck", {"readout"}),
        ("ntk_frozen", {"recurrent", "readout"}),
        ("ntk", {"input", "recurrent", "readout"}),
    ],
)
def test_what_trains_in_a_deq(kernel: str, names: set[str]) -> None:
    model = deq(kernel=kernel)
    model(X).square().sum().backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == names
    assert {g["name"] for g in model.parameter_groups(0.1)} == names


def test_learning_rate_multipliers_become_parameter_groups() -> None:
    model = enn(["relu", "tanh"], kernel="ntk_frozen", bias=True)
    model.learning_rates = (0.5, 2.0, 1.0)
    groups = {g["name"]: g["lr"] for g in model.parameter_groups(0.1)}
    assert groups == {"weights.1": 0.2, "readout": 0.1, "bias": 0.1}
    torch.optim.SGD(model.parameter_groups(0.1)).step()


def test_contraction_bound_is_the_norm() -> None:
    model = deq("tanh")
    exact = float(torch.linalg.matrix_norm(model.recurrent.detach(), 2)) * math.sqrt(0.2 / 32)
    assert model.contraction() == pytest.approx(exact, rel=1e-3)  # by power iterations


def test_contraction_is_kept_during_training() -> None:
    """Steps that push A up: without the request the norm grows past one, with it the norm stays below."""

    def norm_after(keep: float | None) -> float:
        model = deq("tanh").limit_contraction(keep)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(25):
            optimiser.zero_grad()
            (-model(X).square().sum() - 2.0 * model.recurrent.square().sum()).backward()
            optimiser.step()
        model.eval()  # the last step is not followed by a use
        return float(torch.linalg.matrix_norm(model.recurrent.detach(), 2)) * math.sqrt(0.2 / 32)

    assert norm_after(0.9) <= 0.9
    assert norm_after(None) > 1.2


def test_a_limit_goes_on_in_another_precision() -> None:
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), 5, 16, 2).limit_contraction(0.5)
    model(X.float())
    model.double()(X)
    assert model.eval().contraction() <= 0.5


def test_without_recurrence_a_deq_is_one_layer() -> None:
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.0, sigma_b2=1.0), 5, 32, 3, dtype=torch.float64).limit_contraction(
        0.5
    )
    torch.testing.assert_close(model.features(X), torch.tanh(X @ model.input.mT) / math.sqrt(32))


def test_inputs_that_are_not_finite_are_reported() -> None:
    x = X.clone()
    x[2, 1] = math.nan
    with pytest.warns(nsd.errors.ConvergenceWarning, match="not reached for 1 of 6 rows"):
        out = deq()(x)
    torch.testing.assert_close(out[[0, 1, 3, 4, 5]], deq()(X)[[0, 1, 3, 4, 5]], rtol=0, atol=solved(1e-12))


def test_evaluation_does_not_touch_the_weights() -> None:
    model = deq("tanh").limit_contraction(0.1)
    before = model.recurrent.detach().clone()
    model.eval()(X)
    with torch.no_grad():
        model.train()(X)
    assert torch.equal(before, model.recurrent)
    model(X)  # in training, where it may
    before = model.eval().recurrent.detach().clone()
    assert torch.equal(before, model.train().eval().recurrent)
    model.train()(X)
    model.recurrent.data.copy_(2.0 * before)
    with nsd.nn.teacher.evaluating(model):  # as ``replace`` does
        model(X)
    assert torch.equal(2.0 * before, model.recurrent)


def rated(rates: tuple[float, ...]) -> nsd.nn.ENN:
    model = enn(["relu"])
    model.learning_rates = rates
    return model


def test_a_twin_says_what_trains() -> None:
    deq = nsd.DEQ("tanh", 0.2)
    for twin in (nsd.match(deq, 1.0, kernel=kernel) for kernel in ("ck", "ntk", "ntk_frozen")):
        assert nsd.nn.ENN(twin, 3, 4, 2).kernel == ("ck" if twin.trains == "readout" else twin.kernel)
        assert nsd.nn.ENN(twin, 3, 4, 2, kernel="ntk").kernel == "ntk"
    assert nsd.nn.ENN(nsd.match_one_layer(deq, "ntk"), 3, 4, 2).kernel == "ck"


# -- refusals --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nsd.nn.DEQ(nsd.ENN(["relu"]), 3, 4, 2), "must be a notsodeep.DEQ"),
        (lambda: nsd.nn.ENN(nsd.DEQ("relu", 0.2), 3, 4, 2), "must be a notsodeep.ENN"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 0, 4, 2), "in_features must be a whole number"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 3, 4.0, 2), "width must be a (positive )?whole number"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 3, 4, 2, kernel="some"), "kernel must be"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 3, 4, 2).limit_contraction(1.5), "between 0 and 1"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 3, 4, 2).limit_contraction("high"), "limit must be"),
        (lambda: nsd.nn.DEQ(nsd.DEQ("quadratic", 0.2), 3, 4, 2).limit_contraction(0.5), "no Lipschitz constant"),
        (lambda: nsd.nn.ENN(nsd.ENN(["relu"]), 3, [4, 4], 2), "width must be a whole number"),
        (lambda: rated((1.0,)).parameter_groups(1.0), "needs 2 finite"),
        (lambda: deq()(torch.ones(2, 4, dtype=torch.float64)), r"expected a tensor of shape \(..., 5\)"),
    ],
)
def test_refusals_say_what_is_allowed(build, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        build()


# -- living with PyTorch ---------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [deq(), enn([LeakyReLU(0.3), Hermite((0.0, 1.0, 0.2))])], ids=["deq", "enn"])
def test_copies_pickles_and_prints(model: nsd.nn.Model) -> None:
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X), model(X))
    assert "in_features=5" in repr(model)
    other.load_state_dict(model.state_dict())


def test_autocast_keeps_the_equilibrium_exact() -> None:
    """bfloat16 carries three digits: the equilibrium is solved in float32 all the same, only the readout is rounded."""
    model = nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 5, 64, 3, solver=nsd.nn.SolverOptions(tol=1e-6))
    x = X.float()
    exact = model.features(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model.features(x)
        out = model(x)
        out.float().square().sum().backward()
    torch.testing.assert_close(inside, exact)
    assert out.dtype == torch.bfloat16
    inside_gradient = model.recurrent.grad.clone()
    model.zero_grad()
    model(x).square().sum().backward()
    # the readout's rounding (2^-8) is all that separates the gradients
    assert float((inside_gradient - model.recurrent.grad).norm() / model.recurrent.grad.norm()) < 0.03


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_compiled_models_agree() -> None:
    """The solver is a graph break; what surrounds it is traced."""
    for model in (deq(), enn(["relu", "tanh"])):
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(X), model(X))
        compiled(X).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_models_compile_with_inductor() -> None:
    for model in (deq(), enn(["relu", "tanh"])):
        torch.testing.assert_close(torch.compile(model)(X), model(X))
    torch.compiler.reset()


def _worker(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = deq("tanh")
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(X[3 * rank : 3 * rank + 3]).square().mean().backward()
    if rank == 0:
        torch.save({n: p.grad for n, p in model.named_parameters()}, f"{folder}/gradients.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package")
def test_distributed_data_parallel(tmp_path) -> None:
    """Two processes with half a batch each: their mean gradient is that of the whole batch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.start_processes(_worker, args=(port, str(tmp_path)), nprocs=2, start_method="fork")
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    model = deq("tanh")
    model(X).square().mean().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=0, atol=10.0 * solved(1e-12))


# -- the limit of large width ----------------------------------------------------------------------------
def empirical(model: nsd.nn.Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """(CK, NTK) of one network: products of features, and of gradients of a scalar output."""
    z = model.features(x)
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(o, list(model.parameters()), retain_graph=True)])
        for o in model(x)[:, 0]
    ]
    gradients = torch.stack(rows)
    return (z @ z.mT).detach(), gradients @ gradients.mT


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(nsd.DEQ("relu", 0.2), id="relu"),
        pytest.param(nsd.DEQ("tanh", 0.2), id="tanh", marks=pytest.mark.slow),
        pytest.param(nsd.ENN([LeakyReLU(0.3), "tanh"]), id="enn"),
    ],
)
def test_kernels_converge_at_the_central_limit_rate(spec) -> None:
    """Mean square distance to the exact kernels falls like 1 / width: slope -1/2 of its root, within sampling error."""
    exact = [torch.as_tensor(nsd.ck(spec, X)), torch.as_tensor(nsd.ntk(spec, X))]
    build = nsd.nn.DEQ if isinstance(spec, nsd.DEQ) else nsd.nn.ENN
    widths, draws = [64, 512], 24
    errors = []
    for width in widths:
        total = torch.zeros(2, dtype=torch.float64)
        for seed in range(draws):
            kernels = empirical(build(spec, 5, width, 1, seed, dtype=torch.float64), X)
            total += torch.stack([(k - e).square().mean() for k, e in zip(kernels, exact, strict=True)])
        errors.append((total / draws).sqrt())
    slopes = torch.log(errors[1] / errors[0]) / math.log(widths[1] / widths[0])
    # the logarithm of each root mean square has a spread of about 1/sqrt(2 * 24 * 3) if a kernel has ~3 free entries
    assert torch.all((slopes + 0.5).abs() < 0.2), slopes
    assert float((errors[1] / torch.stack([e.norm() / 6 for e in exact])).max()) < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polynomial_units_refuse_inputs_beyond_their_range(dtype: torch.dtype) -> None:
    """Polynomials of high degree overflow on large inputs: refused, not NaN; within a graph they stay finite."""
    model = nsd.nn.ENN(nsd.ENN([nsd.activations.Hermite((0.1,) * 12)]), 3, 16, 2, dtype=dtype)
    x = torch.ones(2, 3, dtype=dtype)
    assert bool(torch.isfinite(model(10.0 * x)).all())
    large = 1e4 if dtype == torch.float32 else 1e40
    with pytest.raises(InvalidInputError, match="leave the range of"):
        model(large * x)
    exported = torch.export.export(model, (x,)).module()
    assert bool(torch.isfinite(exported(large * x)).all())
    torch.testing.assert_close(exported(x), model(x))
    assert torch.vmap(model)(x[None]).shape == (1, 2, 2)
