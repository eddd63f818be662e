"""``notsodeep fit`` and ``notsodeep predict``: tables with names and words in, predictions out, nothing pickled."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import notsodeep as nsd
from helpers import tolerance
from notsodeep.cli import app
from notsodeep.errors import CheckpointError, InvalidInputError
from notsodeep.estimators import load_estimator, save_estimator
from notsodeep.estimators.storage import load_with_extra


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def iris(tmp_path):
    X, codes = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)[:90]
    X, y = X[order], np.array(["setosa", "versicolor", "virginica"])[codes[order]]
    with open(tmp_path / "train.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "species", "c", "d"])
        writer.writerows([[*x[:2], label, *x[2:]] for x, label in zip(X[:60], y[:60], strict=True)])
    with open(tmp_path / "new.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["d", "c", "b", "a"])  # another order: columns are found by name
        writer.writerows(X[60:, ::-1].tolist())
    return tmp_path, X, y


def test_a_table_with_names_and_words(iris):
    folder, X, y = iris
    done = run("fit", folder / "train.csv", "--target", "species", "-o", folder / "m.safetensors", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"] == 60
    assert told["leave-one-out accuracy"] > 0.8
    out = run("predict", folder / "m.safetensors", folder / "new.csv")
    lines = out.stdout.splitlines()
    assert lines[0] == "species"
    assert np.mean(np.array(lines[1:]) == y[60:]) > 0.8
    fitted = nsd.Standardiser().fit(X[:60])
    model = nsd.DEQClassifier("relu", ridge="loo").fit(fitted.transform(X[:60]), y[:60])
    assert lines[1:] == model.predict(fitted.transform(X[60:])).tolist()
    run("predict", folder / "m.safetensors", folder / "new.csv", "--proba", "-o", folder / "p.csv")
    rows = list(csv.reader((folder / "p.csv").read_text().splitlines()))
    assert rows[0] == ["p(setosa)", "p(versicolor)", "p(virginica)"]
    np.testing.assert_allclose(
        np.array(rows[1:], dtype=float), model.predict_proba(fitted.transform(X[60:])), rtol=0, atol=tolerance()
    )


def test_arrays_and_numbers(iris):
    folder, X, _ = iris
    np.save(folder / "X.npy", X[:, :3])
    np.save(folder / "y.npy", X[:, 3])
    options = ("--labels", folder / "y.npy", "--kernel", "ck", "--ridge", "1e-3", "-o", folder / "r.safetensors")
    done = run("fit", folder / "X.npy", "leaky_relu:slope=0.1", *options)
    assert done.exit_code == 0, done.output
    assert "leave-one-out R2" in done.stdout
    assert run("predict", folder / "r.safetensors", folder / "X.npy", "-o", folder / "p.npy").exit_code == 0
    fitted = nsd.Standardiser().fit(X[:, :3])
    rows = fitted.transform(X[:, :3])
    model = nsd.DEQRegressor(nsd.activation("leaky_relu", slope=0.1), kernel="ck", ridge=1e-3).fit(rows, X[:, 3])
    np.testing.assert_allclose(np.load(folder / "p.npy"), model.predict(rows), rtol=0, atol=tolerance())
    refused = run("predict", folder / "r.safetensors", folder / "X.npy", "--proba")
    assert refused.exit_code == 2
    assert "no probabilities" in refused.output


@pytest.mark.parametrize("method", ["kernel", "equivalent", "features"])
def test_every_method_is_fitted_saved_and_predicts(iris, method):
    folder, X, y = iris
    options = ("--target", "species", "--method", method, "--ridge", "1", "--width", "64", "--kernel", "ck")
    done = run("fit", folder / "train.csv", "tanh", *options, "-o", folder / "m.safetensors")
    assert done.exit_code == 0, done.output
    out = run("predict", folder / "m.safetensors", folder / "new.csv")
    fitted = nsd.Standardiser().fit(X[:60])
    model = nsd.DEQClassifier("tanh", kernel="ck", ridge=1.0, method=method, width=64)
    model.fit(fitted.transform(X[:60]), y[:60])
    assert out.stdout.splitlines()[1:] == model.predict(fitted.transform(X[60:])).tolist()


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("a,b\n1,2\n", ["--target", "c"], "no column 'c'"),
        ("a,b\n1,x\n", ["--target", "a"], "is not a number"),
        ("a,b\n", ["--target", "a"], "header and no rows"),
        ("", ["--target", "a"], "is empty"),
        ("1,2\n3\n", ["--target", "0"], "rows of [1, 2] columns"),
        ("1,2\n3,4\n", [], "say what to predict"),
        ("1,2\n3,nan\n", ["--target", "0"], "NaN or infinite"),
        ("1,2\n3,4\n", ["--target", "0", "--ridge", "some"], "--ridge must be"),
    ],
)
def test_refusals(tmp_path, content, arguments, message):
    (tmp_path / "t.csv").write_text(content)
    done = run("fit", tmp_path / "t.csv", *arguments, "-o", tmp_path / "m.safetensors")
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "ck"},
        {"network": nsd.match(nsd.DEQ("relu", 0.2), 1.0), "solver": "cg"},
        {"network": nsd.ENN(["relu"]), "kernel": "ck", "method": "features", "width": 32},
        {"activation": "tanh", "method": "equivalent"},
        {"activation": "erf", "sigma_a2": 0.1, "kernel": "ck", "method": "equivalent", "own_norms": False},
    ],
)
def test_saved_estimators_predict_as_before(tmp_path, options):
    X, y = load_iris(return_X_y=True)
    X = X[::3] / 8
    for model in (nsd.DEQClassifier(**options), nsd.DEQRegressor(**options)):
        model.fit(X, y[::3])
        save_estimator(model, tmp_path / "m", extra={"told": 1})
        again, extra = load_with_extra(tmp_path / "m")
        assert extra == {"told": 1}
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        if hasattr(model, "predict_proba"):
            np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_a_saved_pipeline_standardises_as_before(tmp_path):
    X, y = load_iris(return_X_y=True)
    machine = make_pipeline(nsd.Standardiser(), nsd.DEQClassifier("relu")).fit(X, y)
    save_estimator(machine, tmp_path / "m")
    np.testing.assert_array_equal(load_estimator(tmp_path / "m").predict_proba(X), machine.predict_proba(X))


def test_what_cannot_be_saved_or_read(tmp_path):
    scaled = make_pipeline(StandardScaler(), nsd.DEQClassifier("relu"))
    for other, name in ((nsd.Standardiser(), "got Standardiser"), (scaled, "got StandardScaler and DEQClassifier")):
        with pytest.raises(InvalidInputError, match=name):
            save_estimator(other, tmp_path / "m")
    nsd.nn.save(nsd.nn.ENN(nsd.ENN(["relu"]), 2, 3, 1), tmp_path / "n")
    with pytest.raises(CheckpointError, match="not an estimator"):
        load_estimator(tmp_path / "n")
