"""A tour of mistakes: each gets one paragraph that says what to do, an exit code, and leaves earlier output alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli import app

EARLIER = b"earlier output"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with good and bad files, and results of an earlier run."""
    monkeypatch.chdir(tmp_path)
    X, y = nsd.GaussianMixture.two_class(40).sample(24, seed=0)
    np.save("X.npy", X)
    np.save("y.npy", y)
    np.save("short.npy", y[:10])
    np.save("onehot.npy", np.eye(2)[y])
    np.save("flat.npy", X.ravel())
    np.save("images.npy", np.ones((24, 5, 8)))
    np.save("raw.npy", 255.0 * np.abs(X))
    np.save("words.npy", np.array([["a", "b"], ["c", "d"]]))
    broken = X.copy()
    broken[3, 4] = np.nan
    np.save("nan.npy", broken)
    np.savez("other.npz", data=X)
    np.save("huge.npy", 1e200 * X)
    np.save("narrow.npy", X[:, :7])
    np.save("lonely.npy", np.r_[np.zeros(22, int), 1, 2])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "X.npy").read_bytes()[:300])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "words.csv").write_text("a,b\nc,d\n")
    (tmp_path / "cut.json").write_text('{"twin": 1, "deq": {')
    (tmp_path / "other.json").write_text('{"network": "DEQ"}')
    np.save("nan_labels.npy", np.where(y == 0, np.nan, y))
    np.savez("whole.npz", X=X)
    archive = bytearray((tmp_path / "whole.npz").read_bytes())
    archive[300:360] = b"?" * 60
    (tmp_path / "damaged.npz").write_bytes(archive)
    (tmp_path / "none.npz").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (tmp_path / "digits.json").write_text('{"twin": ' + "9" * 6_000 + "}")
    (tmp_path / "nan.json").write_text('{"twin": NaN}')
    (tmp_path / "kept.npy").write_bytes(EARLIER)
    (tmp_path / "kept.json").write_bytes(EARLIER)
    (tmp_path / "folder").mkdir()
    return tmp_path


# what is typed, the exit code, and a piece of advice the message must hold
MISTAKES = {
    "unknown activation": ("match rleu", 2, "did you mean 'relu'"),
    "unknown parameter": ("match relu:slope=2", 2, "takes the parameters"),
    "parameter without a number": ("match leaky_relu:slope", 2, "leaky_relu:slope=0.1"),
    "sigma_a2 too large": ("match relu --sigma-a2 0.5", 2, "Lower sigma_a2"),
    "sigma_a2 negative": ("match relu --sigma-a2 -0.1", 2, "not negative"),
    "sigma_a2 is a word": ("match relu --sigma-a2 big", 2, "--sigma-a2"),
    "unknown kernel": ("match relu --kernel nkt", 2, "ntk"),
    "unknown route": ("match relu --route any", 2, "one-layer"),
    "unknown family": ("match relu --route cubic", 2, "hermite"),
    "family that cannot": ("match silu --route leaky_relu", 1, "hermite"),
    "option of another command": ("match relu --width 512", 2, "No such option"),
    "more points than memory": ("spectrum relu -n 99999999999999999999", 2, "20000"),
    "twin missing": ("kernel X.npy --twin nowhere.json", 2, "Check the path"),
    "folder that is a file": ("demo --quick -o X.npy", 2, "Check the path"),
    "damaged archive": ("kernel damaged.npz relu", 2, "np.save"),
    "archive that is none": ("kernel none.npz relu", 2, "np.save"),
    "NaN in y": ("spectrum relu --data X.npy --labels nan_labels.npy", 2, "no class"),
    "array for a twin": ("kernel X.npy --twin X.npy", 2, "--save"),
    "deeply nested twin": ("kernel X.npy --twin deep.json", 2, "--save"),
    "twin of many digits": ("kernel X.npy --twin digits.json", 2, "4300 digits"),
    "NaN in a twin": ("kernel X.npy --twin nan.json", 2, "--save"),
    "command misspelt": ("mach relu", 2, "No such command"),
    "argument missing": ("match", 2, "ACTIVATION"),
    "no network": ("kernel X.npy", 2, "name one network"),
    "labels without data": ("spectrum relu --labels y.npy", 2, "belongs to --data"),
    "data for the sphere": ("match relu --route sphere --data X.npy", 2, "no meaning"),
    "json and code": ("match relu --json --code ntk", 2, "the source too"),
    "file missing": ("kernel nowhere.npy relu", 2, "Check the path"),
    "file cut off": ("kernel cut.npy relu", 2, "np.save"),
    "file empty": ("kernel empty.npy relu", 2, "np.save"),
    "text that is no numbers": ("kernel words.csv relu", 2, "encode it as numbers"),
    "array of words": ("kernel words.npy relu", 2, "numeric array"),
    "archive without X": ("kernel other.npz relu", 2, "np.save"),
    "flat array": ("kernel flat.npy relu", 2, "two dimensions"),
    "images": ("match relu --data images.npy", 2, "two dimensions"),
    "NaN in X": ("kernel nan.npy relu", 2, "remove or impute"),
    "labels of other data": ("spectrum relu --data X.npy --labels short.npy", 2, "shape (24,)"),
    "one-hot labels": ("spectrum relu --data X.npy --labels onehot.npy", 2, "shape (24,)"),
    "class of one point": ("spectrum relu --data X.npy --labels lonely.npy", 2, "Merge small classes"),
    "labels missing": ("learn relu --data X.npy", 2, "--labels"),
    "damaged twin": ("kernel X.npy --twin cut.json", 2, "--save"),
    "twin of another kind": ("kernel X.npy --twin other.json", 2, "'twin'"),
    "output exists": ("kernel X.npy relu -o kept.npy", 2, "--force"),
    "saved twin exists": ("match relu --save kept.json", 2, "--force"),
    "output is a folder": ("kernel X.npy relu -o folder", 2, ".npy"),
    "no such folder": ("kernel X.npy relu -o nowhere/K.npy", 2, "does not exist"),
    "unknown picture format": ("spectrum relu -p 50 --plot a.bmp", 2, ".svg"),
    "mixture too small": ("spectrum relu -p 4", 2, "16"),
    "p with data": ("spectrum relu -p 40 --data X.npy", 2, "columns"),
    "suffix of another kind": ("kernel X.npy relu -o K.txt", 2, "written as .npy"),
    "standardise without data": ("spectrum relu --standardise", 2, "belongs to --data"),
    "huge numbers": ("kernel huge.npy relu", 2, "scale the inputs down"),
    "one norm": ("match tanh --norms 1", 2, "--norms"),
    "tolerance of a mixture": ("match relu --route papers --tol 0.1", 2, "belongs to --route one-layer"),
    "a tolerance that is out of reach": ("match relu --tol 1e-14", 1, "tol"),
    "training rows with other features": ("kernel X.npy relu --against narrow.npy", 2, "features"),
    "variance of a twin": ("kernel X.npy --twin kept.json -s 0.1", 2, "--twin says"),
    "kernel of a twin": ("kernel X.npy --twin kept.json -k ntk", 2, "--twin says"),
    "a range that falls": ("learn relu -n 5000:200", 2, "low:high"),
    "two networks": ("kernel X.npy relu --twin kept.json", 2, "name one network"),
    "a page that exists": ("explore -o kept.json", 2, "--force"),
    "a folder of the page": ("explore -o nowhere/x.html", 2, "does not exist"),
    "a data file that is missing": ("match relu --data nowhere/X.npy", 2, "Check the path"),
    "two ranges": ("learn relu -n 20:40 --ridge 0.1:1", 2, "one thing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(desk, mistake):
    line, code, advice = MISTAKES[mistake]
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    text = result.stderr
    assert advice in text
    assert "Traceback" not in text
    assert result.stdout == ""
    words = " ".join(text.translate(dict.fromkeys(map(ord, "─│╭╮╰╯"))).split())
    assert 20 < len(words) < 700
    unchanged(desk)


def unchanged(desk):
    assert (desk / "kept.npy").read_bytes() == EARLIER
    assert (desk / "kept.json").read_bytes() == EARLIER
    assert not list(desk.rglob("*.part"))
    assert not (desk / "kernel.npy").exists()
    assert not (desk / "nowhere").exists()


def test_a_word_for_a_number_names_the_option_and_what_it_takes():
    """The sentence is the parser's: old versions of typer say float and repeat the word, new ones say number."""
    text = CliRunner().invoke(app, ["match", "relu", "--sigma-a2", "big"], env={"COLUMNS": "400"}).stderr
    assert "Invalid value for '--sigma-a2'" in text
    assert "'big' is not a valid float" in text or "should be a valid number" in text


def test_sixty_mistakes_at_least():
    assert len(MISTAKES) >= 60


def fails_while_writing(monkeypatch, error):
    def broken(*args, **options):
        raise error

    monkeypatch.setattr(nsd, "kernels_of", broken)


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kept.npy"), 1, "free space"),
        (MemoryError(), 1, "fewer rows"),
    ],
)
def test_a_run_that_breaks_off_leaves_earlier_output_alone(desk, monkeypatch, error, code, advice):
    fails_while_writing(monkeypatch, error)
    result = CliRunner().invoke(app, ["kernel", "X.npy", "relu", "-o", "kept.npy", "--force"])
    assert result.exit_code == code
    assert advice in result.stderr
    unchanged(desk)


def test_ctrl_c_in_the_middle_of_a_real_run(desk):
    """A process of its own, interrupted once its temporary file is there."""
    np.save("many.npy", np.random.default_rng(0).standard_normal((3000, 50)) / 7.0)
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from notsodeep.cli import main; sys.argv[1:] = 'kernel many.npy silu -o kept.npy --force'.split(); main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(desk.glob(".kept.npy*.part")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said
    unchanged(desk)


def test_a_disk_that_is_too_small_is_noticed_before_the_work(desk, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    result = CliRunner().invoke(app, ["kernel", "X.npy", "relu", "-o", "kept.npy", "--force"])
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    unchanged(desk)


def test_raw_pixels_are_noticed(desk):
    result = CliRunner().invoke(app, ["kernel", "raw.npy", "relu", "-o", "K.npy"])
    assert result.exit_code == 0
    assert "--standardise" in result.stderr


def test_a_folder_that_cannot_be_written(desk, monkeypatch):
    """Root may write anywhere, so the refusal of the system is played, not provoked."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = CliRunner().invoke(app, ["match", "relu", "--save", "folder/twin.json"])
    assert result.exit_code == 2
    assert "cannot be written to" in result.stderr
    unchanged(desk)


def test_files_that_are_not_what_they_say(desk):
    """Text that is no UTF-8, an array that claims more than it holds, a header without an end."""
    (desk / "latin.csv").write_bytes("größe,art\n1,2\n".encode("latin1"))
    claim = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 5), }".ljust(117) + b"\n"
    (desk / "claim.npy").write_bytes(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + claim + bytes(80))
    (desk / "open.npy").write_bytes(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + b"{'descr': (".ljust(118))
    for name, code, words in (
        ("latin.csv", 2, "comma-separated text"),
        ("claim.npy", 1, "not enough memory"),
        ("open.npy", 2, "cannot be read as numbers"),
    ):
        done = CliRunner().invoke(app, ["kernel", name, "relu", "-o", "K.npy"])
        assert isinstance(done.exception, SystemExit), name
        assert done.exit_code == code
        assert words in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize("device", ["nope", "meta", "cuda:99", 7, []], ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda device: nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), 3, 4, 2, device=device),
        lambda device: nsd.DEQClassifier(device=device).fit(np.eye(3), [0, 1, 1]),
        lambda device: nsd.DEQFeatures(device=device).fit(np.eye(3)),
        lambda device: nsd.DEQGaussianProcess(device=device).fit(np.eye(3), [0.0, 1.0, 1.0]),
    ],
    ids=["nn.DEQ", "classifier", "features", "process"],
)
def test_devices_that_are_none_are_refused(call, device):
    with pytest.raises(nsd.errors.InvalidInputError, match="device"):
        call(device)


def test_weights_without_numbers_are_refused():
    with pytest.raises(nsd.errors.InvalidInputError, match="meta"):
        nsd.nn.fit(nsd.nn.ENN(nsd.ENN(["tanh"]), 3, 4, 2).to("meta"), (np.eye(3), [0, 1, 1]))
