"""What can be learned about a server beside its figures: version, settings, command line, hashes of
its model. Knows no load.

Asked of the server by the routes of several dialects, and of the process if it runs on this
machine. A route that is not there is no error; what nobody tells is null.
"""

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from relight.bench import http, process, redact
from relight.bench.http import Target

MAX_SETTINGS = 64 * 1024
"""Bytes of settings that a result stores; of more only the hash."""
MAX_HEADER = 64 * 1024**2
VERSION_ROUTES = ("/version", "/get_server_info", "/server_info", "/props")
SETTINGS_ROUTES = ("/server_info?config_format=json", "/get_server_info", "/props")
PATIENCE_S = 3.0
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`weights_hash` is of names, sizes and headers of the weight files, not of the weights: those
    would be read for minutes. `overrides` are names of variables that look like test switches."""

    version: str | None = None
    argv: list[str] = []
    settings: Any = None
    settings_hash: str | None = None
    config_hash: str | None = None
    weights_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    overrides: list[str] = []
    pid: int | None = None


async def about(to: Target) -> About:
    routes = dict.fromkeys((*VERSION_ROUTES, *SETTINGS_ROUTES))
    answers = await asyncio.gather(*(_json(to, route) for route in routes))
    told = dict(zip(routes, answers, strict=True))
    settings = next((t for route in SETTINGS_ROUTES if (t := told[route])), None)
    clean = redact.settings(settings)
    encoded = msgspec.json.encode(clean, order="sorted")
    known = About(
        version=_version(told.values()),
        settings=clean if settings and len(encoded) <= MAX_SETTINGS else None,
        settings_hash=_hash(encoded) if settings else None,
        template_hash=_template_told(settings),
    )
    pid = process.listener(to.port) if process.is_local(to.host) else None
    return _of_process(known, pid) if pid is not None else known


async def _json(to: Target, route: str) -> dict[str, Any] | None:
    data = await http.get(to, route, PATIENCE_S)
    try:
        told = msgspec.json.decode(data or b"null")
    except msgspec.DecodeError:
        return None
    return told if isinstance(told, dict) else None


def _version(told: Iterable[dict[str, Any] | None]) -> str | None:
    for one in told:
        for name in ("version", "sglang_version", "build_info"):
            if one and isinstance(one.get(name), str):
                return redact.text(str(one[name]))
    return None


def _template_told(settings: dict[str, Any] | None) -> str | None:
    template = (settings or {}).get("chat_template")
    return _hash(template.encode()) if isinstance(template, str) else None


def _of_process(known: About, pid: int) -> About:
    folder = process.model_folder(pid)
    found = msgspec.structs.replace(
        known,
        pid=pid,
        argv=redact.argv(process.argv(pid)),
        overrides=process.switches(pid),
    )
    if folder is None:
        return found
    template = next((h for name in TEMPLATE_FILES if (h := _file_hash(folder / name))), None)
    return msgspec.structs.replace(
        found,
        config_hash=_file_hash(folder / "config.json"),
        tokenizer_hash=_file_hash(folder / "tokenizer.json"),
        template_hash=found.template_hash or template,
        weights_hash=weights_hash(folder),
    )


def weights_hash(folder: Path) -> str | None:
    """Of each weight file its name, its size and the header that lists its tensors."""
    joined, seen = hashlib.sha256(), False
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = file.read(min(length, MAX_HEADER))
            joined.update(f"{path.name} {path.stat().st_size} ".encode() + header)
            seen = True
    except OSError:
        return None
    return joined.hexdigest()[:16] if seen else None


def _file_hash(path: Path) -> str | None:
    try:
        return _hash(path.read_bytes())
    except OSError:
        return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def sources_hash() -> str:
    """Of the measuring's own code: figures of unlike code are not the same figures."""
    folder, joined = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        joined.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return joined.hexdigest()[:16]


def commit() -> str | None:
    """Of the checkout that this code lies in, by git's own files; None without one."""
    git = Path(__file__).parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        name = head.removeprefix("ref: ")
        return head if name == head else (git / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
