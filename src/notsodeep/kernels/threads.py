"""How many threads compute: of thousands of small operations, more would mostly wait for each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with this thread alone: of thousands of small operations, more would mostly wait for each other."""
    threads = torch.get_num_threads()
    if threads > 1:
        stay_alone(threads)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def stay_alone(threads: int) -> None:
    """Let this thread compute alone, and others with so many threads as before.

    The number belongs to a thread, but a thread that torch has not seen begins with what any other has set last. So one
    more thread sets it back at once.
    """
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(threads,))
    other.start()
    other.join()
