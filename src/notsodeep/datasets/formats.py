"""Readers of idx, CIFAR batches and npz: every size is checked, and nothing in a file is ever executed."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

_ADVICE = "delete it and fetch it again"
CIFAR_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR_TEST = "test_batch"
_PIXELS = 3072


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, gzipped or not."""
    content = _contents(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of unsigned bytes (it starts with {content[:4]!r}); {_ADVICE}")
    rank = content[3]
    header = 4 + 4 * rank
    shape = tuple(int(v) for v in np.frombuffer(content[4:header], dtype=">u4")) if len(content) >= header else ()
    expected = header + math.prod(shape)
    if len(shape) != rank or not rank or len(content) != expected:
        raise DataError(f"{path} is damaged: {len(content)} bytes where its header announces {expected}; {_ADVICE}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _contents(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read or is damaged ({error}); {_ADVICE}") from None


def read_npz(path: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    """Named arrays of an npz file; arrays of Python objects are refused."""
    try:
        # np.load leaves a damaged file open; this closes it
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise DataError(f"{path} lacks the arrays {missing}; it must hold {list(names)}")
            return [archive[name] for name in names]
    except DataError:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read or is damaged ({error}); {_ADVICE}") from None


# ---- CIFAR batches -------------------------------------------------------------------------------------------


class _Bytes:
    """Stands in for numpy.ndarray while a batch is read: keeps raw bytes, runs nothing."""

    value: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Type) or dtype.code not in ("u1", "|u1") or fortran or not isinstance(raw, bytes):
            raise ValueError("an array of unsigned bytes was expected")
        if not isinstance(shape, tuple) or math.prod(shape) != len(raw):
            raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
        self.value = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("only latin1 text is expected")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Knows arrays of bytes and plain containers; any other name in the file is refused."""

    _KNOWN = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Bytes(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Bytes(),
        ("numpy", "ndarray"): _Bytes,
        ("numpy", "dtype"): _Type,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which no CIFAR batch needs")
        return self._KNOWN[module, name]


def read_cifar_batch(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3072) and labels of one CIFAR-10 python batch."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = fields["data"].value, np.array(fields["labels"], dtype=np.int64)
    except Exception as error:  # a damaged pickle can fail in any way; none of them may pass
        raise DataError(f"{name} is not a CIFAR-10 python batch or is damaged ({error}); {_ADVICE}") from None
    if images.ndim != 2 or images.shape[1] != _PIXELS or labels.shape != images.shape[:1]:
        raise DataError(f"{name}: images {images.shape} and labels {labels.shape} do not belong together; {_ADVICE}")
    return images, labels


def read_cifar_folder(folder: Path) -> list[NDArray[Any]]:
    """x_train, y_train, x_test, y_test from the batch files in a folder."""

    def content(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name} cannot be read ({error.strerror}); fetch the six batch files") from None

    return _join({name: read_cifar_batch(content(name), str(folder / name)) for name in (*CIFAR_TRAIN, CIFAR_TEST)})


def read_cifar_tar(path: Path) -> list[NDArray[Any]]:
    """The same from the archive as it is published; nothing is unpacked to the disk."""
    found = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in (*CIFAR_TRAIN, CIFAR_TEST):
                    stream = archive.extractfile(member)
                    found[name] = read_cifar_batch(stream.read() if stream else b"", f"{path}:{name}")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} cannot be read or is damaged ({error}); {_ADVICE}") from None
    missing = [name for name in (*CIFAR_TRAIN, CIFAR_TEST) if name not in found]
    if missing:
        raise DataError(f"{path} lacks {missing}; {_ADVICE}")
    return _join(found)


def _join(batches: dict[str, tuple[NDArray[Any], NDArray[Any]]]) -> list[NDArray[Any]]:
    images, labels = zip(*(batches[name] for name in CIFAR_TRAIN), strict=True)
    return [np.concatenate(images), np.concatenate(labels), *batches[CIFAR_TEST]]
