"""The command line: results, JSON, files, source that runs, and manners."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.cli import app

COMMANDS = [
    "match",
    "coefficients",
    "kernel",
    "spectrum",
    "learn",
    "fit",
    "predict",
    "compare",
    "reproduce",
    "bench",
    "info",
    "demo",
]


def run(*args, **options):
    result = CliRunner().invoke(app, [str(a) for a in args], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def files(tmp_path):
    mixture = nsd.GaussianMixture.two_class(60)
    X, y = mixture.sample(48, seed=0)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    return tmp_path


# ---- manners ---------------------------------------------------------------------------------------------


def test_every_command_has_help_with_examples():
    listed = run("--help").output
    for name in COMMANDS:
        assert f" {name} " in listed
        text = run(name, "--help").output
        assert "Examples:" in text
        assert re.search(rf"notsodeep {name}", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_name_options_that_exist(name):
    text = run(name, "--help", env={"COLUMNS": "300"}).output
    examples, _, described = text.partition("Examples:")[2].partition("╭")
    used = set(re.findall(r"(?<=\s)--[a-z0-9-]+", examples))
    assert used <= set(re.findall(r"--[a-z0-9-]+", described))


def test_version():
    assert run("--version").output.strip() == f"notsodeep {nsd.__version__}"


def test_help_does_not_import_torch():
    code = (
        "import sys; from notsodeep.cli import app\n"
        "try: app(['match', '--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split()[-2:] == ["False", "False"]


def test_no_command_shows_the_help():
    result = run()
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_no_colours_in_a_pipe_or_under_no_color():
    for env in ({}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
        out = subprocess.run(
            [sys.executable, "-m", "notsodeep", "coefficients", "tanh"],
            capture_output=True, text=True, check=True, env={**os.environ, **env},
        )  # fmt: skip
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.stdout)
        assert "0.3449876327" in out.stdout
        assert out.stderr == ""


@pytest.mark.parametrize(("words", "found"), [("notsodeep ma", "match"), ("notsodeep match relu --ker", "--kernel")])
def test_completion(words, found):
    env = {
        **os.environ,
        "_NOTSODEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from notsodeep.cli import main; main()"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert out.stdout.split() == [found]


def test_debug_shows_the_trace():
    with pytest.raises(nsd.errors.ActivationError):
        run("--debug", "match", "rleu")


# ---- match and coefficients ------------------------------------------------------------------------------


def executed(source: str, **sizes: int):
    names: dict = {}
    exec(source, names)
    return names["Twin"](**sizes)


CASES = [
    ("relu", "ck", "auto"), ("tanh", "ck", "auto"), ("tanh", "ck", "hermite"), ("relu", "ntk", "auto"),
    ("silu", "ck", "auto"), ("elu", "ntk_frozen", "auto"), ("linear", "ck", "auto"),
]  # fmt: skip


@pytest.mark.parametrize(("phi", "kernel", "family"), CASES)
def test_the_source_of_a_twin_runs_and_computes_what_the_library_computes(phi, kernel, family):
    result = run("match", phi, "--kernel", kernel, "--family", family, "--code", "-s", 0.1)
    assert result.exit_code == 0, result.stderr
    pasted = executed(result.stdout, in_features=7, width=33, out_features=3).double()
    twin = nsd.match(nsd.DEQ(phi, sigma_a2=0.1), 1.0, kernel=kernel, family=family)
    same_as_library(pasted, twin)
    if twin.learning_rates is not None:
        groups = pasted.parameter_groups(0.5)
        assert [g["lr"] for g in groups] == pytest.approx([0.5 * r for r in twin.learning_rates])


@pytest.mark.parametrize(("phi", "inputs"), [("tanh", "sphere"), ("relu", "any")])
def test_the_source_of_twins_without_data(phi, inputs):
    source = run("match", phi, "--inputs", inputs, "--code").stdout
    twin = (nsd.match_sphere if inputs == "sphere" else nsd.match_one_layer)(nsd.DEQ(phi, sigma_a2=0.2))
    same_as_library(executed(source, in_features=7, width=33, out_features=3).double(), twin)


def same_as_library(pasted, twin):
    model = nsd.nn.ENN(twin, in_features=7, width=33, out_features=3, seed=1, dtype=torch.float64, bias=False)
    with torch.no_grad():
        for own, weight in zip(pasted.weights, model.weights, strict=True):
            own.copy_(weight)
        pasted.readout.copy_(model.readout)
        x = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)
        x = x / x.norm(dim=1, keepdim=True)
        assert torch.allclose(pasted(x), model(x), rtol=0, atol=tolerance())


@pytest.mark.parametrize(
    "phi",
    ["arctan", "cos", "erf", "gelu", "selu", "sigmoid", "sin", "softplus", "relu", "piecewise_linear", "quadratic"],
)
def test_source_of_every_activation(phi):
    layer = nsd.activation(phi).affine(gain=-0.7, scale=1.3, skip=0.2, shift=-0.1)
    twin = replace(nsd.match(nsd.DEQ("tanh", 0.2), 1.0), network=nsd.ENN([layer]))
    same_as_library(executed(nsd.pytorch_code(twin), in_features=7, width=33, out_features=3).double(), twin)


def test_source_needs_a_twin_and_known_activations():
    with pytest.raises(nsd.errors.InvalidInputError, match="twin must be a"):
        nsd.pytorch_code(nsd.ENN(["relu"]))
    own = nsd.Activation.from_callable(lambda x: x / (1 + x.abs()), kinks=(0.0,))
    with pytest.raises(nsd.errors.InvalidInputError, match="built-in family"):
        nsd.pytorch_code(
            nsd.Twin(nsd.DEQ("tanh", 0.2), nsd.ENN([own]), "ck", "own", nsd.matching.SphereCertificate(0.0))
        )


def test_match_json_and_saved_file_round_trip(files):
    saved = files / "twin.json"
    result = run("match", "relu", "-d", files / "X.npy", "-y", files / "y.npy", "--json", "--save", saved)
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["verified"]["distance"] < 1e-3 < document["verified"]["plain_distance"]  # ten times nearer at least
    assert nsd.Twin.from_dict(json.loads(saved.read_text())).residual < 1e-9  # what every match promises
    assert [p.name for p in files.iterdir() if p.name.endswith(".part")] == []


def test_match_prints_the_certificate():
    text = run("match", "tanh", "--tau0", 1.0).stdout
    assert "residual" in text
    assert "class Twin(torch.nn.Module)" in text


def test_activation_parameters():
    numbers = json.loads(run("coefficients", "leaky_relu:slope=0.1", "--json").stdout)
    assert numbers["network"]["activation"]["slope"] == 0.1
    expected = nsd.coefficients(nsd.DEQ(nsd.activation("leaky_relu", slope=0.1), 0.2))
    assert numbers["coefficients"]["ck"]["c1"] == expected.c1
    table = run("coefficients", "--layers", "relu/relu").stdout
    assert "0.0625" in table


# ---- kernel and spectrum ---------------------------------------------------------------------------------


def test_exact_kernel_into_a_file(files):
    X = np.load(files / "X.npy")
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npy", "--kernel", "ntk")
    assert np.array_equal(np.load(files / "K.npy"), nsd.ntk(nsd.DEQ("relu", 0.2), X))
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npy", "--force", "--centred")
    tau0 = nsd.MixtureStatistics.estimate(X).tau0
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("relu", 0.2).centred(tau0), X))
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npy", "--force", "--sigma-c2", "0.3")
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("relu", 0.2, sigma_c2=0.3), X))


def test_float32_stays_float32(files):
    np.save(files / "X32.npy", np.load(files / "X.npy").astype(np.float32))
    run("kernel", files / "X32.npy", "--layers", "tanh/relu", "-o", files / "K.npy")
    assert np.load(files / "K.npy").dtype == np.float32


def test_equivalent_kernel_and_kernel_of_a_twin(files):
    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    run("kernel", files / "X.npy", "relu", "--equivalent", "-y", files / "y.npy", "-o", files / "E.npy")
    statistics = nsd.MixtureStatistics.estimate(X, y)
    assert np.allclose(
        np.load(files / "E.npy"), nsd.equivalent(nsd.DEQ("relu", 0.2), statistics).matrix(), rtol=0, atol=ulps()
    )
    run("kernel", files / "X.npy", "relu", "--equivalent", "--own-norms", "-y", files / "y.npy", "-o", files / "O.npy")
    own = nsd.equivalent(nsd.DEQ("relu", 0.2), statistics, own_norms=True)
    assert np.allclose(np.load(files / "O.npy"), own.matrix(), rtol=0, atol=ulps())
    run("match", "relu", "--kernel", "ntk", "--save", files / "twin.json")
    run("kernel", files / "X.npy", "--twin", files / "twin.json", "--kernel", "ntk", "-o", files / "T.npy")
    twin = nsd.Twin.from_dict((files / "twin.json").read_text())
    assert np.allclose(np.load(files / "T.npy"), nsd.ntk(twin.network, X, learning_rates=twin.learning_rates))


@pytest.mark.parametrize(
    ("phi", "inputs", "kernel"),
    [
        ("relu", "any", "ck"),
        ("relu", "any", "ntk"),
        ("tanh", "any", "ntk_frozen"),
        ("relu", "sphere", "ck"),
        ("relu", "mixture", "ntk"),
    ],
)
def test_every_saved_twin_is_read(files, phi, inputs, kernel):
    """``kernel --twin`` writes the kernel that the twin matches, under its own training rule."""
    run("match", phi, "--inputs", inputs, "--kernel", kernel, "--save", files / "twin.json")
    run("kernel", files / "X.npy", "--twin", files / "twin.json", "-o", files / "T.npy")
    twin = nsd.Twin.from_dict((files / "twin.json").read_text())
    assert twin.certificate.kind == {"any": "uniform"}.get(inputs, inputs)
    assert np.array_equal(np.load(files / "T.npy"), twin.kernel_matrix(np.load(files / "X.npy")))


def test_kernel_of_a_twin_that_normalises_or_does_not_match_it(files):
    twin = nsd.match_sphere(nsd.DEQ("tanh", 0.2), normalise=True)
    (files / "twin.json").write_text(json.dumps(twin.to_dict()))
    run("kernel", files / "X.npy", "--twin", files / "twin.json", "-o", files / "T.npy")
    rows = np.load(files / "X.npy")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(np.load(files / "T.npy"), nsd.ck(twin.deq, unit), rtol=0, atol=twin.bound + tolerance())
    for wrong in (["--kernel", "ntk"], ["--equivalent"], ["--centred"]):
        result = run("kernel", files / "X.npy", "--twin", files / "twin.json", "-o", files / "N.npy", *wrong)
        assert result.exit_code != 0
        assert "twin" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["relu", "--inputs", "any", "--tol", "1e-13"], "Raise --tol"),
        (["silu", "--inputs", "any", "--tol", "1e-15"], "--inputs any --kinds"),
        (["relu", "--inputs", "sphere", "--kinds", "2"], "belongs to --inputs any"),
    ],
)
def test_advice_on_twins_without_data_names_options(arguments, advice):
    result = run("match", *arguments)
    assert result.exit_code != 0
    assert advice in " ".join(result.stderr.split())


def test_kinds_as_asked_for():
    twin = json.loads(run("match", "tanh", "--inputs", "any", "--kinds", "1", "--norms", "0.8,1.2", "--json").stdout)
    assert twin["kinds"] == 1


def test_standard_input_and_output(files):
    content = (files / "X.npy").read_bytes()
    command = [sys.executable, "-m", "notsodeep", "kernel", "-", "tanh", "-o", "-"]
    out = subprocess.run(command, input=content, capture_output=True, check=True)
    (files / "K.npy").write_bytes(out.stdout)
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), np.load(files / "X.npy")))


def test_text_and_archives_are_read(files):
    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    np.savetxt(files / "X.csv", X, delimiter=",")
    np.savetxt(files / "y.csv", y, fmt="%d")
    np.savez(files / "both.npz", X=X, y=y)
    first = json.loads(run("match", "relu", "-d", files / "X.csv", "-y", files / "y.csv", "--json").stdout)
    second = json.loads(run("match", "relu", "-d", files / "both.npz", "-y", files / "both.npz", "--json").stdout)
    assert first["certificate"]["tau0"] == pytest.approx(second["certificate"]["tau0"], rel=ulps(), abs=0)


def test_spectrum(files):
    plot = files / "s.png"
    document = json.loads(run("spectrum", "relu", "-p", 100, "-n", 80, "--json", "--plot", plot).stdout)
    law = nsd.spectral_law(nsd.DEQ("relu", 0.2), nsd.GaussianMixture.two_class(100), n=80)
    assert [b["low"] for b in document["bulks"]] == [a for a, _ in law.support]
    assert document["spikes"] == [s.value for s in law.spikes]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "bulk" in run("spectrum", "tanh", "-d", files / "X.npy", "-y", files / "y.npy").stdout


def test_the_suffix_decides_the_format(files):
    exact = nsd.ck(nsd.DEQ("relu", 0.2), np.load(files / "X.npy"))
    run("kernel", files / "X.npy", "relu", "-o", files / "K.csv")
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npz")
    assert np.array_equal(np.loadtxt(files / "K.csv", delimiter=","), exact)
    assert np.array_equal(np.load(files / "K.npz")["K"], exact)


def test_test_rows_are_prepared_as_the_training_rows_were(files):
    X = 5.0 + 3.0 * np.load(files / "X.npy")
    np.save(files / "train.npy", X[:30])
    np.save(files / "test.npy", X[30:])
    run("kernel", files / "test.npy", "tanh", "--against", files / "train.npy", "--standardise", "-o", files / "K.npy")
    fitted = nsd.Standardiser().fit(X[:30])
    expected = nsd.ck(nsd.DEQ("tanh", 0.2), fitted.transform(X[30:]), fitted.transform(X[:30]))
    assert np.load(files / "K.npy").shape == (18, 30)
    assert np.allclose(np.load(files / "K.npy"), expected, rtol=0, atol=ulps())


def test_tables_with_names_and_labels_in_words(files):
    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    names = ",".join(f"feature {i}" for i in range(X.shape[1]))
    np.savetxt(files / "named.csv", X, delimiter=",", header=names, comments="")
    (files / "words.csv").write_text("animal\n" + "\n".join(np.array(["golden retriever", "cat"])[y]) + "\n")
    named = run("match", "relu", "-d", files / "named.csv", "-y", files / "words.csv", "--standardize", "--json")
    plain = run("match", "relu", "-d", files / "X.npy", "-y", files / "y.npy", "--standardise", "--json")
    first, second = (json.loads(result.stdout)["verified"] for result in (named, plain))
    assert first["distance"] == pytest.approx(second["distance"])
    assert "in_features=60, width=4096, out_features=2" in json.loads(named.stdout)["pytorch"]


@pytest.mark.parametrize("phi", ["gelu", "erf", "selu"])
def test_a_variance_within_the_limit_is_taken_and_told(phi):
    result = run("coefficients", phi, "--json")
    chosen = json.loads(result.stdout)["network"]["sigma_a2"]
    assert chosen == pytest.approx(0.8 * nsd.DEQ(phi, 0.1).limit, rel=5e-3)  # told in three digits
    assert f"--sigma-a2 {chosen}" in result.stderr


def test_the_law_says_how_far_it_is(files):
    near = run("spectrum", "relu", "-p", 200, "--json")
    assert json.loads(near.stdout)["distance"] < 0.1
    assert near.stderr == ""
    low_rank = np.random.default_rng(0).standard_normal((90, 3)) @ np.random.default_rng(1).standard_normal((3, 30))
    np.save(files / "low.npy", low_rank)
    far = run("spectrum", "tanh", "-d", files / "low.npy", "--standardise")
    assert "distance" in far.stdout
    assert "low effective rank" in far.stderr


def test_a_reader_may_close_the_pipe(files):
    np.save(files / "many.npy", np.random.default_rng(0).standard_normal((400, 30)) / 5.5)
    command = f"{sys.executable} -m notsodeep kernel {files}/many.npy tanh -o - | head -c 6"
    out = subprocess.run(command, shell=True, capture_output=True)
    assert out.stdout == b"\x93NUMPY"
    assert out.stderr == b""


def test_flags_take_no_value():
    text = run("match", "--help", env={"COLUMNS": "200"}).output
    assert "--as-is" in text
    assert "<bool>" not in text


# ---- runs ------------------------------------------------------------------------------------------------


def test_compare_own_data_and_digits(files):
    text = run("compare", "tanh", "-d", files / "X.npy", "-y", files / "y.npy", "--width", 16, "--seeds", 1).stdout
    assert "twin" in text
    rows = json.loads(run("compare", "relu", "--width", 32, "--seeds", 1, "--json").stdout)["rows"]
    assert [r["model"] for r in rows] == ["DEQ", "twin", "plain"]
    assert all(r["accuracy"] > 0.6 for r in rows)


def test_info():
    found = json.loads(run("info", "--json").stdout)
    assert found["notsodeep"] == nsd.__version__
    assert found["packages"]["torch"].startswith("2.")
    assert "relu" in found["activations"]
    assert "devices" in run("info").stdout


def test_bench_runs_what_the_checkout_holds(tmp_path, capfd):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text("import sys; print('ran', sys.argv[1:]); sys.exit(sys.argv[1] == 'bad')")
    (folder / "good.py").write_text("")
    (folder / "bad.py").write_text("")
    assert run("bench", "good", "--root", tmp_path).exit_code == 0
    assert run("bench", "bad", "--root", tmp_path).exit_code == 1
    assert "ran ['good']" in capfd.readouterr().out


# ---- tables ----------------------------------------------------------------------------------------------


def test_no_row_of_a_table_is_lost(files):
    """A byte-order mark or a missing number in the first line makes no header of it."""
    X = np.load(files / "X.npy")
    text = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (files / "marked.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    run("kernel", files / "marked.csv", "tanh", "-o", files / "K.npy")
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), X))
    (files / "missing.csv").write_text("," + text.partition(",")[2])
    result = run("kernel", files / "missing.csv", "tanh", "-o", files / "M.npy")
    assert result.exit_code == 1
    assert "data row 1, column 0: '' is not a number" in " ".join(result.stderr.split())


def test_every_command_reads_the_same_tables(files):
    """Blanks instead of commas, names behind a hash, labels in words without a name above them."""
    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    np.savetxt(files / "blank.txt", X, header=" ".join(f"c{i}" for i in range(X.shape[1])))
    (files / "bare.txt").write_text("#\n" + (files / "blank.txt").read_text().partition("\n")[2])
    bare = run("kernel", files / "bare.txt", "tanh", "-o", files / "K.npy")
    assert bare.exit_code == 0
    np.testing.assert_allclose(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), X), rtol=0, atol=ulps())
    (files / "words.txt").write_text("\n".join(np.array(["golden retriever", "cat"])[y]))
    table = ("-y", files / "words.txt")
    assert (
        json.loads(run("match", "relu", "-d", files / "blank.txt", *table, "--json").stdout)["verified"]["points"] == 48
    )
    fitted = run("fit", files / "blank.txt", *table, "-o", files / "m.safetensors", "--json")
    assert json.loads(fitted.stdout)["classes"] == 2
    assert set(run("predict", files / "m.safetensors", files / "X.npy").stdout.split("\n")[1:-1]) == {
        "golden retriever",
        "cat",
    }
