"""Network specifications: values that compare, print, pickle and round-trip; the self-consistent scale tau*."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Affine, HardTanh, Hermite, ReLU, Tanh
from notsodeep.errors import (
    ActivationError,
    ContractionError,
    ConvergenceError,
    InvalidInputError,
    SerialisationError,
)

BUILT_IN = [n for n in nsd.activations.activation_names() if n != "affine"]
LIPSCHITZ = [n for n in BUILT_IN if math.isfinite(nsd.activation(n).lipschitz)]
NETWORKS = [
    nsd.DEQ("relu", 0.2),
    nsd.DEQ(nsd.activation("leaky_relu", slope=0.1), 0.1, 0.7),
    nsd.DEQ("silu", 0.2).centred(tau0=1.3),
    nsd.DEQ(Hermite((0.1, 0.5, 0.2, 1 / 3), 1.7), 0.0),
    nsd.DEQ(Affine(Affine(Tanh(), gain=2.0), scale=0.3, shift=1.0), 0.05),
    nsd.ENN(["tanh"]),
    nsd.ENN(["relu", nsd.activation("hard_tanh", a=0.7, c=1.2)]).centred(tau0=0.9),
    nsd.ENN([HardTanh(1 / 3, 0.5).affine(shift=0.2), Hermite((0.0, 1.0, 0.5))]),
]
networks = pytest.mark.parametrize("network", NETWORKS, ids=repr)


@networks
def test_round_trips(network):
    document = json.loads(json.dumps(network.to_dict()))
    for back in (
        nsd.network_from_dict(document),
        nsd.network_from_dict(json.dumps(document)),
        type(network).from_dict(document),
        pickle.loads(pickle.dumps(network)),
        copy.deepcopy(network),
        copy.copy(network),
    ):
        assert back == network
        assert hash(back) == hash(network)
        assert repr(back) == repr(network)


@networks
def test_frozen(network):
    name = next(iter(vars(network)))
    with pytest.raises(AttributeError, match="cannot assign"):
        setattr(network, name, None)
    with pytest.raises(AttributeError, match="cannot delete"):
        delattr(network, name)
    with pytest.raises(AttributeError):
        network.something_new = 1


def test_equality_is_by_value():
    assert nsd.DEQ("relu", 0.2) == nsd.DEQ(ReLU(), 0.2, 0.8)
    assert nsd.DEQ("relu", 0.2) != nsd.DEQ("relu", 0.1)
    assert nsd.DEQ("relu", 0.2) != nsd.DEQ("tanh", 0.2)
    assert nsd.ENN(["relu"]) == nsd.ENN("relu")
    assert nsd.ENN(["relu"]) != nsd.ENN(["relu", "relu"])
    assert nsd.ENN(["relu"]) != nsd.DEQ("relu", 0.2)
    assert len({nsd.DEQ("relu", 0.2), nsd.DEQ("relu", 0.2, 0.8), nsd.ENN("relu")}) == 2


def test_they_print_themselves():
    assert repr(nsd.DEQ("relu", 0.2)) == "DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.8)"
    assert repr(nsd.ENN(["tanh", "silu"])) == "ENN([Tanh(), SiLU()])"
    assert repr(nsd.DEQ(ReLU().affine(shift=-0.25), 0.1)).startswith("DEQ(Affine(ReLU(), shift=-0.25), ")


def test_reference_scales_of_the_theory():
    # theory, section 9 (tau0 = 1, sigma_a2 = 0.2)
    for name, tau_star, bias in [
        ("tanh", 0.9348716109, 0.0),
        ("relu", 0.9265661260, 0.3696464033),
        ("silu", 0.9233213316, 0.1802280653),
    ]:
        deq = nsd.DEQ(name, 0.2)
        tau = deq.centred_scale(1.0)
        assert round(tau, 10) == tau_star
        assert round(nsd.gaussian.moments(name, tau).mean, 10) == bias


def picard(deq, tau0):
    """tau* by plain iteration, which contracts with rate sqrt(sigma_a2) Lip < 1/2."""
    sigma_a2, sigma_b2, _ = deq.variances
    tau = math.sqrt(sigma_b2) * tau0
    for _ in range(55):
        tau = math.sqrt(sigma_a2 * nsd.gaussian.moments(deq.activation, tau).variance + sigma_b2 * tau0**2)
    return tau


@given(name=st.sampled_from(LIPSCHITZ), fraction=st.floats(0.001, 0.999), tau0=st.floats(0.05, 20.0))
def test_centred_scale_is_the_fixed_point(name, fraction, tau0):
    limit = nsd.DEQ(name, 0.0).limit
    deq = nsd.DEQ(name, max(0.001, fraction * min(limit, 0.99)))
    tau = deq.centred_scale(tau0)
    assert tau == pytest.approx(picard(deq, tau0), rel=ulps(512), abs=0)
    centred = deq.centred(tau0)
    m = nsd.gaussian.moments(centred.activation, tau)
    assert abs(m.mean) <= ulps() * (1.0 + math.sqrt(nsd.gaussian.moments(name, tau).square))
    # the centred network has the same scale and centring again changes nothing
    assert centred.centred_scale(tau0) == pytest.approx(tau, rel=1e-14)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("tau0", [0.05, 1.0, 20.0])
def test_every_built_in_activation_can_be_centred_or_says_why_not(name, tau0):
    deq = nsd.DEQ(name, 0.001)
    try:
        tau = deq.centred_scale(tau0)
    except ConvergenceError:
        assert name == "quadratic"  # tau^2 = 2 s tau^4 + (1 - s) tau0^2 has no root at tau0 = 20
        assert tau0 == 20.0
        return
    residual = 0.001 * nsd.gaussian.moments(name, tau).variance + 0.999 * tau0**2 - tau**2
    assert abs(residual) <= tolerance() * tau**2


def test_a_jumping_activation_can_be_centred_too():
    sign = nsd.Activation.from_callable(lambda x: torch.sign(x - 1.0), kinks=(1.0,))
    for sigma_a2 in (0.0, 0.1):
        deq = nsd.DEQ(sign, sigma_a2)
        assert deq.centred_scale(1.0) == pytest.approx(picard(deq, 1.0), rel=ulps(), abs=0)


def test_enn_centring_layer_by_layer():
    enn = nsd.ENN(["relu", "silu", "tanh"]).centred(tau0=1.7)
    tau = 1.7
    for phi in enn.activations:
        m = nsd.gaussian.moments(phi, tau)
        assert abs(m.mean) < ulps()
        tau = math.sqrt(m.variance)
    assert enn.centred(tau0=1.7).activations[2] == Tanh()


def test_limit_and_contraction():
    assert nsd.DEQ("relu", 0.2).limit == 0.25
    assert nsd.DEQ(ReLU().affine(gain=2.0), 0.01).limit == 0.0625
    assert math.isinf(nsd.DEQ(nsd.activation("linear", slope=0.0), 0.2).limit)
    nsd.DEQ("relu", 0.249).check_contraction()
    nsd.DEQ("quadratic", 0.0).check_contraction()  # no recurrence: nothing to contract
    with pytest.raises(ContractionError, match=r"must be below 1/\(4 Lip\^2\) = 0\.25 .*check=False"):
        nsd.DEQ("relu", 0.25).check_contraction()
    with pytest.raises(ContractionError, match="Lip = inf"):
        nsd.DEQ("quadratic", 0.01).check_contraction()


def test_variances_that_require_gradients_survive():
    sigma_a2 = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    deq = nsd.DEQ("relu", sigma_a2)
    assert deq.sigma_a2 is sigma_a2
    assert deq.sigma_b2.requires_grad
    (gradient,) = torch.autograd.grad(deq.sigma_b2, sigma_a2)
    assert float(gradient) == -1.0
    assert deq.centred(1.0).sigma_a2 is sigma_a2
    assert deq == nsd.DEQ("relu", 0.2)
    assert hash(deq) == hash(nsd.DEQ("relu", 0.2))
    assert repr(deq) == repr(nsd.DEQ("relu", 0.2))
    assert deq.to_dict() == nsd.DEQ("relu", 0.2).to_dict()
    assert deq.variances == (0.2, 0.8, 0.0)
    assert deq.limit == 0.25
    assert pickle.loads(pickle.dumps(deq)) == deq


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_have_variances_of_their_own(again):
    leaf = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    x = torch.eye(3, dtype=torch.float64)
    deq = nsd.DEQ("relu", leaf)
    (expected,) = torch.autograd.grad(nsd.ck(deq, x).sum(), leaf)
    with torch.no_grad():
        copied, same = again((deq, leaf))
    assert copied == nsd.DEQ("relu", 0.2)
    assert copied.sigma_a2 is same  # as in a module that holds both
    assert copied.sigma_a2 is not leaf
    (found,) = torch.autograd.grad(nsd.ck(copied, x).sum(), same)  # sigma_b2 is still 1 - sigma_a2
    assert found == expected
    assert again(nsd.DEQ("relu", 0.2, leaf)).sigma_b2.is_leaf
    with torch.no_grad():
        unfollowed = nsd.DEQ("relu", leaf)
    assert type(again(unfollowed).sigma_b2) is float


def test_variances_computed_from_others_are_not_copied():
    raw = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    deq = nsd.DEQ("relu", 0.2, raw.exp())
    for held in (deq, nsd.DEQRegressor(network=deq), nsd.DEQFeatures(network=deq), nsd.DEQKernel(network=deq)):
        with pytest.raises(InvalidInputError, match=r"sigma_b2 of DEQ.* is computed from other tensors"):
            clone(held, safe=False)
    assert copy.deepcopy(deq.detached()) == deq
    for estimator in (nsd.DEQClassifier, nsd.DEQGaussianProcess, nsd.DEQFeatures):
        with pytest.raises(InvalidInputError, match="sigma_a2 is a tensor computed from others"):
            clone(estimator(sigma_a2=raw.exp()))
        assert clone(estimator(sigma_a2=raw)).sigma_a2 == raw


def test_variances_without_gradients_become_numbers():
    deq = nsd.DEQ("relu", torch.tensor(0.25, dtype=torch.float64), np.float32(0.5))
    assert (type(deq.sigma_a2), type(deq.sigma_b2)) == (float, float)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nsd.DEQ("relu", -0.1), InvalidInputError, "sigma_a2 must be a finite number and not negative"),
        (lambda: nsd.DEQ("relu", math.nan), InvalidInputError, "sigma_a2"),
        (lambda: nsd.DEQ("relu", "0.2"), InvalidInputError, "must be a finite number"),
        (lambda: nsd.DEQ("relu", None), InvalidInputError, "must be a finite number"),
        (lambda: nsd.activation("elu", alpha=1e300), ActivationError, "at most 1e.100"),
        (lambda: nsd.DEQ("relu", torch.ones(2)), InvalidInputError, "finite number"),
        (lambda: nsd.DEQ("relu", 1.5), InvalidInputError, "give sigma_b2"),
        (lambda: nsd.DEQ("rely", 0.2), ActivationError, "did you mean 'relu'"),
        (lambda: nsd.DEQ(np.tanh, 0.2), ActivationError, "torch functions"),
        (lambda: nsd.ENN([]), InvalidInputError, "at least one layer"),
        (lambda: nsd.ENN(np.tanh), ActivationError, "torch functions"),
        (lambda: nsd.ENN(["relu", 3]), ActivationError, "a torch module"),
        (lambda: nsd.DEQ("relu", 0.2).centred(tau0=0.0), InvalidInputError, "tau0 must be a number"),
        (lambda: nsd.DEQ("relu", 0.2).centred(tau0="1"), InvalidInputError, "tau0 must be a number"),
        (lambda: nsd.ENN("relu").centred(tau0=-1.0), InvalidInputError, "tau0 must be a number"),
        (lambda: nsd.DEQ("linear", 1.0, 1.0).centred_scale(), ConvergenceError, "has no solution.*lower it"),
        (lambda: nsd.DEQ("linear", 1.5, 1.0).centred_scale(), ConvergenceError, "has no solution.*lower it"),
    ],
)
def test_bad_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


RELU = {"activation": "relu"}


@pytest.mark.parametrize(
    "document",
    [
        "not json",
        "[1, 2]",
        [],
        None,
        {},
        {"network": "CNN"},
        {"network": "DEQ"},
        {"network": "DEQ", "activation": RELU, "sigma_a2": 0.2},
        {"network": "DEQ", "activation": RELU, "sigma_a2": -0.2, "sigma_b2": 0.8},
        {"network": "DEQ", "activation": RELU, "sigma_a2": "0.2", "sigma_b2": 0.8},
        {"network": "DEQ", "activation": RELU, "sigma_a2": None, "sigma_b2": 0.8},
        '{"network": "DEQ", "activation": {"activation": "relu"}, "sigma_a2": NaN, "sigma_b2": 0.8}',
        {"network": "DEQ", "activation": "relu", "sigma_a2": 0.2, "sigma_b2": 0.8},
        {"network": "ENN"},
        {"network": "ENN", "activations": []},
        {"network": "ENN", "activations": None},
        {"network": "ENN", "activations": "relu"},
        {"network": "ENN", "activations": [{"activation": "relux"}]},
    ],
)
def test_wrong_documents_are_refused(document):
    with pytest.raises(SerialisationError):
        nsd.network_from_dict(document)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_deep_document_is_refused(as_text):
    document: dict = {}
    for _ in range(50 if as_text else 5000):
        document = {"network": document}
    with pytest.raises(SerialisationError, match="levels deep"):
        nsd.network_from_dict(json.dumps(document) if as_text else document)
    with pytest.raises(SerialisationError, match="not the JSON document"):
        nsd.network_from_dict("[" * 100_000)


def test_a_document_of_the_other_kind_is_refused():
    with pytest.raises(SerialisationError, match="expected the description of a DEQ"):
        nsd.DEQ.from_dict(nsd.ENN("relu").to_dict())
    with pytest.raises(SerialisationError, match="expected the description of a ENN"):
        nsd.ENN.from_dict(nsd.DEQ("relu", 0.2).to_dict())
