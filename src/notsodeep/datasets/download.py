"""Downloads that can be interrupted: mirrors, resumption, checksums, and a file that is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from .._arguments import checked
from .._progress import track
from ..errors import DataError

_CHUNK = 1 << 18
_TIMEOUT = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, where it is found, and what it must contain."""

    name: str
    urls: tuple[str, ...]
    digest: str
    """Hexadecimal, MD5 (32 digits) or SHA-256 (64 digits)."""

    @property
    def algorithm(self) -> str:
        return {32: "md5", 64: "sha256"}[len(self.digest)]


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


@checked
def download(file: RemoteFile, folder: str | Path, progress: bool | None = None) -> Path:
    """The path of the file in ``folder``, fetched unless it is there already.

    A transfer goes to NAME.part and continues there after an interruption; the name itself appears only once the
    checksum is right. Mirrors are tried in turn.
    """
    target = Path(folder) / file.name
    if target.exists():
        if checksum(target, file.algorithm) == file.digest:
            return target
        raise DataError(f"{target} is damaged (its {file.algorithm} is not {file.digest}); delete it and try again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target.parent} cannot be made ({error.strerror}); name another folder") from None
    part = target.with_name(target.name + ".part")
    failures = []
    for url in file.urls:
        failure = _attempt(url, part, file, progress)
        if failure is None:
            os.replace(part, target)
            return target
        failures.append(f"{url}: {failure}")
    raise DataError(
        f"{file.name} could not be downloaded:\n  " + "\n  ".join(failures) + f"\nPut it into {target.parent} yourself "
        f"({file.algorithm} {file.digest}), or set NOTSODEEP_DATA to a folder that has it"
    )


def _attempt(url: str, part: Path, file: RemoteFile, progress: bool | None) -> str | None:
    """Fetch from one mirror; a wrong checksum after a resumption may be an old part's fault: once more from zero."""
    for _ in range(2):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part, progress)
        except (OSError, HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code == 416 and resumed:  # nothing left to send: the part is whole, or too long
                    failure = _verdict(part, file)
                    if failure is None:
                        return None
                    part.unlink()
                    continue
            return str(error) or type(error).__name__
        failure = _verdict(part, file)
        if failure is None:
            return None
        part.unlink()
        if not resumed:
            return failure
    return "the checksum stays wrong"


def _verdict(part: Path, file: RemoteFile) -> str | None:
    found = checksum(part, file.algorithm)
    return None if found == file.digest else f"the {file.algorithm} is {found}, expected {file.digest}"


def _transfer(url: str, part: Path, progress: bool | None) -> None:
    offset = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "notsodeep"} | ({"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        expected = int(length) if length is not None else None
        resumes = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")
        if answer.status == 206 and not resumes:
            raise OSError("the server sent another range than the one asked for")
        received = 0

        def pieces() -> Iterator[bytes]:
            while piece := answer.read(_CHUNK):
                yield piece

        with part.open("ab" if resumes else "wb") as stream:
            total = 1 if expected is None else -(-expected // _CHUNK)
            for piece in track(pieces(), total, f"fetching {part.stem}", progress):
                stream.write(piece)
                received += len(piece)
        if expected is not None and received != expected:
            raise OSError(f"the connection broke after {received} of {expected} bytes; run it again to continue")
