"""Errors: one family, each also the built-in exception a caller would expect."""

from __future__ import annotations

import pickle

import pytest

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
    assert (error.package, error.extra) == ("dask", "dask")


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
