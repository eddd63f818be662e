"""Errors: one family, each also the built-in exception a caller would expect."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import errors


def test_every_public_error_belongs_to_the_family():
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.NotSoDeepError | errors.NotSoDeepWarning), name


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidInputError, ValueError),
        (errors.ActivationError, ValueError),
        (errors.ContractionError, ValueError),
        (errors.ConvergenceError, RuntimeError),
        (errors.InfeasibleMatchError, ValueError),
        (errors.SerialisationError, ValueError),
        (errors.DataError, ValueError),
        (errors.CheckpointError, ValueError),
        (errors.MissingExtraError, ImportError),
        (errors.ConvergenceWarning, UserWarning),
    ],
)
def test_errors_are_also_the_builtin_a_caller_expects(kind, builtin):
    assert issubclass(kind, builtin)


def test_infeasible_match_carries_its_residual():
    assert errors.InfeasibleMatchError("no", residual=0.25).residual == 0.25
    assert errors.InfeasibleMatchError("no").residual is None


def test_missing_extra_says_what_to_install():
    error = errors.MissingExtraError("dask", "dask")
    assert "pip install 'notsodeep[dask]'" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.ContractionError("too large"),
        errors.InfeasibleMatchError("no", residual=0.25),
        errors.MissingExtraError("onnx", "onnx"),
    ],
)
def test_errors_survive_pickling(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def _unreached_equilibrium():
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.5), in_features=3, width=8, out_features=1)
    model(torch.full((2, 3), torch.nan))


def _low_rank():
    mix = nsd.GaussianMixture(np.eye(2, 200), [np.eye(1, 200)[0] * 60.0 + 1.0] * 2)
    nsd.predict_learning(nsd.DEQ("relu", sigma_a2=0.2), mix, 300, ridge=0.01)


@pytest.mark.parametrize("call", [_unreached_equilibrium, _low_rank])
def test_warnings_name_the_line_of_the_user(call):
    with pytest.warns(errors.NotSoDeepWarning) as record:
        call()
    assert {warning.filename for warning in record} == {__file__}
