"""An estimator with a client is the estimator without one."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from sklearn.base import clone

import notsodeep as nsd
from clusters import EQUAL
from notsodeep.errors import InvalidInputError
from notsodeep.estimators import machine
from notsodeep.solve import CG


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(220, 10)) / 10**0.5
    return X, np.where(X[:, 0] > 0, "right", np.where(X[:, 1] > 0, "up", "down")), rng.normal(size=(40, 10)) / 10**0.5


@pytest.fixture(autouse=True)
def predictions_travel(monkeypatch):
    monkeypatch.setattr(machine, "SOLVE_LIMITS", dataclasses.replace(machine.SOLVE_LIMITS, entries=1))


@pytest.mark.parametrize("options", [{"solver": CG(tol=1e-12, rank=80), "ridge": 0.1}, {"ridge": "loo"}])
def test_classifiers_agree(client, data, options):
    X, y, new = data
    here = nsd.DEQClassifier("relu", **options).fit(X, y)
    there = clone(nsd.DEQClassifier("relu", client=client, **options)).fit(X, y)
    assert there.client is client
    assert (there.ridge_, there.absolute_ridge_) == (here.ridge_, pytest.approx(here.absolute_ridge_, rel=EQUAL))
    assert np.allclose(there.decision_function(new), here.decision_function(new), rtol=0, atol=EQUAL)
    assert np.allclose(there.predict_proba(new), here.predict_proba(new), rtol=0, atol=1e-7)  # a temperature is fitted
    apart = pickle.loads(pickle.dumps(there))
    assert apart.client is None
    assert np.allclose(apart.decision_function(new), there.decision_function(new), rtol=0, atol=EQUAL)


def test_convolutional_kernels_are_computed_by_workers(client):
    X = np.random.default_rng(3).normal(size=(40, 1, 4, 4)) / 4.0
    y, network = (X[:, 0, 0, 0] > 0).astype(int), nsd.ConvDEQ("relu", 0.2, image=(1, 4, 4), pool=2)
    here, there = (nsd.DEQClassifier(network=network, ridge=0.1, client=each).fit(X, y) for each in (None, client))
    assert np.allclose(there.decision_function(X[:9]), here.decision_function(X[:9]), rtol=0, atol=EQUAL)


@pytest.mark.slow
def test_weighted_regression_and_processes_agree(client, data):
    X, _, new = data
    y, w = np.sin(3 * X[:, :2]), np.linspace(0.0, 2.0, len(X))
    options = {"kernel": "ck", "ridge": 0.1, "solver": CG(tol=1e-12, rank=80)}
    here, there = (nsd.DEQRegressor("relu", client=c, **options).fit(X, y, w).predict(new) for c in (None, client))
    assert np.allclose(there, here, rtol=0, atol=EQUAL)
    one, other = (
        nsd.DEQGaussianProcess("relu", optimise=(), client=c).fit(X, y[:, 0]).predict(new, return_std=True)
        for c in (None, client)
    )
    assert np.allclose(one, other, rtol=0, atol=EQUAL)


def test_what_a_cluster_does_not_do_is_refused(client, data):
    X, y, _ = data
    with pytest.raises(InvalidInputError, match=r"on their CPUs|can use here"):
        nsd.DEQClassifier(device="cuda", client=client).fit(X, y)
    with pytest.raises(InvalidInputError, match=r"dask\.distributed\.Client"):
        nsd.DEQClassifier(solver=CG(), ridge=0.1, client="tcp://host:8786").fit(X, y)
