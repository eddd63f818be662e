"""Shallow convolutional networks in the place of convolutional DEQs: what is measured, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits

import notsodeep as nsd
from notsodeep.errors import ContractionError, InfeasibleMatchError, InvalidInputError

X = load_digits().data[:40] / 16.0
FRESH = load_digits().data[200:230] / 16.0
SHAPE = (1, 8, 8)


def distance(exact, other):
    return np.linalg.norm(exact - other, 2) / np.linalg.norm(exact, 2)


@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize(("phi", "sigma_a2"), [("relu", 0.2), ("erf", 0.15)])
def test_two_layers_reach_what_is_asked_on_images_that_no_one_has_seen(phi, sigma_a2, kernel):
    deq = nsd.ConvDEQ(phi, sigma_a2, image=SHAPE)
    twin = nsd.match_conv(deq, X, kernel)
    exact, found = (nsd.kernels_of(net, FRESH, kernels=(kernel,))[kernel] for net in (deq, twin.network))
    assert distance(exact, found) < 2e-3  # twice the tolerance that the held-out images met
    assert twin.error < twin.plain
    assert (twin.network.depth, twin.fitted, twin.measured) == (2, 20, 20)


@pytest.mark.parametrize("pool", [2, "global"])
def test_pooled_networks_are_matched_by_pooled_networks(pool):
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 4, 4), pool=pool)
    small, fresh = (rows.reshape(-1, 1, 4, 2, 4, 2).mean((3, 5)) for rows in (X, FRESH))
    twin = nsd.match_conv(deq, small, layers=2)
    assert twin.network.pool == pool
    assert twin.error < twin.plain
    assert distance(nsd.ck(deq, fresh), nsd.ck(twin.network, fresh)) < 2e-3  # twice the tolerance


def test_the_record_says_that_nothing_is_proven():
    twin = nsd.match_conv(nsd.ConvDEQ("relu", 0.2, image=SHAPE), X)
    assert "not proven" in str(twin)
    assert "measured" in str(twin)
    assert pickle.loads(pickle.dumps(twin)) == twin


def test_what_cannot_be_reached_is_refused_with_the_distance():
    deq = nsd.ConvDEQ("relu", 1.0, 0.8, image=SHAPE)
    with pytest.raises(InfeasibleMatchError, match="Take more layers") as caught:
        nsd.match_conv(deq, X, layers=1, check=False)
    assert caught.value.residual > 1e-3  # the default tolerance
    advised = float(str(caught.value).split("tol=")[1])
    accepted = nsd.match_conv(deq, X, layers=1, tol=advised, check=False)
    assert accepted.error == pytest.approx(caught.value.residual, rel=1e-9, abs=0)  # the same computation again
    with pytest.raises(ContractionError):
        nsd.match_conv(deq, X)
    small = nsd.ConvDEQ("relu", 0.2, image=SHAPE)
    with pytest.raises(InvalidInputError, match="16"):
        nsd.match_conv(small, X[:15])
    with pytest.raises(InvalidInputError, match="not images"):
        nsd.match_conv(small, X[:, :63])
    with pytest.raises(InvalidInputError, match="ConvDEQ"):
        nsd.match_conv(small.dense, X)
