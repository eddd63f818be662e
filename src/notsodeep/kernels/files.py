"""Kernel matrices in files, block by block: an interruption costs one block, and processes may share the work."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import KINDS, shown
from .._files import open_matrix
from ..errors import CheckpointError, InvalidInputError
from ..networks import Convolutional, Kernel, Network
from ._limits import LIMITS
from .convolution import announced
from .tiles import tiles_of

Fill = Callable[[slice, slice, dict[Kernel, Tensor]], None]


def is_path(out: Any) -> bool:
    """Whether ``out=`` names a file."""
    return isinstance(out, str | os.PathLike)


def fill_files(
    fill: Fill,
    network: Network | Convolutional,
    out: Mapping[Kernel, Any],
    kernels: Sequence[Kernel],
    shape: tuple[int, int],
    like: Tensor,
    symmetric: bool,
    progress: bool | None,
) -> dict[Kernel, Tensor]:
    """Let ``fill`` compute the blocks that have NaN in the files ``out``, in memory like ``like``.

    What a block is depends on the network alone, so that it has the same bits whoever computes it. The order is random:
    several processes rarely meet. One block that is there is computed again, to see that the file belongs to the rows.
    """
    files = _opened(out, dict.fromkeys(kernels), shape, str(like.dtype).removeprefix("torch."))
    target = {kernel: torch.from_numpy(file) for kernel, file in files.items()}

    def lacks(rows: slice, columns: slice) -> bool:
        parts = (t[columns, rows] if symmetric else t[rows, columns] for t in target.values())  # what is written last
        return any(bool(part.isnan().any()) for part in parts)

    def computed(rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        memory = {k: like.new_empty(t[rows, columns].shape, dtype=t.dtype) for k, t in target.items()}
        fill(rows, columns, memory)
        return memory

    size = LIMITS.file_block
    if network.image is not None:  # on a GPU as blocks of fields
        size = size * (512 if like.is_cuda else 1) // (network.positions * len(network.averages.shifts))
    side = max(1, math.isqrt(size))
    blocks = list(tiles_of(shape, (side, side), symmetric))
    random.SystemRandom().shuffle(blocks)
    missing = [block for block in blocks if lacks(*block)]
    if len(missing) < len(blocks):
        rows, columns = next(block for block in blocks if not lacks(*block))
        for kernel, values in computed(rows, columns).items():
            gap = (target[kernel][rows, columns].to(values) - values).abs().max()
            if not gap <= 4.0 * math.sqrt(torch.finfo(values.dtype).eps) * values.abs().max():
                raise CheckpointError(
                    f"{out[kernel]} holds something else than the {kernel} of {network!r} on these rows; remove the "
                    "file or name another one"
                )
    for rows, columns in announced(network, missing, len(missing), progress):
        if lacks(rows, columns):  # still
            for kernel, values in computed(rows, columns).items():
                target[kernel][rows, columns] = values
                if symmetric:
                    target[kernel][columns, rows] = values.T
    for file in files.values():
        file.flush()
    return target


def _opened(
    out: Mapping[Kernel, Any], kernels: Mapping[Kernel, None], shape: tuple[int, int], dtype: str
) -> dict[Kernel, np.memmap]:
    if not all(KINDS[Path].test(out[k]) for k in kernels if k in out and is_path(out[k])):
        raise InvalidInputError(f"out= must name files as the file system can, got {shown(out)}")
    paths = {k: Path(os.path.realpath(out[k])) for k in kernels if k in out and is_path(out[k])}
    if len(set(paths.values())) < len(kernels):
        raise InvalidInputError(f"out= must name a file of its own for each of {tuple(kernels)}, got {out!r:.200}")
    return {k: open_matrix(path, shape, dtype) for k, path in paths.items()}
