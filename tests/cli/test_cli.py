"""The command line: results, JSON, files, source that runs, and manners."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios

import numpy as np
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.cli import app, inputs
from notsodeep.cli.command import explained
from notsodeep.errors import ConcentrationWarning, NotSoDeepError

COMMANDS = ["match", "kernel", "spectrum", "learn", "replace", "explore", "demo"]


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
        assert re.search(rf"^ Examples:\s*\n   notsodeep {name}\b.*\n", text, flags=re.MULTILINE)  # lines of their own
        for shown in (listed, text):
            assert "\\b" not in shown
            assert "\b" not in shown
            assert "bool" not in shown  # a flag takes no value
            assert "list[" not in shown
    assert set(get_command(app).commands) == set(COMMANDS)


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
            [sys.executable, "-m", "notsodeep", "match", "--help"],
            capture_output=True, text=True, check=True, env={**os.environ, **env},
        )  # fmt: skip
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.stdout)
        assert "notsodeep match relu" in out.stdout
        assert out.stderr == ""


COMPLETIONS = [
    ("notsodeep ma", "match"),
    ("notsodeep match relu --ker", "--kernel"),
    ("notsodeep match lea", "leaky_relu"),
    ("notsodeep kernel X.npy sof", "softplus"),
]


def test_completion_knows_every_activation():
    assert set(inputs.NAMES) == set(nsd.activations.activation_names()) - {"affine", "hermite", "quadratic"}


@pytest.mark.parametrize(("words", "found"), COMPLETIONS)
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


MISSING = [
    ("match", "relu", "--data", "nowhere/X.npy"),
    ("kernel", "nowhere/X.npy", "relu"),
    ("kernel", "X.npy", "relu", "-o", "nowhere/K.npy"),
    ("kernel", "X.npy", "--twin", "nowhere/twin.json"),
    ("spectrum", "relu", "-p", 50, "--plot", "nowhere/law.png"),
    ("learn", "relu", "--data", "nowhere/X.npy", "--labels", "nowhere/y.npy"),
    ("match", "relu", "--save", "nowhere/twin.json"),
    ("explore", "-o", "nowhere/page.html"),
    ("demo", "--quick", "-o", "nowhere/demo"),
]


@pytest.mark.parametrize("arguments", MISSING, ids=lambda words: " ".join(map(str, words)))
def test_a_folder_that_is_not_there_is_named_and_not_made(arguments, files, monkeypatch):
    monkeypatch.chdir(files)
    result = run(*arguments)
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert sorted(path.name for path in files.iterdir()) == ["X.npy", "y.npy"]


def test_an_interruption_while_loading_leaves_no_trace():
    code = "import sys, notsodeep.__main__ as m; sys.modules['notsodeep.cli'] = Stop(); m.main()"
    stop = "class Stop:\n    def __getattr__(self, name): raise KeyboardInterrupt\n"
    out = subprocess.run([sys.executable, "-c", stop + code], capture_output=True, text=True)
    assert (out.returncode, out.stderr) == (130, "")


def test_debug_shows_the_trace():
    with pytest.raises(nsd.errors.ActivationError):
        run("--debug", "match", "rleu")


@pytest.mark.parametrize("closed", ["<&- 2>&-", ">&-"])
def test_only_a_closed_output_is_a_reason_to_fail(closed):
    shell = ["sh", "-c", f'"{sys.executable}" -m notsodeep match linear --code ntk {closed}']
    done = subprocess.run(shell, capture_output=True, text=True)
    if closed == ">&-":
        assert done.returncode == 1
        assert "standard output is closed" in " ".join(done.stderr.split())
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "class Twin" in done.stdout


@pytest.mark.parametrize("line", [["--help"], ["--version"], [], ["match", "--help"], ["match", "linear", "--json"]])
@pytest.mark.parametrize(("to", "why"), [(None, "standard output is closed"), ("/dev/full", "No space left")])
def test_nothing_is_done_where_nothing_can_be_shown(line, to, why):
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        full = None if to is None else open(to, "w", buffering=1)  # noqa: SIM115 - closing it fails
        stack.enter_context(contextlib.redirect_stdout(full))
        with pytest.raises(SystemExit) as end:
            app(line, prog_name="notsodeep")
    if full is not None:
        with contextlib.suppress(OSError):
            full.close()
    assert end.value.code == 1
    assert why in " ".join(told.getvalue().split())


# ---- match -----------------------------------------------------------------------------------------------


def executed(source: str, **sizes: int):
    names: dict = {}
    exec(source, names)
    return names["Twin"](**sizes)


CASES = [
    ("relu", "ck", "one-layer"), ("tanh", "ntk", "one-layer"), ("relu", "ntk", "papers"), ("silu", "ck", "papers"),
    ("elu", "ntk_frozen", "papers"), ("linear", "ck", "papers"), ("tanh", "ck", "sphere"),
]  # fmt: skip


def designed(phi, kernel, route):
    deq = nsd.DEQ(phi, sigma_a2=0.1)
    if route == "papers":
        return nsd.match(deq, 1.0, kernel=kernel)
    return (nsd.match_sphere if route == "sphere" else nsd.match_one_layer)(deq, kernel=kernel)


@pytest.mark.parametrize(("phi", "kernel", "route"), CASES)
def test_the_source_of_a_twin_runs_and_computes_what_the_library_computes(phi, kernel, route):
    result = run("match", phi, "--kernel", kernel, "--route", route, "--code", "ntk", "-s", 0.1)
    assert result.exit_code == 0, result.stderr
    pasted = executed(result.stdout, in_features=7, width=36, out_features=3).double()
    twin = designed(phi, kernel, route)
    same_as_library(pasted, twin)
    if twin.learning_rates is not None:
        groups = pasted.parameter_groups(0.5)
        assert [g["lr"] for g in groups] == pytest.approx([0.5 * r for r in twin.learning_rates])


def same_as_library(pasted, twin):
    model = nsd.nn.ENN(twin, in_features=7, width=36, out_features=3, seed=1, dtype=torch.float64, bias=False)
    with torch.no_grad():
        for own, weight in zip(pasted.weights, model.weights, strict=True):
            own.copy_(weight)
        pasted.readout.copy_(model.readout)
        x = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)
        x = x / x.norm(dim=1, keepdim=True)
        assert torch.allclose(pasted(x), model(x), rtol=0, atol=tolerance())


def terminal(command: list[str]) -> str:
    """What a terminal of 80 columns shows of a command."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while block := os.read(ours, 65536):
                shown += block
        assert process.wait() == 0, shown
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("phi", ["relu", "tanh"])
def test_source_that_is_copied_from_a_narrow_terminal_runs(phi):
    shown = terminal([sys.executable, "-m", "notsodeep", "match", phi, "-s", "0.1"])
    assert max(map(len, shown.splitlines())) > 80  # nothing was folded
    source = shown[shown.index("# PyTorch source") :]
    same_as_library(
        executed(source, in_features=7, width=36, out_features=3).double(), designed(phi, "ck", "one-layer")
    )


def test_source_that_trains_at_the_usual_rates():
    source = run("match", "relu", "--code", "standard").stdout
    assert "train with Adam at 1e-3" in source
    weights = executed(source, in_features=100, width=400, out_features=3).weights[0]
    assert float(weights.detach().std()) == pytest.approx(0.1, abs=tolerance(samples=40_000))


def test_match_json_and_saved_file_round_trip(files):
    saved = files / "twin.json"
    result = run("match", "relu", "--route", "papers", "-d", files / "X.npy", "--json", "--save", saved)
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["verified"]["distance"] < 1e-3 < document["verified"]["plain_distance"]  # ten times nearer at least
    assert nsd.Twin.from_dict(json.loads(saved.read_text())).residual < 1e-9  # what every match promises
    assert [p.name for p in files.iterdir() if p.name.endswith(".part")] == []


def test_match_uses_the_norms_of_the_data(files):
    X = np.load(files / "X.npy")
    document = json.loads(run("match", "tanh", "-d", files / "X.npy", "--json").stdout)
    own = {name: document[name] for name in document if name not in ("pytorch", "verified")}
    assert nsd.Twin.from_dict(own) == nsd.match_one_layer(nsd.DEQ("tanh", 0.2), norms=nsd.matching.norm_range(X))
    assert document["verified"]["points"] == len(X)
    assert f"in_features={X.shape[1]}," in document["pytorch"]
    narrow = nsd.match_one_layer(nsd.DEQ("tanh", 0.2), norms=(0.8, 1.2), tol=1e-2)
    options = ("--norms", 0.8, 1.2, "--tol", 1e-2, "--json")
    assert json.loads(run("match", "tanh", *options).stdout)["kinds"] == narrow.kinds


def test_match_prints_the_certificate():
    text = run("match", "tanh").stdout
    assert "bound" in text
    assert "class Twin(torch.nn.Module)" in text
    assert "slope=0.1" in run("match", "leaky_relu:slope=0.1", "--route", "sphere").stdout


# ---- kernel and spectrum ---------------------------------------------------------------------------------


def test_exact_kernel_into_a_file(files):
    X = np.load(files / "X.npy")
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npy", "--kernel", "ntk")
    assert np.array_equal(np.load(files / "K.npy"), nsd.ntk(nsd.DEQ("relu", 0.2), X))
    run("kernel", files / "X.npy", "relu", "-o", files / "K.npy", "--force", "-s", "0.1")
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("relu", 0.1), X))


def test_a_device_is_taken_and_one_that_is_not_there_is_named(files):
    command = ("kernel", files / "X.npy", "tanh", "-o", files / "K.npy", "--force", "--device")
    assert run(*command, "cpu").exit_code == 0
    assert np.array_equal(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), np.load(files / "X.npy")))
    refused = run(*command, "nowhere:7")
    assert (refused.exit_code, "nowhere:7" in refused.stderr) == (2, True)


def test_float32_stays_float32(files):
    np.save(files / "X32.npy", np.load(files / "X.npy").astype(np.float32))
    run("kernel", files / "X32.npy", "tanh", "-o", files / "K.npy")
    assert np.load(files / "K.npy").dtype == np.float32


@pytest.mark.parametrize(
    ("phi", "route", "kernel"),
    [
        ("relu", "one-layer", "ntk"),
        ("tanh", "one-layer", "ntk_frozen"),
        ("relu", "sphere", "ck"),
        ("relu", "papers", "ntk"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*have norms outside")  # some do, and are computed all the same
def test_every_saved_twin_is_read(files, phi, route, kernel):
    """``kernel --twin`` writes the kernel that the twin matches, under its own training rule."""
    run("match", phi, "--route", route, "--kernel", kernel, "--save", files / "twin.json")
    run("kernel", files / "X.npy", "--twin", files / "twin.json", "-o", files / "T.npy")
    twin = nsd.Twin.from_dict((files / "twin.json").read_text())
    assert np.array_equal(np.load(files / "T.npy"), twin.kernel_matrix(np.load(files / "X.npy")))


def test_text_and_archives_are_read(files):
    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    np.savetxt(files / "X.csv", X, delimiter=",")
    np.savetxt(files / "y.csv", y, fmt="%d")
    np.savez(files / "both.npz", X=X, y=y)
    spectrum = ("spectrum", "relu", "--json")
    first = json.loads(run(*spectrum, "-d", files / "X.csv", "-y", files / "y.csv").stdout)
    second = json.loads(run(*spectrum, "-d", files / "both.npz", "-y", files / "both.npz").stdout)
    assert first["bulks"][0]["low"] == pytest.approx(second["bulks"][0]["low"], rel=tolerance(), abs=0)


def test_spectrum(files):
    plot = files / "s.png"
    document = json.loads(run("spectrum", "relu", "-p", 100, "-n", 80, "--json", "--plot", plot).stdout)
    law = nsd.spectral_law(nsd.DEQ("relu", 0.2), nsd.GaussianMixture.two_class(100), n=80)
    assert [b["low"] for b in document["bulks"]] == [a for a, _ in law.support]
    assert document["spikes"] == [s.value for s in law.spikes]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "bulk" in run("spectrum", "tanh", "-d", files / "X.npy", "-y", files / "y.npy").stdout


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
    spectrum = ("spectrum", "relu", "--json")
    named = run(*spectrum, "-d", files / "named.csv", "-y", files / "words.csv", "--standardize")
    plain = run(*spectrum, "-d", files / "X.npy", "-y", files / "y.npy", "--standardise")
    found, expected = (json.loads(result.stdout)["bulks"][0]["low"] for result in (named, plain))
    assert found == pytest.approx(expected, rel=tolerance(), abs=0)


@pytest.mark.parametrize("phi", ["gelu", "erf", "selu"])
def test_a_variance_within_the_limit_is_taken_and_told(phi):
    result = run("match", phi, "--route", "sphere", "--json")
    chosen = json.loads(result.stdout)["deq"]["sigma_a2"]
    assert chosen == pytest.approx(0.8 * nsd.DEQ(phi, 0.1).limit, rel=5e-3)  # told in three digits
    assert f"--sigma-a2 {chosen}" in result.stderr


def test_the_law_says_how_far_it_is(files):
    near = run("spectrum", "relu", "-p", 200, "--json")
    assert json.loads(near.stdout)["distance"] < 0.1
    assert near.stderr == ""
    low_rank = np.random.default_rng(0).standard_normal((90, 3)) @ np.random.default_rng(1).standard_normal((3, 30))
    np.save(files / "low.npy", low_rank)
    with pytest.warns(ConcentrationWarning, match="low an effective rank"):
        far = run("spectrum", "tanh", "-d", files / "low.npy", "--standardise")
    assert "distance" in far.stdout
    assert "low effective rank" in far.stderr


def test_a_reader_may_close_the_pipe():
    command = f"{sys.executable} -m notsodeep match tanh --json | head -c 1"
    out = subprocess.run(command, shell=True, capture_output=True)
    assert out.stdout == b"{"
    assert out.stderr == b""


@pytest.mark.parametrize("flag", ["--standardise", "--json", "--force"])
def test_flags_take_no_value(flag):
    text = run("spectrum", "--help", env={"COLUMNS": "200"}).output
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {flag}")]
    assert "<bool>" not in line


# ---- tables ----------------------------------------------------------------------------------------------


def test_no_row_of_a_table_is_lost(files):
    """A byte-order mark or a missing number in the first line makes no header of it."""
    X = np.load(files / "X.npy")
    text = "\n".join(",".join(map(repr, row)) for row in X.tolist())
    (files / "marked.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    run("kernel", files / "marked.csv", "tanh", "-o", files / "K.npy")
    np.testing.assert_allclose(np.load(files / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), X), rtol=0, atol=ulps(8))
    (files / "missing.csv").write_text("," + text.partition(",")[2])
    result = run("kernel", files / "missing.csv", "tanh", "-o", files / "M.npy")
    assert result.exit_code == 2
    assert "NaN or infinity (first in row 0)" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("text", "n", "labels"),
    [
        ("animal\ncat\ndog\ncat\n", 3, ["cat", "dog", "cat"]),  # a heading
        ("0\n1\n0\n1\n", 3, ["0", "1", "0", "1"]),  # one label too many: no label is lost, the lengths differ
        ("7\n0\n1\n0\n", 3, ["7", "0", "1", "0"]),
        ("007\n7\n", 2, ["007", "7"]),
        ("a # b\n#c\nNA\n", 3, ["a # b", "#c", "NA"]),
        (" cat\ncat \n", 2, ["cat", "cat"]),
    ],
)
def test_no_label_of_a_table_is_lost(text, n, labels, tmp_path):
    (tmp_path / "y.csv").write_text(text)
    assert inputs.labels_from(tmp_path / "y.csv", n).tolist() == labels


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (lambda path: inputs.labels_from(path, 3), "a\n\nb\n", "line 2 has no label"),
        (lambda path: inputs.labels_from(path, 2), "kind\n\nb\n", "line 2 has no label"),
        (lambda path: inputs.points_from(path), "a,b,a\n1,2,3\n", "two columns have one name"),
        (lambda path: inputs.points_from(path), "a,b\n1,2,3\n4,5,6\n", "names 2 columns, and the rows have 3"),
        (lambda path: inputs.points_from(path), "1,2\n3,4 # five\n", "no numbers"),
        (lambda path: inputs.points_from(path), ",0,1\n0,1.5,2.5\n", "first column has no name"),
        (lambda path: inputs.points_from(path), ",a,b\n0,1.5,2.5\n", "first column has no name"),
        (lambda path: inputs.points_from(path), "1,a\n2,b\n", "column 1: no numbers"),
    ],
)
def test_tables_that_could_be_misread_are_refused(read, text, message, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(NotSoDeepError, match=message):
        read(tmp_path / "table.csv")


def test_a_column_of_labels_is_told(tmp_path, capsys):
    (tmp_path / "X.csv").write_text("a,Label\n0.5,1\n0.6,0\n")
    assert inputs.points_from(tmp_path / "X.csv").shape == (2, 2)
    assert "the column Label is taken for a feature" in " ".join(capsys.readouterr().err.split())


def test_a_column_that_counts_is_told(tmp_path, capsys):
    for text, said in (("id,a\n1,0.5\n2,0.6\n3,0.1\n", True), ("0.5,7\n0.6,8\n0.7,9\n", False)):
        (tmp_path / "X.csv").write_text(text)
        assert len(inputs.points_from(tmp_path / "X.csv")) == 3
        assert ("counts the rows" in capsys.readouterr().err) == said


def test_failures_without_a_file_name_no_file():
    assert explained(OSError(28, "No space left on device"))[1].startswith("No space left on device. ")
    assert explained(FileNotFoundError(2, "No such file", "X.npy"))[1].startswith("X.npy: No such file. ")


def test_points_and_activation_come_in_either_order(tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3))
    for order in (("X.npy", "relu"), ("relu", "X.npy")):
        given = [str(tmp_path / name) if name.endswith("npy") else name for name in order]
        done = CliRunner().invoke(app, ["kernel", *given, "-o", str(tmp_path / "K.npy"), "--force"])
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(np.load(tmp_path / "K.npy"), nsd.ck(nsd.DEQ("relu", 0.2), np.eye(3)))
    assert "swap the two" in " ".join(CliRunner().invoke(app, ["match", "X.npy"]).output.split())
    missing = CliRunner().invoke(app, ["kernel", "relu", str(tmp_path / "none.npy"), "-o", str(tmp_path / "L.npy")])
    assert "none.npy: No such file" in " ".join(missing.output.split())


def test_a_first_line_that_may_be_names_is_told(tmp_path, capsys):
    (tmp_path / "X.csv").write_text("0,1,2\n0.5,0.6,0.7\n")
    assert len(inputs.points_from(tmp_path / "X.csv")) == 2
    assert "remove it if it names columns" in capsys.readouterr().err


def test_tables_need_an_extra(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    (files / "X.csv").write_text("1,2\n3,4\n")
    result = run("kernel", files / "X.csv", "tanh", "-o", files / "K.npy")
    assert result.exit_code == 1
    assert "pip install 'notsodeep[csv]'" in result.stderr
    assert run("kernel", files / "X.npy", "tanh", "-o", files / "K.npy").exit_code == 0


# ---- learn, explore --------------------------------------------------------------------------------------


def test_a_range_of_sizes_gives_the_curve(tmp_path):
    target = tmp_path / "curve.png"
    options = ("-p", 100, "-n", "50:200:3", "--means", 3, "--json", "--plot", target)
    document = json.loads(run("learn", "relu", *options).stdout)
    assert document["points"] == [50.0, 100.0, 200.0]
    mix = nsd.GaussianMixture.two_class(100, mu=3.0, cov=4.0)
    expected = nsd.predict_learning(nsd.DEQ("relu", 0.2), mix, 100, ridge=1e-3).accuracy
    assert document["networks"]["relu"]["accuracy"][1] == expected
    assert target.read_bytes().startswith(b"\x89PNG")


def test_data_is_estimated_by_leave_one_out(tmp_path):
    X, y = nsd.GaussianMixture.two_class(30, mu=3.0).sample(160, seed=0)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    text = run("learn", "relu", "-d", tmp_path / "X.npy", "-y", tmp_path / "y.npy", "--ridge", 0.1).stdout
    assert "training points" in text


def test_the_explorer_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("notsodeep.explore.controls.STORED", {})  # the first stop of every control alone
    file = tmp_path / "page.html"
    file.write_text("mine")
    assert run("explore", "-o", file, "--activation", "linear").exit_code == 2
    assert file.read_text() == "mine"
    assert run("explore", "-o", file, "--force", "--activation", "linear").exit_code == 0
    assert file.read_text().startswith("<!doctype html>")
    assert "activation=linear" in file.read_text()
    assert "relu" in run("explore", "-o", file, "--force", "--activation", "nothing").output


def test_options_of_a_stored_page_are_refused_for_a_served_one(tmp_path):
    assert run("explore", "--activation", "relu").exit_code == 2
    assert run("explore", "--no-browser", "-o", tmp_path / "page.html").exit_code == 2


def test_a_saved_model_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = torch.randn(1400, 5, generator=torch.Generator().manual_seed(0))
    model = nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 5, 16, 2)
    nsd.nn.save(model, "model.safetensors")
    np.save("X.npy", X[:400].numpy())
    np.save("fresh.npy", X[400:].numpy())
    np.save("y.npy", model(X[400:]).argmax(1).numpy())
    quick = functools.partial(nsd.replace, options=nsd.nn.ReplaceOptions(steps=30))
    monkeypatch.setattr(nsd, "replace", quick)
    given = ["model.safetensors", "X.npy", "-c", "fresh.npy", "--disagreement", 0.2]
    told = json.loads(run("replace", *given, "-y", "y.npy", "--json").output)
    assert told["labels"]
    assert told["measured"] == 1000
    fast = nsd.nn.Replacement.load("fast.safetensors", model)
    assert fast.certificate.coverage == told["coverage"]
    assert run("replace", *given).exit_code == 2  # the file is kept
    program = torch.export.export(torch.nn.Linear(5, 2), (X[:3],), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, "model.pt2")
    assert "promised" in run("replace", "model.pt2", *given[1:], "--force").output
    nsd.nn.save(nsd.nn.ConvDEQ(nsd.ConvDEQ("relu", 0.2, image=(1, 5, 1), filter=1), 4, 2), "images.safetensors")
    for name in ("X", "fresh"):
        np.save(f"{name}.npy", np.load(f"{name}.npy").reshape(-1, 1, 5, 1))
    assert "promised" in run("replace", "images.safetensors", *given[1:], "--force").output
    (tmp_path / "broken.pt2").write_bytes(b"no program")
    refused = run("replace", "broken.pt2", *given[1:], "--force")
    assert (refused.exit_code, "no program of torch.export" in refused.stderr) == (2, True)
