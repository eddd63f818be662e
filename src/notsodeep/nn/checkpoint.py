"""What is kept of networks: saved models, and training runs that can be resumed.

Tensors and a JSON document lie in one safetensors file: written atomically, checked when read, never pickled. A run
keeps one file per epoch, the last two; a damaged one is refused and the one before it used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import checked
from .._files import lock_folder, remove_parts, write_with
from ..errors import CheckpointError, NotSoDeepError, warn
from ..networks import DEQ as DEQSpec
from ..networks import ENN as ENNSpec
from .deq import DEQ
from .enn import ENN
from .model import Model

_NAME = re.compile(r"epoch-(\d{6})\.safetensors")
_KEPT = 2
WEIGHTS = "initial weights"  # the fingerprint of what a run began with


class Checkpoints:
    """The checkpoints of one training run in a folder of their own.

    ``run`` describes the run; a checkpoint of another one is refused, since continuing it would mix two experiments.
    """

    def __init__(self, folder: str | Path, run: Mapping[str, Any]) -> None:
        self.folder, self.run = Path(folder), dict(run)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The folder, made if need be, for this run alone; what a killed run was writing is removed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise CheckpointError(f"{self.folder} is a file; checkpoints need a folder of their own") from None
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be made: {error.strerror or error}") from None
        with lock_folder(self.folder) as ours:
            if not ours:
                raise CheckpointError(
                    f"another fit is writing to {self.folder}. Wait until it is done, or give this one another folder"
                )
            remove_parts(self.folder, "epoch-")
            yield

    def save(self, epoch: int, model: nn.Module, optimiser: Optimizer, history: list[dict[str, Any]]) -> None:
        """Write the state after ``epoch`` epochs, then drop all but the last two."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        state, groups = _flatten(optimiser.state_dict())
        tensors |= state
        tensors["generator"] = torch.get_rng_state()
        document = {"kind": "checkpoint", "epoch": epoch, "run": self.run, "history": history, "groups": groups}
        write_file(self._path(epoch), tensors, document)
        for old in self._epochs()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def restore(self, model: nn.Module, optimiser: Optimizer) -> tuple[int, list[dict[str, Any]]]:
        """Load the latest sound checkpoint; (epochs done, history), or (0, []) if there is none."""
        for epoch in reversed(self._epochs()):
            try:
                tensors, document = read_file(self._path(epoch))
            except CheckpointError as error:
                warn(f"{error}; falling back on the checkpoint before it")
                continue
            weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
            self._check(document.get("run", {}), weights, epoch)
            try:
                model.load_state_dict(weights)
                optimiser.load_state_dict(_unflatten(tensors, document["groups"]))
            except (RuntimeError, ValueError) as error:
                raise CheckpointError(f"{self._path(epoch)} does not fit this model: {error}") from error
            torch.set_rng_state(tensors["generator"])
            return epoch, list(document["history"])
        return 0, []

    def _check(self, found: Mapping[str, Any], weights: Mapping[str, Tensor], epoch: int) -> None:
        if WEIGHTS in found and fingerprint(weights) == self.run.get(WEIGHTS):
            self.run[WEIGHTS] = found[WEIGHTS]  # a model that has trained this far goes on
        differing = sorted(k for k in self.run.keys() | found.keys() if self.run.get(k) != found.get(k))
        if differing:
            told = "; ".join(f"{k}: {found.get(k, 'not recorded')} there, {self.run.get(k)} here" for k in differing)
            raise CheckpointError(
                f"{self._path(epoch)} belongs to another run ({told}). Give this run a folder of its own, or "
                "resume=False to start over"
            )

    def clear(self) -> None:
        """Remove every checkpoint of the folder."""
        for epoch in self._epochs():
            self._path(epoch).unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06d}.safetensors"

    def _epochs(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for file in self.folder.iterdir() if (match := _NAME.fullmatch(file.name)))


def _flatten(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors and a JSON document of everything else."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    return tensors, {"param_groups": state["param_groups"], "numbers": numbers}


def _unflatten(tensors: Mapping[str, Tensor], groups: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(i): dict(entries) for i, entries in groups["numbers"].items()}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": groups["param_groups"]}


# ---- networks -------------------------------------------------------------------------------------------------


@checked
def save(model: Model, path: str | Path) -> None:
    """Write a network to one safetensors file, atomically."""
    write_file(path, model.state_dict(), {"kind": "model", **model.config()})


@checked
def load(path: str | Path, device: torch.device | str | None = None) -> DEQ | ENN:
    """Read a network back; a damaged file or one of another kind raises :class:`CheckpointError`."""
    tensors, document = read_file(path)
    if document.get("kind") != "model":
        raise CheckpointError(
            f"{path} holds a {document.get('kind')}, not a network; training resumes from it with fit"
        )
    try:
        model = build(document, dtype=tensors["readout"].dtype, device=device)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError, NotSoDeepError) as error:
        raise CheckpointError(f"{path} does not describe a network: {error}") from error
    return model


def build(config: dict[str, Any], seed: int = 0, dtype: torch.dtype | None = None, device: Any = None) -> DEQ | ENN:
    """A network from what :meth:`Model.config` returned, with fresh weights."""
    sizes = (config["in_features"], config["width"], config["out_features"])
    shared: dict[str, Any] = {name: config[name] for name in ("train", "bias")}
    shared |= {"seed": seed, "dtype": dtype, "device": device}
    if config["model"] == "DEQ":
        names = ("solver", "tol", "max_steps", "on_failure", "keep_contraction")
        shared |= {name: config[name] for name in names} | {"bfloat16_start": config.get("bfloat16_start", False)}
        return DEQ(DEQSpec.from_dict(config["spec"]), *sizes, **shared)
    shared |= {name: config[name] for name in ("learning_rates", "normalise")}
    return ENN(ENNSpec.from_dict(config["spec"]), *sizes, **shared)


# ---- files ----------------------------------------------------------------------------------------------------


_FORMAT = "notsodeep-1"


def write_file(path: str | Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write to a temporary file beside ``path``, flush it to the disk, then put it in place: whole or not at all."""
    path = Path(path)
    host = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    metadata = {"format": _FORMAT, "document": text, "sha256": _digest(host, text)}
    write_with(path, lambda temporary: temporary.write_bytes(safetensors.torch.save(host, metadata)))


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


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Sixteen digits that tell one set of numbers from another, on whatever device they are."""
    return _digest({name: tensor.detach().to("cpu") for name, tensor in tensors.items()}, "")[:16]


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
