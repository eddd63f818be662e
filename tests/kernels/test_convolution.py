"""Convolutional kernels against dense ones, finite networks and unrolled layers."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d, conv2d, conv_transpose2d, unfold

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import ContractionError, InvalidInputError, NotSoDeepWarning, SerialisationError
from notsodeep.kernels.convolution import Window, _linear, announced
from notsodeep.kernels.fields import EntryMaps, field_maps

KERNELS = ("ck", "ntk", "ntk_frozen")
SETTINGS = [("relu", 0.2), ("leaky_relu", 0.2), ("erf", 0.15), ("tanh", 0.2), ("silu", 0.15), ("elu", 0.2)]


def images(n=6, shape=(1, 6, 5), seed=0):
    return np.random.default_rng(seed).standard_normal((n, math.prod(shape))) * 0.5


@pytest.mark.parametrize(("phi", "sigma_a2"), SETTINGS)
@pytest.mark.parametrize("sigma_c2", [0.0, 0.1])
def test_one_position_is_the_dense_network(phi, sigma_a2, sigma_c2):
    X, Y = 0.5 * images(5, (12, 1, 1)), 0.5 * images(3, (12, 1, 1), seed=1)
    conv = nsd.ConvDEQ(phi, sigma_a2, 0.7, sigma_c2, image=(12, 1, 1), filter=1)
    for other in (None, Y):
        found, expected = (nsd.kernels_of(net, X, other, kernels=KERNELS) for net in (conv, conv.dense))
        for kernel in KERNELS:
            np.testing.assert_allclose(found[kernel], expected[kernel], rtol=0, atol=tolerance())


def unrolled(X, sigma_a2, sigma_b2, shape, steps):
    """The kernels of a ReLU network of many layers with injected input, position by position."""

    def window(field):
        return avg_pool2d(field.reshape(-1, 1, *shape[1:]), 3, 1, 1).reshape(field.shape)

    x = torch.from_numpy(X).reshape(len(X), shape[0], -1)
    source = sigma_b2 * window(torch.einsum("icp,jcp->ijp", x, x))
    value, fields = torch.zeros_like(source), []
    for _ in range(steps):
        covariance = source + sigma_a2 * window(value)
        q = covariance.diagonal().T
        size = torch.sqrt(q[:, None] * q[None, :])
        rho = (covariance / size).clamp(-1.0, 1.0)
        angle = math.pi - torch.acos(rho)
        value = size * (torch.sqrt(1.0 - rho * rho) + angle * rho) / (2.0 * math.pi)
        fields.append((covariance, angle / (2.0 * math.pi)))
    ck = ntk = frozen = value.mean(-1)
    above = torch.full_like(value, 1.0 / value.shape[-1])
    for covariance, slope in reversed(fields):
        effect = slope * above
        ntk, frozen = ntk + (effect * covariance).sum(-1), frozen + (effect * (covariance - source)).sum(-1)
        above = sigma_a2 * window(effect)
    return {"ck": ck.numpy(), "ntk": ntk.numpy(), "ntk_frozen": frozen.numpy()}


@pytest.mark.parametrize("sigma_a2", [0.2, 1.0])
def test_many_layers_with_injected_input_are_the_equilibrium(sigma_a2):
    shape = (2, 6, 5)
    X = images(4, shape)
    deq = nsd.ConvDEQ("relu", sigma_a2, 0.8, image=shape)
    found = nsd.kernels_of(deq, X, kernels=KERNELS, check=False)
    expected = unrolled(X, sigma_a2, 0.8, shape, steps=80)
    off = ~np.eye(4, dtype=bool)  # on the diagonal the oracle's angle has half the digits
    for kernel in KERNELS:
        np.testing.assert_allclose(found[kernel][off], expected[kernel][off], rtol=0, atol=tolerance())


def finite(deq, X, m, generator):
    """The three kernels of one random network of m channels, by explicit gradients."""
    (c, h, w), f = deq.image, deq.filter
    sigma_a, sigma_b, _ = (math.sqrt(v) / f for v in deq.dense.variances)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    A, B, readout = sigma_a * normal(m, m, f, f), sigma_b * normal(m, c, f, f), normal(1, m, h, w) / math.sqrt(h * w)
    x = torch.from_numpy(X).reshape(-1, c, h, w)
    drive = conv2d(x, B, padding=f // 2)
    z = torch.zeros_like(drive)
    for _ in range(40):
        before = drive + conv2d(z, A, padding=f // 2)
        z = torch.relu(before) / math.sqrt(m)
    slope = (before > 0) / math.sqrt(m)
    d = slope * readout
    for _ in range(40):
        d = slope * (readout + conv_transpose2d(d, A, padding=f // 2))
    hidden = z.flatten(1) @ z.flatten(1).T / (h * w)

    def gram(scale, inputs):
        rows = scale * torch.einsum("nmp,nkp->nmk", d.flatten(2), unfold(inputs, f, padding=f // 2)).flatten(1)
        return rows @ rows.T

    recurrent = gram(sigma_a, z)
    return hidden, hidden + recurrent + gram(sigma_b, x), hidden + recurrent


def test_networks_of_finite_width_approach_the_kernel():
    deq, generator = nsd.ConvDEQ("relu", 0.2, image=(2, 5, 4)), torch.Generator().manual_seed(0)
    X = images(4, (2, 5, 4))
    exact = nsd.kernels_of(deq, X, kernels=KERNELS)
    errors = {}
    for m in (16, 64):
        draws = [finite(deq, X, m, generator) for _ in range(24)]
        for kernel, sample in zip(KERNELS, zip(*draws, strict=True), strict=True):
            truth = torch.from_numpy(exact[kernel])
            errors[kernel, m] = math.sqrt(np.mean([float((one - truth).square().sum()) for one in sample]))
            mean = torch.linalg.matrix_norm(torch.stack(sample).mean(0) - truth)
            assert mean < tolerance(samples=24 * m) * torch.linalg.matrix_norm(truth)
    for kernel in KERNELS:
        slope = math.log(errors[kernel, 64] / errors[kernel, 16]) / math.log(4)
        assert -0.8 < slope < -0.25, (kernel, slope)  # a half, and the noise of 24 draws


# ---- explicit networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", ["relu", "erf", "tanh"])
def test_one_position_without_injected_input_is_the_dense_explicit_network(phi):
    X, Y = 0.5 * images(5, (12, 1, 1)), 0.5 * images(3, (12, 1, 1), seed=1)
    conv = nsd.ConvENN([phi, "relu", phi], 1.0, (1.0, 0.0, 0.0), image=(12, 1, 1), filter=1)
    for other in (None, Y):
        found, expected = (nsd.kernels_of(net, X, other, kernels=KERNELS) for net in (conv, conv.dense))
        for kernel in KERNELS:
            np.testing.assert_allclose(found[kernel], expected[kernel], rtol=0, atol=tolerance())


def test_many_explicit_layers_with_injected_input_are_the_equilibrium():
    X, Y, shape = images(4, (2, 6, 5)), images(3, (2, 6, 5), seed=1), (2, 6, 5)
    deq = nsd.ConvDEQ("erf", 0.15, 0.8, 0.1, image=shape)
    exact = nsd.kernels_of(deq, X, Y, kernels=KERNELS)
    for depth, least in ((3, True), (16, False)):
        enn = nsd.ConvENN(["erf"] * depth, 0.15, 0.8, 0.1, image=shape)
        found = nsd.kernels_of(enn, X, Y, kernels=KERNELS)
        for kernel in KERNELS:
            error = np.abs(found[kernel] - exact[kernel]).max()
            assert (error > tolerance()) if least else (error < tolerance())


def random_gradients(enn, X, m, generator):
    """The features and the gradients of one random explicit network of m channels, by automatic differentiation."""
    (c, h, w), f = (enn.image[0], *enn.grid), enn.filter

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    hidden, inputs, shifts = [], [], []
    for level in range(enn.depth):
        hidden += [normal(m, m, f, f)] if level else []
        inputs.append(normal(m, c, f, f))
        shifts.append(normal(m))
    readout = normal(m, h, w)
    x, z = torch.from_numpy(X).reshape(-1, *enn.image), None
    for level, (phi, (a, b, s)) in enumerate(zip(enn.activations, enn.variances, strict=True)):
        drive = math.sqrt(b) / f * conv2d(x, inputs[level], stride=enn.stride, padding=f // 2)
        before = drive + math.sqrt(s) * shifts[level][:, None, None]
        if level:
            before = before + math.sqrt(a) / f * conv2d(z, hidden[level - 1], padding=f // 2)
        z = phi(before) / math.sqrt(m)
    outputs = math.sqrt(enn.gain / (h * w)) * (z * readout).sum((1, 2, 3))

    def gram(weights):
        rows = []
        for out in outputs:
            parts = torch.autograd.grad(out, weights, retain_graph=True, allow_unused=True)
            rows.append(torch.cat([part.flatten() for part in parts if part is not None]))
        return torch.stack(rows) @ torch.stack(rows).T

    ck, frozen, whole = gram([readout]), gram([readout, *hidden]), gram([readout, *hidden, *inputs, *shifts])
    return {"ck": ck, "ntk": whole, "ntk_frozen": frozen}


@pytest.mark.parametrize(("image", "stride"), [((1, 4, 3), 1), ((2, 7, 6), 2)])
def test_explicit_networks_of_finite_width_approach_the_kernel(image, stride):
    enn = nsd.ConvENN(["relu", "tanh"], 0.7, (0.8, 0.3), (0.0, 0.1), image=image, stride=stride, gain=1.5)
    X, generator = images(3, image), torch.Generator().manual_seed(0)
    exact = nsd.kernels_of(enn, X, kernels=KERNELS)
    draws = [random_gradients(enn, X, 64, generator) for _ in range(24)]
    for kernel in KERNELS:
        truth = torch.from_numpy(exact[kernel])
        mean = torch.stack([one[kernel] for one in draws]).mean(0)
        assert torch.linalg.matrix_norm(mean - truth) < tolerance(samples=24 * 64) * torch.linalg.matrix_norm(truth)


def test_explicit_specifications_are_values_and_machines_take_them():
    enn = nsd.ConvENN(["relu", "erf"], (3.0, 0.2), (1.0, 0.8), 0.1, image=(1, 8, 8), gain=1.25)
    again = nsd.network_from_dict(enn.to_dict())
    assert again == enn == pickle.loads(pickle.dumps(enn))
    assert hash(again) == hash(enn)
    assert enn.variances == ((0.0, 1.0, 0.1), (0.2, 0.8, 0.1))
    assert "gain=1.25" in repr(enn)
    X = images(12, (1, 8, 8))
    machine = nsd.DEQRegressor(network=enn, ridge=1e-3).fit(X, X[:, 0])
    assert machine.predict(X).shape == (12,)
    K = nsd.DEQKernel(network=enn, kernel="ntk")
    np.testing.assert_allclose(np.diag(K(X)), K.diag(X), rtol=tolerance())
    with pytest.raises(InvalidInputError, match="one per layer"):
        nsd.ConvENN(["relu", "erf"], (1.0, 1.0, 1.0), 1.0, image=(1, 8, 8))
    with pytest.raises(InvalidInputError, match="has one rate for all weights"):
        nsd.ntk(enn, X, learning_rates=(1.0, 1.0, 1.0))


# ---- corners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_semi_iteration_reaches_its_tolerance_in_the_steps_it_says(high, size):
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 7, 6), filter=size)
    weight = torch.rand(42, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * high
    source = torch.ones_like(weight)
    matrix = Window(deq, (7, 6))(torch.eye(42, dtype=torch.float64))
    exact = torch.linalg.solve(torch.eye(42) - matrix * weight.T[:, None, :], source.T).T
    for tol in (1e-3, 1e-12):
        found = _linear(Window(deq, (7, 6)), weight, source, tol)
        error = torch.linalg.vector_norm(found - exact, dim=0) / torch.linalg.vector_norm(exact - source, dim=0)
        assert error.max() < 5.0 * tol  # the norm of the theorem is weighted


@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_window_is_a_mean_with_zeros_outside(size):
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 7, 6), filter=size)
    field = torch.randn(42, 3, dtype=torch.float64)
    expected = avg_pool2d(field.T.reshape(3, 1, 7, 6), size, 1, size // 2).reshape(3, 42).T
    torch.testing.assert_close(Window(deq, (7, 6))(field), expected, rtol=0, atol=tolerance())


def test_long_work_is_announced(monkeypatch):
    seconds = iter(range(0, 10**6, 3))
    monkeypatch.setattr("notsodeep.kernels.convolution.time.perf_counter", lambda: next(seconds))
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    with pytest.warns(NotSoDeepWarning, match="about 5 minutes") as found:
        assert list(announced(deq, range(100), 100, None)) == list(range(100))
    assert len(found) == 1
    for count, progress in ((10, None), (100, False)):  # half a minute; not asked for
        assert len(list(announced(deq, range(count), count, progress))) == count


def test_zero_pixels_duplicates_and_opposite_images():
    X = images(5)
    X[1], X[2], X[3, :18], X[4] = X[0], -X[0], 0.0, 0.0
    K = nsd.ntk(nsd.ConvDEQ("relu", 0.2, image=(1, 6, 5)), X)
    assert np.isfinite(K).all()
    assert np.array_equal(K, K.T)
    assert np.all(K[4] == 0.0)
    np.testing.assert_allclose(K[0, 1], K[0, 0], rtol=tolerance(amplified=1e4))  # the angle has half the digits
    assert np.linalg.eigvalsh(K).min() > -ulps(1e6) * np.trace(K)


@pytest.mark.parametrize("phi", ["softplus", "sigmoid"])
def test_functions_that_are_large_at_zero_lift_black_images_beyond_the_norms_of_the_input(phi):
    K = nsd.ck(nsd.ConvDEQ(phi, 0.1, 0.9, image=(1, 3, 3)), np.array([[0.0] * 9, [1e-9] * 9]))
    window = np.kron(*[np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]]) / 3.0] * 2)
    points, weights = np.polynomial.hermite_e.hermegauss(100)
    value = np.zeros(9)
    for _ in range(40):
        outputs = nsd.activation(phi)(torch.from_numpy(np.sqrt(0.1 * window @ value)[:, None] * points))
        value = outputs.numpy() ** 2 @ weights / math.sqrt(2.0 * math.pi)
    np.testing.assert_allclose(K, value.mean(), rtol=tolerance())


@pytest.mark.parametrize("phi", ["tanh", "elu", "silu", "mish", "arctan", "selu"])
def test_black_and_faint_images_beside_others(phi):
    """Digits are relative to each image: a faint one has its kernel beside others as alone, where tables are fine."""
    X, deq = images(4), nsd.ConvDEQ(phi, 0.08, 0.8, image=(1, 6, 5))
    X[1], X[2] = 0.0, 1e-6 * X[2]
    beside, alone = nsd.kernels_of(deq, X, kernels=KERNELS), nsd.kernels_of(deq, X[2:3], kernels=KERNELS)
    for kernel in KERNELS:
        assert np.isfinite(beside[kernel]).all()
        assert np.all(beside[kernel][1] == 0.0)
        np.testing.assert_allclose(beside[kernel][2, 2], alone[kernel][0, 0], rtol=tolerance(), atol=0)
    entry, table = EntryMaps(deq.dense.activation), field_maps(deq.dense.activation, 2.0)
    qx, qy = (torch.tensor([[1e-12, 1e-6, 1.0]], dtype=torch.float64) * scale for scale in (1.0, 0.3))
    sizes = torch.sqrt(qx[:, :, None] * qy[:, None, :])
    found, expected = (maps.pair(qx, qy)(0.6 * sizes)[0] for maps in (table, entry))
    torch.testing.assert_close(found / sizes, expected / sizes, rtol=0, atol=tolerance())


@pytest.mark.parametrize("pool", [1, "global"])
@pytest.mark.parametrize(("dtype", "sizes"), [(np.float64, (1e-60, 1e-89, 1e-150)), (np.float32, (1e-10, 1e-15))])
def test_faint_images_are_solved_as_far_as_others(dtype, sizes, pool):
    """Squares of their variances are no numbers: 0.9 % of a kernel was left out, and pooled ones were none."""
    deq = nsd.ConvDEQ("tanh", 0.08, 0.8, image=(1, 6, 5), pool=pool)
    X, near = images(4), 1e-6 if dtype == np.float64 else 1e-4
    linear = nsd.kernels_of(deq, near * X, kernels=KERNELS)
    for size in sizes:
        found = nsd.kernels_of(deq, (size * X).astype(dtype), kernels=KERNELS)
        for kernel in KERNELS:
            expected = linear[kernel] / near / near
            room = (tolerance(dtype) + near**2) * expected.max()  # what tanh bends at the nearer size
            np.testing.assert_allclose(found[kernel].astype(np.float64) / size / size, expected, rtol=0, atol=room)


def test_residuals_of_the_size_of_rounding_are_accepted():
    """Large terms of opposite signs make a small covariance: more of its digits than there are must not be asked."""
    phi = nsd.activation("leaky_relu", slope=-0.4)
    deq = nsd.ConvDEQ(phi, 1.6, 0.8, 0.1, image=(2, 5, 12))
    X = np.random.default_rng(4).standard_normal((21, 120)) / 4.0
    X[1, :20], X[2] = 0.0, 0.0
    layers = nsd.ConvENN([phi] * 300, 1.6, 0.8, 0.1, image=deq.image)
    expected = nsd.ck(layers, X[:3], X[3:5])
    found = nsd.ck(deq, X, check=False)[:3, 3:5]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(amplified=10))  # 1 / (1 - 0.93) of the equation


def test_single_precision_and_blocks():
    X, deq = images(70), nsd.ConvDEQ("relu", 0.2, image=(1, 6, 5))
    wide, narrow = (nsd.kernels_of(deq, rows, kernels=KERNELS) for rows in (X, X.astype(np.float32)))
    part = nsd.kernels_of(deq, X[:3], X[60:], kernels=KERNELS)
    for kernel in KERNELS:
        assert narrow[kernel].dtype == np.float32
        np.testing.assert_allclose(
            narrow[kernel], wide[kernel], rtol=0, atol=tolerance(torch.float32) * wide[kernel].max()
        )
        np.testing.assert_allclose(part[kernel], wide[kernel][:3, 60:], rtol=0, atol=tolerance())


@pytest.mark.parametrize(("phi", "top"), [("tanh", 2.0), ("sigmoid", 4.0), ("elu", 1.0), ("selu", 1.4)])
def test_tables_agree_with_layers_entry_by_entry(phi, top):
    table, entry = (maps(nsd.activation(phi), top) for maps in (field_maps, lambda phi, _: EntryMaps(phi)))
    assert not isinstance(table, EntryMaps)
    generator = torch.Generator().manual_seed(0)
    qx, qy = ((top * torch.rand(2, n, generator=generator, dtype=torch.float64)) ** 2 for n in (8, 9))
    share = 2.0 * torch.rand(2, 8, 9, generator=generator, dtype=torch.float64) - 1.0
    share[..., :3] = torch.tensor([1.0 - 1e-6, 1.0, -1.0])
    covariance = share * qx.sqrt()[:, :, None] * qy.sqrt()[:, None, :]
    both = (maps.pair(qx, qy)(covariance) for maps in (table, entry))
    for found, expected in (*zip(*both, strict=True), *zip(table.own(qx), entry.own(qx), strict=True)):
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance())


def test_kernel_machines_take_it():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    machine = nsd.DEQClassifier(network=deq, kernel="ck", ridge=1e-3).fit(X[:60] / 16, y[:60])
    assert machine.score(X[60:100] / 16, y[60:100]) > 0.6  # chance is a tenth


def test_images_are_taken_as_they_are():
    X, deq = images(20, (2, 4, 3)), nsd.ConvDEQ("relu", 0.2, image=(2, 4, 3))
    Z, y = X.reshape(20, 2, 4, 3), np.arange(20) % 2
    assert np.array_equal(nsd.ntk(deq, Z, Z[:3]), nsd.ntk(deq, X, X[:3]))
    assert np.array_equal(nsd.ck(deq, torch.from_numpy(Z)), nsd.ck(deq, X))
    for finite in (nsd.finite_ck, nsd.finite_ntk):
        assert np.array_equal(finite(deq, Z[:2], width=8, Y=Z[2:4]), finite(deq, X[:2], width=8, Y=X[2:4]))
    machines = [nsd.DEQClassifier(network=deq, ridge=1e-2).fit(rows, y).decision_function(rows) for rows in (X, Z)]
    assert np.array_equal(*machines)
    process = nsd.DEQGaussianProcess(network=deq).fit(Z, X[:, 0])
    assert process.predict(Z).shape == (20,)
    K = nsd.DEQKernel(network=deq)
    assert np.array_equal(K(Z), K(X))
    assert np.array_equal(K.diag(Z), K.diag(X))
    model = nsd.nn.ConvDEQ(deq, 4, 2, dtype=torch.float64)
    assert torch.equal(model(torch.from_numpy(Z)), model(torch.from_numpy(X)))
    assert torch.equal(model.solve(torch.from_numpy(Z)).value, model.solve(torch.from_numpy(X)).value)
    nsd.nn.fit(model, (torch.from_numpy(Z), torch.from_numpy(y)), epochs=1, progress=False)
    assert nsd.match_conv(deq, Z, tol=1.0) == nsd.match_conv(deq, X, tol=1.0)
    for other in (Z.transpose(0, 2, 3, 1), Z[:, :, :2], Z[:, 0]):
        with pytest.raises(InvalidInputError, match="channels first"):
            nsd.ck(deq, other)
        with pytest.raises(InvalidInputError, match="channels first"):
            nsd.DEQClassifier(network=deq).fit(other, y)


def test_specifications_are_values():
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    assert nsd.network_from_dict(deq.to_dict()) == deq == pickle.loads(pickle.dumps(deq))
    assert hash(deq) == hash(nsd.network_from_dict(deq.to_dict()))
    assert deq != nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), filter=5)
    assert repr(deq) == "ConvDEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8, image=(1, 8, 8), filter=3)"
    with pytest.raises(AttributeError):
        deq.filter = 5
    with pytest.raises(SerialisationError, match="incomplete"):
        nsd.network_from_dict({"network": "ConvDEQ"})


def test_what_is_no_image_is_refused():
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    with pytest.raises(InvalidInputError, match="rows of 63 numbers are not images"):
        nsd.ck(deq, np.ones((3, 63)))
    with pytest.raises(InvalidInputError, match="odd"):
        nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), filter=4)
    with pytest.raises(InvalidInputError, match="fit into an image"):
        nsd.ConvDEQ("relu", 0.2, image=(1, 2, 8), filter=3)
    with pytest.raises(InvalidInputError, match="channels, height, width"):
        nsd.ConvDEQ("relu", 0.2, image=(8, 8))
    with pytest.raises(ContractionError):
        nsd.ck(nsd.ConvDEQ("relu", 1.0, 0.8, image=(1, 8, 8)), np.ones((1, 64)))
    with pytest.raises(InvalidInputError, match="gradients"):
        nsd.ck(deq, torch.ones(1, 64, requires_grad=True))
    with pytest.raises(InvalidInputError):
        nsd.match_one_layer(deq)
    with pytest.raises(InvalidInputError):
        nsd.coefficients(deq)


def test_high_polynomials_keep_the_digits_of_faint_images():
    """E[phi'^2] differs by thirty orders between the images: no table serves both, which one did to 1e-3."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5, 24)) * np.array([0.2, 0.5, 1.0, 2.0, 3.0])[:, None]
    network = nsd.ConvDEQ(
        nsd.activations.Hermite(tuple(rng.standard_normal(30) / 30)), 0.0, 0.7, image=(2, 4, 3), filter=1
    )
    K = nsd.ck(network, X)
    for i in range(5):
        np.testing.assert_allclose(nsd.ck(network, X, X[i : i + 1])[i], K[i, i], rtol=tolerance())
