"""A folder of compiled kernels, each under the hash of all that made it. Knows no compiler.

A file is a line of JSON (what the compiler said of registers and memory, and the hash of the rest),
then the code. Files appear whole, by renaming, so any number of processes may share a folder; of
two that make the same one the last wins, with the same bytes. A folder that cannot be used costs
compiling anew at each start, never an answer: what is wrong with it is told once, with the remedy.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relight.kernels.ptxas import Usage

LAYOUT = "1"
"""Part of every key: another layout of the file is another key."""

ANOTHER = "give another folder by --kernel-cache (of `relight kernels`: --cache)"

Tell = Callable[[str], None]


def default_folder() -> Path:
    return Path.home() / ".cache" / "relight" / "kernels"


@dataclass(frozen=True, slots=True)
class Cubin:
    """One entry point, compiled: a cubin, or PTX where that was asked for."""

    code: bytes
    usage: Usage


class _Head(msgspec.Struct, frozen=True):
    usage: Usage
    sha256: str


def key_of(*parts: str) -> str:
    """The hash of all parts and of where each ends."""
    text = hashlib.sha256()
    for part in (LAYOUT, *parts):
        text.update(f"{len(part.encode())}:".encode() + part.encode())
    return text.hexdigest()


class CubinCache:
    """Of one folder. `tell` hears of each trouble once."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self._folder = folder
        self._tell = tell
        self._told: set[str] = set()
        self._trusted = self._is_ours()

    def get(self, key: str) -> Cubin | None:
        if not self._trusted:
            return None
        path = self._path(key)
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            self._warn(
                f"{path} cannot be read ({problem.strerror}); it is compiled anew at each start: "
                f"see to its rights, or {ANOTHER}"
            )
            return None
        try:
            return _decoded(found)
        except (ValueError, msgspec.DecodeError):
            self._warn(f"{path} is damaged; it is compiled anew and replaced")
            return None

    def put(self, key: str, cubin: Cubin) -> None:
        """Keeps it if that can be; else tells why not."""
        if not self._trusted:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, _encoded(cubin))
        except OSError as problem:
            self._warn(
                f"compiled kernels cannot be kept in {self._folder} ({problem.strerror}); they are "
                "compiled anew at each start: see to its rights and to free space, or "
                f"{ANOTHER}"
            )

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.kernel"

    def _is_ours(self) -> bool:
        """Code from a folder that others may write to would run with our rights on the device."""
        try:
            found = self._folder.stat()
        except OSError:
            return True  # it is made by us, or told of when it is used
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid in (os.getuid(), 0) and not others:
            return True
        self._warn(
            f"{self._folder} belongs to or can be written by other users, so nothing is read from "
            f"it and kernels are compiled at each start: chmod go-w {self._folder}, or "
            f"{ANOTHER}"
        )
        return False

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def _encoded(cubin: Cubin) -> bytes:
    head = _Head(cubin.usage, hashlib.sha256(cubin.code).hexdigest())
    return msgspec.json.encode(head) + b"\n" + cubin.code


def _decoded(found: bytes) -> Cubin:
    line, _, code = found.partition(b"\n")
    head = msgspec.json.decode(line, type=_Head)
    if hashlib.sha256(code).hexdigest() != head.sha256:
        raise ValueError("the code is not what was written")
    return Cubin(code, head.usage)


def _write_whole(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
