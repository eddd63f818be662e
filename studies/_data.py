"""Data sets: rows and labels in memory, read from a folder of files, or downloaded by pooch and checked.

Files are looked for in ``folder``, else in the folder that NOTSODEEP_DATA names, else in the user's cache. Missing
files of MNIST and Fashion-MNIST are downloaded there. The digits of scikit-learn need no file.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import DataError, InvalidInputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows, one sample per row, with labels 0 ... K-1; ``classes`` holds their original names."""

    name: str
    X_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        for X, y in ((self.X_train, self.y_train), (self.X_test, self.y_test)):
            if X.ndim != 2 or X.shape[1] != self.X_train.shape[1] or y.shape != (len(X),) or not len(X):
                raise DataError(f"{self.name}: rows {X.shape} and labels {y.shape} do not belong together")
            if not np.isfinite(X).all() or y.min() < 0 or y.max() >= len(self.classes):
                raise DataError(f"{self.name}: rows must be finite and labels in 0 ... {len(self.classes) - 1}")

    @property
    def p(self) -> int:
        """The number of features."""
        return self.X_train.shape[1]

    def subset(self, classes: Sequence[int]) -> Dataset:
        """Keep these classes alone, in this order: they become the labels 0, 1, ..."""
        if not set(classes) <= set(self.classes) or len(set(classes)) != len(classes):
            raise InvalidInputError(f"classes must be different ones of {self.classes}, got {classes}")
        codes = np.full(len(self.classes), -1, dtype=np.int64)
        codes[[self.classes.index(c) for c in classes]] = np.arange(len(classes))
        train, test = codes[self.y_train], codes[self.y_test]
        X, X_test = self.X_train[train >= 0], self.X_test[test >= 0]
        return Dataset(self.name, X, train[train >= 0], X_test, test[test >= 0], tuple(classes))

    def first(self, train: int) -> Dataset:
        """Keep the first ``train`` training rows, and all test rows."""
        if not 1 <= train <= len(self.X_train):
            raise InvalidInputError(f"{self.name} has {len(self.X_train)} training rows, {train} were asked for")
        return replace(self, X_train=self.X_train[:train], y_train=self.y_train[:train])

    def standardised(self) -> Dataset:
        """Centre and scale to a mean of ||x||^2 of one, by the statistics of the training rows alone."""
        X, X_test = nsd.standardise(self.X_train, self.X_test)
        return replace(self, X_train=X, X_test=X_test)

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return X_train, y_train, X_test, y_test as tensors."""
        X, y, X_test, y_test = (
            torch.from_numpy(part).to(device) for part in (self.X_train, self.y_train, self.X_test, self.y_test)
        )
        return X, y, X_test, y_test


def load(name: str, folder: str | Path | None = None, classes: Sequence[int] | None = None) -> Dataset:
    """Return a data set by its name: ``mnist``, ``fashion_mnist``, ``cifar10_vgg`` or ``digits``."""
    if name not in LOADERS:
        raise InvalidInputError(f"unknown data set {name!r}; known: {', '.join(LOADERS)}")
    x_train, y_train, x_test, y_test = LOADERS[name](_data_folder(folder))
    names = tuple(range(int(max(y_train.max(), y_test.max())) + 1))
    X, X_test = (np.ascontiguousarray(x.reshape(len(x), -1), dtype=np.float32) for x in (x_train, x_test))
    whole = Dataset(name, X, y_train.astype(np.int64), X_test, y_test.astype(np.int64), names)
    return whole if classes is None else whole.subset(classes)


def _data_folder(folder: str | Path | None) -> Path:
    given = folder or os.environ.get("NOTSODEEP_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise DataError(f"there is no folder {given}; make it first, or name another by --data or NOTSODEEP_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notsodeep"
    return Path(given or cache).expanduser()


# ---- MNIST and Fashion-MNIST -----------------------------------------------------------------------------------

_MNIST = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_FASHION = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def _mnist(root: Path) -> list[NDArray[Any]]:
    return _images(root, ("mnist", "MNIST/raw", ""), _MNIST_URL, _MNIST)


def _fashion_mnist(root: Path) -> list[NDArray[Any]]:
    return _images(root, ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", ""), _FASHION_URL, _FASHION)


def _images(root: Path, places: Sequence[str], url: str, registry: dict[str, str]) -> list[NDArray[Any]]:
    """Return images with pixels in [0, 1] and labels, for training and for testing."""
    arrays = []
    for name in registry:
        candidates = [root / place / file for place in places for file in (name, name.removesuffix(".gz"))]
        local = next((path for path in candidates if path.is_file()), None)
        arrays.append(_read_idx(local or _fetch(name, root / places[0], url, registry)))
    return [arrays[0] / np.float32(255), arrays[1], arrays[2] / np.float32(255), arrays[3]]


def _fetch(name: str, folder: Path, url: str, registry: dict[str, str]) -> Path:
    """Download a file, unless an earlier run did; pooch checks its hash."""
    advice = f"Put {name} into {folder} yourself, or let --data or NOTSODEEP_DATA name a folder that has it"
    try:
        import pooch
    except ImportError:
        raise DataError(f"{name} is not in {folder}, and downloads need pooch: pip install pooch. {advice}") from None
    try:
        return Path(pooch.create(path=folder, base_url=url, registry=registry, retry_if_failed=2).fetch(name))
    except Exception as error:  # of the network, of the disk, or a wrong hash: requests has many kinds
        raise DataError(f"{name} could not be downloaded from {url} ({error}). {advice}") from error


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or not."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read or is damaged ({error}); fetch it again") from None
    header = 4 + 4 * content[3] if len(content) > 3 else 0
    shape = tuple(int(v) for v in np.frombuffer(content[4:header], dtype=">u4")) if len(content) >= header else ()
    if content[:3] != b"\0\0\x08" or not shape or len(content) != header + math.prod(shape):
        raise DataError(f"{path} is not a whole idx file of unsigned bytes; fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


# ---- others ----------------------------------------------------------------------------------------------------

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _cifar10_vgg(root: Path) -> list[NDArray[Any]]:
    """Read features of CIFAR-10 from the first cifar10_vgg*.npz; they are published nowhere."""
    found = sorted(root.glob("cifar10_vgg*.npz")) + sorted(root.glob("cifar10/cifar10_vgg*.npz"))
    if not found:
        raise DataError(
            f"no cifar10_vgg*.npz in {root}: compute the features of CIFAR-10 images with a trained VGG and save them "
            f"there with np.savez and the names {', '.join(_ARRAYS)}, or let --data or NOTSODEEP_DATA name their folder"
        )
    try:
        with found[0].open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return [archive[name] for name in _ARRAYS]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{found[0]} is damaged or lacks one of {_ARRAYS} ({error})") from None


def _digits(root: Path) -> list[NDArray[Any]]:
    """Return scikit-learn's 1,797 images with pixels in [0, 1]; the last 397, by other writers, are for testing."""
    X, y = sklearn.datasets.load_digits(return_X_y=True)
    return [X[:1400] / 16.0, y[:1400], X[1400:] / 16.0, y[1400:]]


LOADERS: dict[str, Callable[[Path], list[NDArray[Any]]]] = {
    "mnist": _mnist,
    "fashion_mnist": _fashion_mnist,
    "cifar10_vgg": _cifar10_vgg,
    "digits": _digits,
}
