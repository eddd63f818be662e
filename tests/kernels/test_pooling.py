"""Averages before the readout of convolutional networks, and strides: all pairs of positions, finite networks."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import sampled, tolerance, ulps
from notsodeep._maps import Averages
from notsodeep.errors import InvalidInputError, SerialisationError
from notsodeep.kernels.convolution import Images, _jobs
from notsodeep.kernels.expectations import Layer

KERNELS = ("ck", "ntk", "ntk_frozen")


def images(n=3, shape=(1, 5, 5), seed=0):
    return np.random.default_rng(seed).standard_normal((n, math.prod(shape))) * 0.5


# ---- all pairs of positions ----------------------------------------------------------------------------------


def relu(qx, qy, lam):
    sizes = torch.sqrt(qx * qy)
    rho = (lam / sizes).clamp(-1.0, 1.0)
    angle = math.pi - torch.acos(rho)
    return sizes * (torch.sqrt(1.0 - rho * rho) + angle * rho) / (2.0 * math.pi), angle / (2.0 * math.pi)


def erf(qx, qy, lam):
    room = (1.0 + 2.0 * qx) * (1.0 + 2.0 * qy)
    return 2.0 / math.pi * torch.asin(2.0 * lam / room.sqrt()), 4.0 / math.pi / torch.sqrt(room - 4.0 * lam**2)


def tanh(qx, qy, lam):
    """Gauss-Hermite in two dimensions, 70 nodes each: standard deviations are below one."""
    x, weights = (torch.from_numpy(v) for v in np.polynomial.hermite_e.hermegauss(70))
    weights = weights / weights.sum()
    rest = torch.sqrt((qy - lam**2 / qx).clamp_min(0.0))
    value, slope = torch.zeros_like(lam), torch.zeros_like(lam)
    for node, weight in zip(x, weights, strict=True):
        u = torch.tanh(qx.sqrt() * node)
        v = torch.tanh((lam / qx.sqrt() * node)[..., None] + rest[..., None] * x)
        value += weight * u * (v @ weights)
        slope += weight * (1.0 - u**2) * ((1.0 - v**2) @ weights)
    return value, slope


def directly(network, layers, X):
    """The kernels of a network of these layers, from covariances of all pairs of positions (n, n, h, w, h, w)."""
    n, reach, s = len(X), network.filter // 2, network.stride
    x = torch.from_numpy(X).reshape(n, *network.image)

    def window(field):
        h, w = field.shape[2:4]
        wide = torch.nn.functional.pad(field, (reach, reach) * 4)
        parts = (
            wide[:, :, a : a + h, b : b + w, a : a + h, b : b + w]
            for a, b in itertools.product(range(2 * reach + 1), repeat=2)
        )
        return sum(parts) / network.filter**2

    inner = window(torch.einsum("icab,jcde->ijabde", x, x))[:, :, ::s, ::s, ::s, ::s]
    h, w = inner.shape[2:4]
    value, fields = torch.zeros_like(inner), []
    for layer, (a, b, bias) in layers:
        source = b * inner + bias
        covariance = source + a * window(value)
        flat = covariance.reshape(n, n, h * w, h * w)
        q = torch.stack([flat[i, i].diagonal() for i in range(n)])
        value, slope = (
            part.reshape(inner.shape)
            for part in layer(q[:, None, :, None].expand_as(flat), q[None, :, None].expand_as(flat), flat)
        )
        fields.append((covariance, source, slope, a))
    above = boxes(network).reshape(h, w, h, w).expand_as(inner) * network.gain
    ck = ntk = frozen = (value * above).sum((2, 3, 4, 5))
    for covariance, source, slope, a in reversed(fields):
        effect = slope * above
        ntk = ntk + (effect * covariance).sum((2, 3, 4, 5))
        frozen = frozen + (effect * (covariance - source)).sum((2, 3, 4, 5))
        above = a * window(effect)
    return {"ck": ck.numpy(), "ntk": ntk.numpy(), "ntk_frozen": frozen.numpy()}


def boxes(network):
    """The Gram matrix of the averages as vectors over the positions, each written out."""
    (_, *sides), c = network.image, network.pool
    h, w = (len(range(0, side, network.stride)) for side in sides)
    if c == "global":
        return torch.full((h * w, h * w), (h * w) ** -2.0, dtype=torch.float64)
    rows = torch.zeros(h + c - 1, w + c - 1, h, w, dtype=torch.float64)
    for i, j in itertools.product(range(h + c - 1), range(w + c - 1)):
        rows[i, j, max(0, i - c + 1) : i + 1, max(0, j - c + 1) : j + 1] = c**-2.0
    rows = rows.reshape(-1, h * w)
    return rows.T @ rows / (h * w)


def single(phi):
    """A layer entry by entry, which has an oracle of its own."""

    def layer(qx, qy, lam):
        sizes = (qx * qy).sqrt()
        found = Layer(phi, qx.flatten(), qy.flatten()).both(torch.clamp(lam, -sizes, sizes).flatten())
        return [part.reshape(lam.shape) for part in found]

    return layer


@pytest.mark.parametrize("phi", ["hard_tanh", "elu", "silu", "gelu"])
def test_shifts_of_other_activations(phi):
    X, deq = images(2, (2, 3, 4)), nsd.ConvDEQ(phi, 0.1, 0.8, 0.1, image=(2, 3, 4), pool=2)
    found = nsd.kernels_of(deq, X, kernels=KERNELS)
    expected = directly(deq, [(single(deq.activations[0]), deq.dense.variances)] * 20, X)
    for kernel in KERNELS:
        np.testing.assert_allclose(found[kernel], expected[kernel], rtol=0, atol=tolerance())


@pytest.mark.parametrize(
    ("phi", "layer", "image", "filter", "pool", "stride"),
    [
        ("relu", relu, (1, 5, 5), 3, 3, 1),
        ("relu", relu, (2, 5, 6), 5, 4, 1),
        ("erf", erf, (3, 5, 5), 1, 5, 1),
        ("erf", erf, (1, 4, 5), 3, "global", 1),
        ("tanh", tanh, (1, 4, 5), 3, 2, 1),
        ("relu", relu, (2, 7, 6), 3, 3, 2),
        ("erf", erf, (1, 8, 7), 5, 2, 3),
        ("relu", relu, (1, 6, 9), 3, "global", 3),
        ("erf", erf, (2, 6, 5), 3, 1, 2),
    ],
)
def test_shifts_are_all_pairs_of_positions(phi, layer, image, filter, pool, stride):
    X = images(2 if phi == "tanh" else 3, image) / math.sqrt(image[0])
    deq = nsd.ConvDEQ(phi, 0.1, 0.8, 0.1, image=image, filter=filter, pool=pool, stride=stride)
    found = nsd.kernels_of(deq, X, kernels=KERNELS)
    again = nsd.kernels_of(deq, X[:1], X, kernels=KERNELS)
    expected = directly(deq, [(layer, deq.dense.variances)] * (14 if phi == "tanh" else 20), X)
    # where an image meets itself, p with p, the angle of the oracle has half the digits
    oracle = 1e4 if phi == "relu" else 1.0
    for kernel in KERNELS:
        # the angle of the oracle, see above
        np.testing.assert_allclose(found[kernel], expected[kernel], rtol=0, atol=tolerance(amplified=oracle))
        off = ~np.eye(len(X), dtype=bool)
        # of the twenty steps of the oracle each leaves a few units in the last place
        np.testing.assert_allclose(found[kernel][off], expected[kernel][off], rtol=0, atol=tolerance(amplified=10))
        np.testing.assert_allclose(again[kernel][0, 1:], found[kernel][0, 1:], rtol=0, atol=tolerance())
        assert np.array_equal(found[kernel], found[kernel].T)


@pytest.mark.parametrize(("pool", "stride"), [(2, 1), ("global", 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("injected", [0.3, 0.0])
def test_shifts_of_explicit_networks_are_all_pairs_of_positions(pool, stride, injected):
    X, sizes = images(3, (2, 4, 5)), {"image": (2, 4, 5), "pool": pool, "stride": stride}
    enn = nsd.ConvENN(["relu", "erf"], 0.7, (0.8, injected), (0.0, 0.1), **sizes, gain=1.5)
    found, expected = (
        nsd.kernels_of(enn, X, kernels=KERNELS),
        directly(enn, list(zip((relu, erf), enn.variances, strict=True)), X),
    )
    for kernel in KERNELS:
        off = ~np.eye(3, dtype=bool)
        np.testing.assert_allclose(found[kernel][off], expected[kernel][off], rtol=0, atol=tolerance())
        # where an image meets itself the angle of the oracle has half the digits
        np.testing.assert_allclose(found[kernel], expected[kernel], rtol=0, atol=tolerance(amplified=1e4))


def test_blocks_single_precision_black_and_faint_images():
    X, deq = images(90, (1, 6, 5)), nsd.ConvDEQ("tanh", 0.2, image=(1, 6, 5), pool=2)
    X[1], X[2] = 0.0, 1e-5 * X[2]
    wide, narrow = (nsd.ntk(deq, rows) for rows in (X, X.astype(np.float32)))  # more than a block
    assert np.array_equal(wide, wide.T)
    assert np.all(wide[1] == 0.0)
    np.testing.assert_allclose(wide[80:, :3], nsd.ntk(deq, X[80:], X[:3]), rtol=0, atol=tolerance())
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=tolerance(torch.float32) * wide.max())
    np.testing.assert_allclose(wide[2, 2], nsd.ntk(deq, X[2:3])[0, 0], rtol=tolerance(), atol=0)
    K = nsd.DEQKernel(network=deq, kernel="ntk")
    np.testing.assert_allclose(K.diag(X[:5]), np.diag(wide)[:5], rtol=tolerance(), atol=0)


# ---- averages and finite networks ----------------------------------------------------------------------------


@pytest.mark.parametrize("box", [1, 2, 3, "global"])
def test_averages_are_those_of_boxes_with_zeros_outside(box):
    averages, network = Averages((4, 5), box), nsd.ConvDEQ("relu", 0.2, image=(1, 4, 5), pool=box)
    z = torch.randn(3, 2 * 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = averages.forward(z)
    assert seen.shape == (3, 2 * averages.count)
    gram = torch.einsum("icp,jcq,pq->ij", z.reshape(3, 2, 20), z.reshape(3, 2, 20), boxes(network))
    torch.testing.assert_close(seen @ seen.T, gram, rtol=0, atol=ulps(1024))
    h = torch.randn(seen.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close((averages.back(h) * z).sum(), (seen * h).sum(), rtol=0, atol=ulps(1024))
    if box == 3:  # what torch calls average pooling, with room for all boxes
        wide = torch.nn.functional.pad(z.reshape(3, 2, 4, 5), (2, 2, 2, 2))
        pooled = torch.nn.functional.avg_pool2d(wide, 3, 1).flatten(1) / math.sqrt(20)
        torch.testing.assert_close(seen, pooled, rtol=0, atol=ulps())


@pytest.mark.parametrize(("image", "pool", "stride"), [((1, 4, 3), 2, 1), ((1, 4, 3), "global", 1), ((2, 5, 6), 2, 2)])
def test_networks_of_finite_width_approach_the_kernel(image, pool, stride):
    deq = nsd.ConvDEQ("relu", 0.2, 0.8, 0.1, image=image, pool=pool, stride=stride)
    X = images(3, image)
    exact = nsd.kernels_of(deq, X, kernels=KERNELS)
    for kernel in KERNELS:
        finite, options = (nsd.finite_ck, {}) if kernel == "ck" else (nsd.finite_ntk, {"kernel": kernel})
        mean, deviation = sampled(finite, deq, X, 32, width=64, **options)
        bias = 2.0 / 64 * np.abs(exact[kernel]).max()  # of the order of one over the width
        assert np.all(np.abs(mean - exact[kernel]) < 5.0 * deviation + bias), kernel


# ---- values --------------------------------------------------------------------------------------------------


def test_the_box_is_part_of_the_value():
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), pool=3)
    assert repr(deq) == "ConvDEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8, image=(1, 8, 8), filter=3, pool=3)"
    enn = nsd.ConvENN("relu", 0.0, 1.0, image=(1, 8, 8), pool="global", gain=2.0)
    assert "pool='global', gain=2" in repr(enn)
    for network in (deq, enn):
        assert nsd.network_from_dict(network.to_dict()) == network == pickle.loads(pickle.dumps(network))
    assert deq != nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    with pytest.raises(InvalidInputError, match="one layer"):
        nsd.ConvDEQ(["tanh", "relu"], 0.01, image=(1, 8, 8))
    plain = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8))
    old = {key: value for key, value in plain.to_dict().items() if key not in ("pool", "stride")}
    assert nsd.network_from_dict(old) == plain == nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), pool=1)
    strided = nsd.ConvENN("relu", 0.0, 1.0, image=(1, 7, 8), pool=2, stride=3)
    assert strided.grid == (3, 3)
    assert "pool=2, stride=3" in repr(strided)
    assert nsd.network_from_dict(strided.to_dict()) == strided == pickle.loads(pickle.dumps(strided))
    for wrong in (0, 4, 1.5, None):
        with pytest.raises(InvalidInputError, match="stride"):
            nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), stride=wrong)
    with pytest.raises(InvalidInputError, match="fits into 3 x 3 positions"):
        nsd.ConvDEQ("relu", 0.2, image=(1, 7, 8), pool=4, stride=3)
    for wrong in (0, 9, -1, 2.5, "Global", None, True):
        with pytest.raises(InvalidInputError, match="pool"):
            nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), pool=wrong)
        with pytest.raises(SerialisationError):
            nsd.network_from_dict({**deq.to_dict(), "pool": wrong})


def test_opposite_shifts_of_images_with_themselves_are_one():
    (left,) = Images.of(nsd.ConvDEQ("relu", 0.2, image=(1, 5, 5), pool=2), torch.from_numpy(images()))
    for symmetric, expected in ((True, 5), (False, 9)):
        count, jobs = _jobs(left, left, symmetric)
        assert count == len(list(jobs)) == expected
