"""Tensors and a JSON document in one safetensors file: written atomically, checked when read, never pickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .._files import atomic
from ..errors import CheckpointError

__all__ = ["read_file", "write_file"]

_FORMAT = "notsodeep-1"


def write_file(path: str | Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write to a temporary file beside ``path``, flush it to the disk, then put it in place: whole or not at all."""
    path = Path(path)
    host = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    metadata = {"format": _FORMAT, "document": text, "sha256": _digest(host, text)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(host, metadata))
    _sync_directory(path.parent)


def read_file(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file; :class:`CheckpointError` unless every byte is as it was written."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        metadata = _metadata(content)
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(f"{path} was not written by notsodeep (format {metadata.get('format')!r})")
    text = metadata.get("document", "")
    if _digest(tensors, text) != metadata.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    return tensors, json.loads(text)


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: eight bytes of length, then a JSON header."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError("the header is cut off")
    header = json.loads(content[8 : 8 + length])
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("the header has no metadata")
    return metadata


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sync_directory(folder: Path) -> None:
    """Make the new name itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
