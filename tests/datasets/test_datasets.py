"""Datasets: tiny files in the standard formats, and a server on this machine for downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from helpers import ulps
from notsodeep import datasets
from notsodeep.datasets.catalogue import data_folder
from notsodeep.datasets.formats import read_cifar_batch, read_idx, read_npz
from notsodeep.errors import DataError, InvalidInputError

RNG = np.random.default_rng(5)


# ---- idx -------------------------------------------------------------------------------------------------------


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
    ("loader", "place"),
    [
        (datasets.mnist, "mnist"),
        (datasets.mnist, "MNIST/raw"),
        (datasets.fashion_mnist, "fashion-mnist"),
        (datasets.fashion_mnist, ""),
    ],
)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_files_are_read_where_they_are_usually_kept(tmp_path, loader, place, suffix):
    arrays = write_mnist(tmp_path / place, suffix=suffix)
    data = loader(tmp_path, download=False)
    assert data.X_train.shape == (40, 784)
    assert data.X_train.dtype == np.float32
    np.testing.assert_allclose(
        data.X_test[7], arrays["t10k-images-idx3-ubyte"][7].ravel() / 255.0, rtol=ulps(1, np.float32)
    )
    np.testing.assert_array_equal(data.y_train, arrays["train-labels-idx1-ubyte"])


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    assert len(datasets.load("mnist").X_test) == 20
    assert data_folder("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("NOTSODEEP_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "notsodeep"


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "short", "empty"])
def test_damaged_idx_files_are_named(tmp_path, damage):
    path = tmp_path / "images.gz"
    content = gzip.compress(idx_bytes(RNG.integers(0, 256, (9, 4, 4), dtype=np.uint8)))
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 0xFF
    path.write_bytes(
        {
            "cut": content[:-9],
            "flip": bytes(flipped),
            "text": b"<html>not found</html>",
            "short": gzip.compress(idx_bytes(np.zeros((9, 4, 4), np.uint8))[:-1]),
            "empty": b"",
        }[damage]
    )
    with pytest.raises(DataError, match=r"images\.gz.*fetch it again"):
        read_idx(path)


def test_missing_files_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match="NOTSODEEP_DATA"):
        datasets.mnist(tmp_path, download=False)
    with pytest.raises(DataError, match="NOTSODEEP_DATA"):
        datasets.cifar10(tmp_path, download=False)
    with pytest.raises(DataError, match=r"np\.savez"):
        datasets.cifar10_vgg(tmp_path)
    with pytest.raises(InvalidInputError, match="known: mnist"):
        datasets.load("imagenet")


# ---- CIFAR -----------------------------------------------------------------------------------------------------


def cifar_batch(seed: int, n: int = 6, protocol: int = 2, keys: type = bytes) -> tuple[bytes, np.ndarray]:
    images = np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)
    batch = {"batch_label": "a batch", "labels": [int(v) % 10 for v in range(n)], "data": images}
    fields = {k.encode() if keys is bytes else k: v for k, v in batch.items()}
    return pickle.dumps(fields, protocol=protocol), images


def python2_batch(images: np.ndarray, labels: list[int]) -> bytes:
    """Byte for byte what Python 2 and its NumPy wrote: strings are raw bytes, numpy.core has its old name."""
    raw = images.tobytes()
    head = b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    head += b"K\x00\x85U\x01b\x87Rq\x05"
    dtype = b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"J" + len(images).to_bytes(4, "little") + b"J" + images.shape[1].to_bytes(4, "little") + b"\x86"
    body = b"(K\x01" + shape + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    numbers = b"U\x06labels](" + b"".join(b"K" + bytes([v]) for v in labels) + b"eu."
    return head + body + numbers


@pytest.mark.parametrize(("protocol", "keys"), [(2, bytes), (2, str), (3, bytes), (4, str)])
def test_cifar_batches_of_all_protocols(protocol, keys):
    content, images = cifar_batch(1, protocol=protocol, keys=keys)
    found, labels = read_cifar_batch(content, "batch")
    np.testing.assert_array_equal(found, images)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_cifar_batch_as_python_2_wrote_it():
    images = RNG.integers(0, 256, (3, 3072), dtype=np.uint8)
    found, labels = read_cifar_batch(python2_batch(images, [7, 0, 9]), "batch")
    np.testing.assert_array_equal(found, images)
    assert labels.tolist() == [7, 0, 9]


class Intruder:
    def __reduce__(self):
        return (os.mkdir, ("intruded",))


def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="which no CIFAR batch needs"):
        read_cifar_batch(pickle.dumps({"data": Intruder(), "labels": []}), "batch")
    assert not (tmp_path / "intruded").exists()


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1, 2]), pickle.dumps({"data": 3, "labels": [1]})])
def test_damaged_cifar_batches(content):
    with pytest.raises(DataError, match="not a CIFAR-10 python batch"):
        read_cifar_batch(content, "batch")
    whole, _ = cifar_batch(0)
    with pytest.raises(DataError, match="batch"):
        read_cifar_batch(whole[:-100], "batch")


def test_cifar_sizes_must_agree():
    wrong = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2, 3]}, protocol=2)
    with pytest.raises(DataError, match="do not belong together"):
        read_cifar_batch(wrong, "batch")


def test_cifar_from_folder_and_from_archive(tmp_path):
    batches = {f"data_batch_{i}": cifar_batch(i)[0] for i in range(1, 6)} | {"test_batch": cifar_batch(9)[0]}
    loose, packed = tmp_path / "loose" / "cifar-10-batches-py", tmp_path / "packed" / "cifar10"
    loose.mkdir(parents=True)
    packed.mkdir(parents=True)
    with tarfile.open(packed / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in batches.items():
            (loose / name).write_bytes(content)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    one, two = datasets.cifar10(tmp_path / "loose"), datasets.cifar10(tmp_path / "packed")
    assert one.X_train.shape == (30, 3072)
    np.testing.assert_array_equal(one.X_train, two.X_train)
    np.testing.assert_array_equal(one.y_test, two.y_test)
    (loose / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3"):
        datasets.cifar10(tmp_path / "loose")
    whole = (packed / "cifar-10-python.tar.gz").read_bytes()
    (packed / "cifar-10-python.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"damaged|lacks"):
        datasets.cifar10(tmp_path / "packed")


# ---- npz -------------------------------------------------------------------------------------------------------


def write_features(path: Path, **changes: np.ndarray) -> dict[str, np.ndarray]:
    arrays = {
        "x_train": RNG.standard_normal((12, 5)).astype(np.float16),
        "y_train": np.arange(12) % 3,
        "x_test": RNG.standard_normal((6, 5)).astype(np.float16),
        "y_test": np.arange(6) % 3,
    } | changes
    np.savez(path, **arrays)
    return arrays


def test_vgg_features(tmp_path):
    arrays = write_features(tmp_path / "cifar10_vgg16_features.npz")
    data = datasets.cifar10_vgg(tmp_path)
    np.testing.assert_array_equal(data.X_train, arrays["x_train"].astype(np.float32))
    assert data.classes == (0, 1, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.full((12, 5), np.nan)}, "NaN"),
        ({"y_train": np.arange(11)}, "do not belong together"),
        ({"x_test": np.zeros((6, 4))}, "features"),
        ({"y_test": np.arange(6) - 1}, "labels"),
        ({"y_test": np.arange(6.0)}, "whole numbers"),
        ({"x_test": np.array([Intruder()] * 6, dtype=object)}, "damaged"),
    ],
)
def test_inconsistent_features_are_refused(tmp_path, changes, words):
    write_features(tmp_path / "cifar10_vgg.npz", **changes)
    with pytest.raises(DataError, match=words):
        datasets.cifar10_vgg(tmp_path)


def test_damaged_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(5))
    with pytest.raises(DataError, match=r"lacks the arrays \['y'\]"):
        read_npz(path, ("x", "y"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="fetch it again"):
        read_npz(path, ("x",))


# ---- subsets and scaling ---------------------------------------------------------------------------------------


def test_two_classes_keep_their_order_and_rows():
    whole, pair = datasets.digits(), datasets.digits(classes=(8, 6))
    assert pair.classes == (8, 6)
    np.testing.assert_array_equal(pair.X_test[pair.y_test == 0], whole.X_test[whole.y_test == 8])
    np.testing.assert_array_equal(pair.X_train[pair.y_train == 1], whole.X_train[whole.y_train == 6])


@pytest.mark.parametrize("classes", [(6, 6), (11,), ()])
def test_impossible_subsets(classes):
    with pytest.raises(InvalidInputError, match="classes must be different"):
        datasets.digits(classes=classes)


def test_scaling_is_fitted_on_training_rows_alone():
    raw, data = datasets.digits(), datasets.digits().standardised()
    np.testing.assert_allclose(data.X_train.mean(0), 0.0, rtol=0, atol=ulps(4, np.float32))
    assert (data.X_train.astype(float) ** 2).sum(1).mean() == pytest.approx(1.0, abs=ulps(4, np.float32))
    mean, scale = raw.X_train.mean(0), ((raw.X_train - raw.X_train.mean(0)) ** 2).sum(1).mean() ** 0.5
    np.testing.assert_allclose(data.X_test, (raw.X_test - mean) / scale, rtol=0, atol=ulps(4, np.float32))
    assert np.abs(data.X_test.mean(0)).max() > 1e-3  # the test rows keep their own mean


def test_first_rows():
    data = datasets.digits().first(100)
    assert data.X_train.shape == (100, 64)
    assert len(data.X_test) == 397
    with pytest.raises(InvalidInputError, match="1400 training rows"):
        data = datasets.digits().first(1401)


# ---- downloads -------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """What it serves, how it misbehaves, and what it was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append((self.path, self.headers.get("Range")))
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(self.headers["Range"][6:-1]) if state.ranges and self.headers.get("Range") else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: state.cut_after])

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{httpd.server_address[1]}")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


CONTENT = np.random.default_rng(0).bytes(700_000)


def remote(*urls: str, digest: str = hashlib.sha256(CONTENT).hexdigest()) -> datasets.RemoteFile:
    return datasets.RemoteFile("file.gz", urls, digest)


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_download_checks_and_caches(tmp_path, server, algorithm):
    server.files["/file.gz"] = CONTENT
    file = remote(f"{server.url}/file.gz", digest=hashlib.new(algorithm, CONTENT).hexdigest())
    path = datasets.download(file, tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert datasets.download(file, tmp_path / "new" / "folder") == path
    assert len(server.asked) == 1
    assert [f.name for f in path.parent.iterdir()] == ["file.gz"]


def test_an_interrupted_download_continues(tmp_path, server):
    server.files["/file.gz"] = CONTENT
    server.cut_after = 300_000
    with pytest.raises(DataError, match="300000 of 700000 bytes; run it again"):
        datasets.download(remote(f"{server.url}/file.gz"), tmp_path)
    assert not (tmp_path / "file.gz").exists()
    server.cut_after = None
    assert datasets.download(remote(f"{server.url}/file.gz"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/file.gz", None), ("/file.gz", "bytes=300000-")]


def test_a_server_without_ranges_sends_everything_again(tmp_path, server):
    server.files["/file.gz"], server.ranges = CONTENT, False
    (tmp_path / "file.gz.part").write_bytes(CONTENT[:1000])
    assert datasets.download(remote(f"{server.url}/file.gz"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("rest", [b"wrong beginning", CONTENT, CONTENT + b"too long"])
def test_a_wrong_part_is_thrown_away(tmp_path, server, rest):
    server.files["/file.gz"] = CONTENT
    (tmp_path / "file.gz.part").write_bytes(rest)
    assert datasets.download(remote(f"{server.url}/file.gz"), tmp_path).read_bytes() == CONTENT


def test_mirrors_are_tried_in_turn(tmp_path, server):
    server.files |= {"/damaged": CONTENT[:-1] + b"?", "/good": CONTENT}
    urls = [f"{server.url}/{name}" for name in ("missing", "damaged", "good")]
    assert datasets.download(remote(*urls), tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/missing", "/damaged", "/good"]


def test_when_no_mirror_helps_every_reason_is_given(tmp_path, server):
    server.files["/damaged"] = b"something else"
    urls = [f"{server.url}/missing", f"{server.url}/damaged", "http://127.0.0.1:9/closed"]
    with pytest.raises(DataError, match=r"(?s)404.*the sha256 is.*NOTSODEEP_DATA") as caught:
        datasets.download(remote(*urls), tmp_path)
    assert all(url in str(caught.value) for url in urls)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_not_used(tmp_path):
    (tmp_path / "file.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"is damaged.*delete it"):
        datasets.download(remote(), tmp_path)
