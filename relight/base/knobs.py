"""What a setting is: type, range, help and group, as the command line, the documents and error
messages need it. Knows no single setting."""

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

Group = Literal["model", "compute", "memory", "requests", "server"]
GROUPS: tuple[Group, ...] = get_args(Group)
PREFIX = "RELIGHT_"
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def declare(
    group: Group,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    secret: bool = False,
) -> msgspec.Meta:
    extra = {"group": group, "unit": unit, "secret": secret}
    return msgspec.Meta(description=help, ge=low, le=high, extra=extra)


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting as the command line, the documents and error messages need it."""

    name: str
    type: Any
    kind: Literal["int", "float", "bytes", "text", "choice", "bool", "list"]
    default: object
    help: str
    group: Group
    wanted: str
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def show(self, value: object) -> str:
        """For eyes and logs: of a secret only how many there are."""
        if self.kind == "list":
            assert isinstance(value, tuple)
            return f"{len(value)} given" if self.secret and value else ",".join(value)
        if self.kind == "bytes":
            return format_bytes(int(str(value)))
        return str(value).lower() if self.kind == "bool" else str(value)


def format_bytes(count: int) -> str:
    """In the largest unit that divides it, so that nothing is rounded and it can be given back."""
    unit = max((u for u, size in UNITS.items() if count % size == 0), key=UNITS.__getitem__)
    return f"{count // UNITS[unit]} {unit}".strip() if count else "0"


def parse_bytes(text: str) -> int:
    """A count of bytes with an optional binary unit. Raises ValueError."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no count of bytes")
    return int(match[1]) * UNITS[match[2] or ""]


def describe(field: msgspec.structs.FieldInfo) -> Knob:
    base, meta = get_args(field.type)
    limits = f"{meta.ge} or more" if meta.le is None else f"{meta.ge} to {meta.le}"
    kind: Literal["int", "float", "bytes", "text", "choice", "bool", "list"]
    if base is bool:
        kind, wanted = "bool", "true or false"
    elif base is str:
        kind, wanted = "text", "a text"
    elif base == tuple[str, ...]:
        kind, wanted = "list", "texts; several flags, or joined by commas"
    elif base is float:
        kind, wanted = "float", limits
    elif base is not int:
        kind, wanted = "choice", " or ".join(get_args(base))
    elif meta.extra["unit"] == "bytes":
        kind, wanted = "bytes", f"bytes, {limits}, written like 1048576, 512 MiB or 8 GiB"
    else:
        kind, wanted = "int", limits
    return Knob(
        name=field.name,
        type=field.type,
        kind=kind,
        default=field.default,
        help=meta.description,
        group=meta.extra["group"],
        wanted=wanted,
        secret=meta.extra["secret"],
    )
