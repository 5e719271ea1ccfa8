"""Looks at a process of this machine: who listens on a port, with what command line, how much
memory it has, which test switches stand in its environment. Knows no protocol.

Only what the kernel shows to this user can be seen; the rest is None or empty.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from relight.bench.machine import PROC, kilobytes

_SWITCH = re.compile(r"_(SIMULATED?|FAULTS?|MOCK|FAKE)(_|$)|_(DEBUG|FORCED?)$")
LISTENING = "0A"


def is_local(host: str) -> bool:
    """Whether a server of that name runs on this machine: only then its processes are here."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(str(address).startswith("127.") or address == "::1" for address in found)


def listener(port: int) -> int | None:
    """The process that listens on a port. Of several with the same socket, the eldest."""
    inodes = set(_listening(port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    owners = [pid for pid in _pids() if wanted & _open_files(pid)]
    return min(owners, default=None)


def _listening(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for path in (PROC / str(pid) / "fd").iterdir():
            # A file may be closed meanwhile; the listing's own one is.
            with suppress(OSError):
                found.add(os.readlink(path))
    return found


def argv(pid: int) -> list[str]:
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0")]


def switches(pid: int) -> list[str]:
    """Names, never values, of variables that look like a left-over test switch."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return []
    names = {part.partition(b"=")[0].decode("utf-8", "replace") for part in data.split(b"\0")}
    return sorted(name for name in names if _SWITCH.search(name))


def family(pid: int) -> list[int]:
    """A process and all that descend from it: engines of a server are its children."""
    parents: dict[int, list[int]] = {}
    for one in _pids():
        parents.setdefault(_parent(one), []).append(one)
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else -1


def is_zombie(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] == "Z"


def _stat(pid: int) -> list[str]:
    """State, parent, … : the fields after the name, which may hold blanks and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def age_s(pid: int) -> float | None:
    """Since the process began; the kernel counts in ticks from when the machine did."""
    stat = _stat(pid)
    try:
        running = float((PROC / "uptime").read_text(encoding="ascii").split()[0])
        return running - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident(pid: int) -> int | None:
    return kilobytes(PROC / str(pid) / "status", "VmRSS")


def swapped(pid: int) -> int | None:
    return kilobytes(PROC / str(pid) / "status", "VmSwap")


def model_folder(pid: int) -> Path | None:
    """A model's folder that stands in the command line: the first that holds a config.json."""
    try:
        base = Path(os.readlink(PROC / str(pid) / "cwd"))
    except OSError:
        return None
    for argument in argv(pid)[1:]:
        path = base / argument.rpartition("=")[2]
        try:
            if path != base and (path / "config.json").is_file():
                return path
        except (OSError, ValueError):
            continue
    return None
