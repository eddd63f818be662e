"""Data sets: rows and labels in memory, and where each lives, on the disk and on the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arguments import checked, shown
from .._arrays import as_floats, as_rows
from ..errors import DataError, InvalidInputError
from ..mixtures.standardise import Standardiser
from .download import RemoteFile, download
from .formats import CIFAR_TEST, read_cifar_folder, read_cifar_tar, read_idx, read_npz

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test rows, one sample per row, with labels 0 ... K-1.

    >>> import notsodeep as nsd
    >>> nsd.datasets.digits(classes=(6, 8)).standardised()
    Dataset('digits', train=277 x 64, test=78, classes=(6, 8), standardised)
    """

    name: str
    X_train: Rows
    y_train: Labels
    X_test: Rows
    y_test: Labels
    classes: tuple[int, ...]
    """The original names of the classes 0 ... K-1."""
    standardiser: Standardiser | None = None
    """What :meth:`standardised` fitted, on the training rows."""

    def __post_init__(self) -> None:
        for part, X, y in (("training", self.X_train, self.y_train), ("test", self.X_test, self.y_test)):
            try:
                rows = as_rows(X, f"the array of {part} rows", features=self.X_train.shape[-1])
            except InvalidInputError as error:
                raise DataError(f"{self.name}: {error}; fetch the file again") from None
            if y.shape != (len(rows),):
                raise DataError(f"{self.name}: {len(rows)} {part} rows and labels {y.shape} do not belong together")
            if y.min() < 0 or y.max() >= len(self.classes):
                raise DataError(f"{self.name}: the {part} labels are not all in 0 ... {len(self.classes) - 1}")

    @property
    def p(self) -> int:
        """The number of features."""
        return self.X_train.shape[1]

    def subset(self, classes: Sequence[int]) -> Dataset:
        """Only these classes, in this order: they become the labels 0, 1, ..."""
        chosen = tuple(int(c) for c in as_floats(classes, "classes"))
        unknown = [c for c in chosen if c not in self.classes]
        if unknown or not chosen or len(set(chosen)) != len(chosen):
            raise InvalidInputError(f"classes must be different ones of {self.classes}, got {shown(classes)}")
        codes = np.full(len(self.classes), -1, dtype=np.int64)
        codes[[self.classes.index(c) for c in chosen]] = np.arange(len(chosen))
        train, test = codes[self.y_train], codes[self.y_test]
        return replace(
            self,
            X_train=self.X_train[train >= 0],
            y_train=train[train >= 0],
            X_test=self.X_test[test >= 0],
            y_test=test[test >= 0],
            classes=chosen,
        )

    def first(self, train: int) -> Dataset:
        """The first ``train`` training rows; the test rows stay."""
        if not 1 <= train <= len(self.X_train):
            raise InvalidInputError(f"{self.name} has {len(self.X_train)} training rows, {train} were asked for")
        return replace(self, X_train=self.X_train[:train], y_train=self.y_train[:train])

    def standardised(self) -> Dataset:
        """Centred and scaled so that the mean of ||x||^2 is one, by the statistics of the training rows alone."""
        fitted = Standardiser().fit(self.X_train)
        return replace(
            self,
            X_train=fitted.transform(self.X_train),
            X_test=fitted.transform(self.X_test),
            standardiser=fitted,
        )

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X_train, y_train, X_test, y_test for torch."""
        X, y, X_test, y_test = (
            torch.from_numpy(part).to(device) for part in (self.X_train, self.y_train, self.X_test, self.y_test)
        )
        return X, y, X_test, y_test

    def __repr__(self) -> str:
        sizes = f"train={len(self.X_train)} x {self.p}, test={len(self.X_test)}"
        done = ", standardised" if self.standardiser is not None else ""
        return f"Dataset({self.name!r}, {sizes}, classes={self.classes}{done})"


# ---- where they live -----------------------------------------------------------------------------------------

Classes = Sequence[int] | None

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNIST = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_MNIST_HOMES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
_FASHION_HOMES = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_CIFAR = RemoteFile(
    "cifar-10-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    "c58f30108f718f92721af3d95e74349a",
)
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def data_folder(folder: str | Path | None = None) -> Path:
    """``folder``, else the environment's NOTSODEEP_DATA, else notsodeep in the user's cache."""
    if folder is not None:
        return Path(folder).expanduser()
    if os.environ.get("NOTSODEEP_DATA"):
        return Path(os.environ["NOTSODEEP_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notsodeep"


@checked
def mnist(folder: str | Path | None = None, classes: Classes = None, download: bool = True) -> Dataset:
    """MNIST, 60,000 + 10,000 images of 784 pixels in [0, 1], from the four idx files.

    They are looked for in ``folder`` (see :func:`data_folder`), its subfolders mnist and MNIST/raw; what is missing
    is downloaded there.
    """
    return _idx("mnist", ("mnist", "MNIST/raw"), _MNIST_HOMES, _MNIST, folder, classes, download)


@checked
def fashion_mnist(folder: str | Path | None = None, classes: Classes = None, download: bool = True) -> Dataset:
    """Fashion-MNIST, 60,000 + 10,000 images of 784 pixels in [0, 1], from the four idx files."""
    places = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw")
    return _idx("fashion_mnist", places, _FASHION_HOMES, _FASHION, folder, classes, download)


@checked
def cifar10(folder: str | Path | None = None, classes: Classes = None, download: bool = True) -> Dataset:
    """CIFAR-10, 50,000 + 10,000 images of 3,072 numbers in [0, 1], from the python batches or their archive."""
    root = data_folder(folder)
    places = [root / part for part in ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "")]
    for place in places:
        if (place / CIFAR_TEST).is_file():
            return _images("cifar10", read_cifar_folder(place), classes)
        if (place / _CIFAR.name).is_file():
            return _images("cifar10", read_cifar_tar(place / _CIFAR.name), classes)
    return _images("cifar10", read_cifar_tar(_fetch(_CIFAR, root / "cifar10", download)), classes)


@checked
def cifar10_vgg(folder: str | Path | None = None, classes: Classes = None) -> Dataset:
    """CIFAR-10 through the convolutional layers of a VGG, from an npz file with x_train, y_train, x_test, y_test.

    Any cifar10_vgg*.npz in ``folder`` or its subfolder cifar10 serves; such features are published nowhere, so they
    are never downloaded.
    """
    root = data_folder(folder)
    found = sorted(root.glob("cifar10_vgg*.npz")) + sorted(root.glob("cifar10/cifar10_vgg*.npz"))
    if not found:
        raise DataError(
            f"no cifar10_vgg*.npz in {root}: compute the features of CIFAR-10 images with a trained VGG, save them as "
            f"np.savez('cifar10_vgg16_features.npz', {', '.join(f'{a}=...' for a in _ARRAYS)}) there, or set "
            "NOTSODEEP_DATA to the folder that has them"
        )
    return _dataset("cifar10_vgg", read_npz(found[0], _ARRAYS), classes)


@checked
def digits(folder: str | Path | None = None, classes: Classes = None) -> Dataset:
    """scikit-learn's 1,797 images of 8 x 8 pixels, in [0, 1]: nothing to download.

    The first 1,400 are for training; the rest, by other writers, for testing. ``folder`` is not used.
    """
    X, y = sklearn.datasets.load_digits(return_X_y=True)
    return _dataset("digits", [X[:1400] / 16.0, y[:1400], X[1400:] / 16.0, y[1400:]], classes)


_LOADERS: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar10_vgg": cifar10_vgg,
    "digits": digits,
}


def names() -> tuple[str, ...]:
    """What :func:`load` knows."""
    return tuple(_LOADERS)


@checked
def load(name: str, folder: str | Path | None = None, classes: Classes = None) -> Dataset:
    """A data set by its name."""
    if name not in _LOADERS:
        raise InvalidInputError(f"unknown data set {name!r}; known: {', '.join(_LOADERS)}")
    return _LOADERS[name](folder, classes)


# ---- assembly ------------------------------------------------------------------------------------------------


def _idx(
    name: str,
    places: Sequence[str],
    homes: Sequence[str],
    digests: Sequence[str],
    folder: str | Path | None,
    classes: Classes,
    allowed: bool,
) -> Dataset:
    root = data_folder(folder)
    arrays = []
    for stem, digest in zip(_IDX, digests, strict=True):
        candidates = [root / place / (stem + end) for place in (*places, "") for end in (".gz", "")]
        path = next((c for c in candidates if os.path.isfile(c)), None)  # c.is_file() raises where a name is too long
        if path is None:
            remote = RemoteFile(f"{stem}.gz", tuple(f"{home}{stem}.gz" for home in homes), digest)
            path = _fetch(remote, root / places[0], allowed)
        arrays.append(read_idx(path))
    return _images(name, arrays, classes)


def _fetch(remote: RemoteFile, folder: Path, allowed: bool) -> Path:
    if not allowed:
        raise DataError(
            f"{remote.name} is not in {folder}; allow the download, put the file there, or set NOTSODEEP_DATA to the "
            "folder that has it"
        )
    return download(remote, folder)


def _images(name: str, arrays: Sequence[NDArray[Any]], classes: Classes) -> Dataset:
    x_train, y_train, x_test, y_test = arrays
    flat = [x.reshape(len(x), -1).astype(np.float32) / 255.0 for x in (x_train, x_test)]
    return _dataset(name, [flat[0], y_train, flat[1], y_test], classes)


def _dataset(name: str, arrays: Sequence[NDArray[Any]], classes: Classes) -> Dataset:
    x_train, y_train, x_test, y_test = arrays
    if any(not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 for y in (y_train, y_test)):
        raise DataError(f"{name}: labels must be whole numbers, one per row")
    count = int(max(y_train.max(initial=0), y_test.max(initial=0))) + 1
    whole = Dataset(
        name,
        np.ascontiguousarray(x_train, dtype=np.float32),
        y_train.astype(np.int64),
        np.ascontiguousarray(x_test, dtype=np.float32),
        y_test.astype(np.int64),
        tuple(range(count)),
    )
    return whole if classes is None else whole.subset(classes)
