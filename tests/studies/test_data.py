"""Data sets of the studies: tiny files in the standard formats, and a server on this machine for downloads."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from helpers import ulps
from notsodeep.errors import DataError, InvalidInputError
from studies import _data
from studies._data import load

RNG = np.random.default_rng(5)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def write_mnist(folder: Path, train: int = 40, test: int = 20, suffix: str = ".gz") -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": (np.arange(train) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": (np.arange(test) % 10).astype(np.uint8),
    }
    for name, array in arrays.items():
        content = idx_bytes(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    return arrays


@pytest.mark.parametrize(
    ("name", "place"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion_mnist", "fashion-mnist")]
)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_files_are_read_where_they_are_usually_kept(tmp_path, name, place, suffix):
    arrays = write_mnist(tmp_path / place, suffix=suffix)
    data = load(name, tmp_path)
    assert data.X_train.shape == (40, 784)
    assert data.X_train.dtype == np.float32
    pixels = arrays["t10k-images-idx3-ubyte"][7].ravel() / 255.0
    np.testing.assert_allclose(data.X_test[7], pixels, rtol=ulps(1, np.float32))
    np.testing.assert_array_equal(data.y_train, arrays["train-labels-idx1-ubyte"])


def test_a_folder_that_does_not_exist_is_refused_and_not_made(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        load("mnist", tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    assert len(load("mnist").X_test) == 20


@pytest.mark.parametrize("damage", ["cut", "text", "short", "empty"])
def test_damaged_files_are_named(tmp_path, damage):
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    damaged = {"cut": whole[:-9], "text": b"<html>not found</html>", "empty": b""}
    path.write_bytes(damaged.get(damage, gzip.compress(gzip.decompress(whole)[:-1])))
    with pytest.raises(DataError, match=r"train-images.*fetch it again"):
        load("mnist", tmp_path)


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """Serves the folder ``there``."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "there"))
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}/"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.slow
def test_downloads_are_checked_and_kept(tmp_path, server, monkeypatch):
    arrays = write_mnist(tmp_path / "there")
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    hashes = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (tmp_path / "there").iterdir()}
    monkeypatch.setattr(_data, "_MNIST_URL", server)
    with pytest.raises(DataError, match=r"(?s)hash.*NOTSODEEP_DATA"):
        load("mnist", tmp_path / "here")
    monkeypatch.setattr(_data, "_MNIST", {name: hashes[name] for name in _data._MNIST})
    data = load("mnist", tmp_path / "here")
    np.testing.assert_array_equal(data.y_test, arrays["t10k-labels-idx1-ubyte"])
    monkeypatch.setattr(_data, "_MNIST_URL", "http://127.0.0.1:9/")  # nobody listens there
    np.testing.assert_array_equal(load("mnist", tmp_path / "here").X_train, data.X_train)
    with pytest.raises(DataError, match="could not be downloaded"):
        load("mnist", tmp_path / "elsewhere")


def test_names_and_features(tmp_path):
    with pytest.raises(InvalidInputError, match="known: mnist"):
        load("imagenet")
    with pytest.raises(DataError, match=r"np\.savez"):
        load("cifar10_vgg", tmp_path)
    arrays = {"x_train": np.ones((6, 5)), "y_train": np.arange(6) % 3, "x_test": np.ones((3, 5)), "y_test": [0, 1, 2]}
    np.savez(tmp_path / "cifar10_vgg16.npz", **arrays)
    assert load("cifar10_vgg", tmp_path).classes == (0, 1, 2)
    np.savez(tmp_path / "cifar10_vgg16.npz", **{**arrays, "y_train": np.arange(5)})
    with pytest.raises(DataError, match="do not belong together"):
        load("cifar10_vgg", tmp_path)


def test_two_classes_keep_their_order_and_rows():
    whole, pair = load("digits"), load("digits", classes=(8, 6))
    assert pair.classes == (8, 6)
    np.testing.assert_array_equal(pair.X_test[pair.y_test == 0], whole.X_test[whole.y_test == 8])
    np.testing.assert_array_equal(pair.X_train[pair.y_train == 1], whole.X_train[whole.y_train == 6])
    with pytest.raises(InvalidInputError, match="classes must be different"):
        whole.subset((6, 6))


def test_scaling_is_fitted_on_training_rows_alone():
    raw, data = load("digits"), load("digits").standardised()
    assert (data.X_train.astype(float) ** 2).sum(1).mean() == pytest.approx(1.0, abs=ulps(4, np.float32))
    mean, scale = raw.X_train.mean(0), ((raw.X_train - raw.X_train.mean(0)) ** 2).sum(1).mean() ** 0.5
    np.testing.assert_allclose(data.X_test, (raw.X_test - mean) / scale, rtol=0, atol=ulps(4, np.float32))
    assert len(data.first(100).X_train) == 100
    with pytest.raises(InvalidInputError, match="1400 training rows"):
        data.first(1401)
