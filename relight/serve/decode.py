"""Bytes of a body → a Struct of the schema, or the one error that says what is wrong with it.
Knows msgspec's errors, and no route."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from relight.base.errors import BadRequest, Unsupported
from relight.serve.fields import Refused
from relight.serve.half_pairs import half_pair

T = TypeVar("T", bound=msgspec.Struct)

# A schema that people write nests some ten deep; text/prompt renders it by recursion.
MAX_DEPTH = 64
MAX_SHOWN = 60
# A result in a block of a message has three; what is deeper is refused by what reads it.
MAX_STRUCTS = 8
_WORDS = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """A call, and the names of what was accepted and ignored."""

    call: T
    ignored: tuple[str, ...]


def nothing(call: Any) -> Iterable[str]:
    return ()


def decode(
    body: bytes,
    kind: type[T],
    refused: Mapping[str, Refused],
    *,
    strict: bool = False,
    idle: Callable[[T], Iterable[str]] = nothing,
) -> Decoded[T]:
    """Reads `body` as `kind`. Fields outside of the schema are refused by the table, else ignored,
    and under `strict` refused altogether; so is what `idle` names: fields that have no effect.
    Raises `BadRequest` or `Unsupported` naming the field."""
    try:
        fields = _fields_decoder().decode(body)
        extra = sorted(fields.keys() - _known(kind))
        for name in extra:
            if name in refused:
                _refuse(name, refused[name], msgspec.json.decode(fields[name]))
        call = _decoder(kind).decode(body)
        members = dict.fromkeys(_unknown_members(kind, fields))
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply; send a flatter one") from error
    except msgspec.ValidationError as error:
        raise _explain(str(error), body) from error
    except msgspec.DecodeError as error:
        if half := half_pair(body):
            raise half from error
        raise BadRequest(f"the body must be JSON in UTF-8: {error}; correct the body") from error
    named = (n for n in extra if n not in refused and bytes(fields[n]) != b"null")
    ignored = tuple(dict.fromkeys(map(shown_name, (*named, *members, *idle(call)))))
    if strict:
        refuse_ignored(ignored)
    return Decoded(call, ignored)


def refuse_ignored(names: Sequence[str]) -> None:
    """Raises `Unsupported` if there are any, which names the first."""
    if names:
        name = names[0]
        raise Unsupported(f"{name} has no effect in this request; leave it out", param=name)


def shown_name(name: str) -> str:
    """A field's name that is safe in a header and as a metric's label."""
    return name if _NAME.fullmatch(name) else "?"


def shown(value: object) -> str:
    """A value as JSON, cut to a length that fits in a sentence."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def check_depth(value: object, param: str, limit: int = MAX_DEPTH) -> None:
    """Raises `BadRequest` if lists and objects nest deeper than `limit`. Does not recurse."""
    level, depth = [value], 0
    while level:
        if depth > limit:
            raise BadRequest(
                f"{param} nests deeper than {limit} levels; send a flatter value", param=param
            )
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        depth += 1


def _unknown_members(
    kind: type[msgspec.Struct], fields: dict[str, msgspec.Raw], where: str = ""
) -> Iterator[str]:
    """What the structs in `fields`, also those of lists, do not know: `field.member`, null apart.
    Each level reads its bytes again, so there is a bound on levels."""
    if where.count(".") > MAX_STRUCTS:
        raise BadRequest(f"{where[:-1]} nests too deeply; send a flatter value")
    for name, part in _members(kind).items():
        for members in _objects(fields[name]) if name in fields else ():
            path = f"{where}{name}."
            for member in sorted(members.keys() - _known(part)):
                if bytes(members[member]) != b"null":
                    yield path + member
            yield from _unknown_members(part, members, path)


def _objects(raw: msgspec.Raw) -> Iterator[dict[str, msgspec.Raw]]:
    """The value if it is an object, those of its elements that are if it is a list."""
    start = bytes(memoryview(raw)[:1])
    if start == b"{":
        yield _fields_decoder().decode(raw)
    elif start == b"[":
        for element in _list_decoder().decode(raw):
            if bytes(memoryview(element)[:1]) == b"{":
                yield _fields_decoder().decode(element)


@cache
def _members(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields of a struct that are structs themselves, or lists of them."""
    return {
        field.encode_name: part
        for field in msgspec.structs.fields(kind)
        for part in _structs(field.type)
    }


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


@cache
def _decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    return msgspec.json.Decoder(kind)


@cache
def _fields_decoder() -> "msgspec.json.Decoder[dict[str, msgspec.Raw]]":
    return msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _list_decoder() -> "msgspec.json.Decoder[list[msgspec.Raw]]":
    return msgspec.json.Decoder(list[msgspec.Raw])


@cache
def _known(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _refuse(name: str, rule: Refused, value: object) -> None:
    if rule.asks(value):
        neutral = " or ".join(shown(item) for item in rule.neutral)
        wanted = f"only {neutral} is served" if neutral else "it is not built"
        raise Unsupported(
            f"{name} is not supported here: found {shown(value)}, {wanted}; {rule.remedy}",
            param=name,
        )


def _explain(text: str, body: bytes) -> BadRequest:
    """msgspec's sentence → field, value, limit, remedy."""
    what, _, at = text.partition(" - at `")
    in_key = at.startswith("key` in `")
    path = at.removeprefix("key` in `").lstrip("$.").rstrip("`")
    missing = re.fullmatch(r"Object missing required field `(.+)`", what)
    if missing:
        param = f"{path}.{missing[1]}".lstrip(".")
        return BadRequest(f"{param} is required and missing; add it", param=param)
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", what)
    if unknown:
        param = f"{path}.{unknown[1]}".lstrip(".")
        return BadRequest(f"{param} is not known here; leave it out", param=param)
    in_value = path.endswith("[...]")  # of an object, of which msgspec does not tell the key
    path = path.removesuffix("[...]")
    name = path or "the body"
    if in_key or in_value:
        name = f"every {'key' if in_key else 'value'} of {name}"
    expected = re.fullmatch(r"Expected `([^`]+)`(?:, got `([^`]+)`| (.+))?", what)
    if expected is None:
        return BadRequest(f"{name}: {what}; correct the value", param=path or None)
    wanted, got, limit = expected.groups()
    wanted = " or ".join(_WORDS.get(word, word) for word in wanted.split(" | "))
    if limit:
        wanted = f"{wanted} {limit}"
    found = _at(body, path) if path else None
    found = found or _WORDS.get(got or "", got or "another value")
    return BadRequest(f"{name} must be {wanted}, found {found}; correct it", param=path or None)


def _at(body: bytes, path: str) -> str | None:
    """The value at `path` in a short form, or None where msgspec names a key of the path `...`."""
    try:
        value: object = msgspec.json.decode(body)
        for key, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
            if index and isinstance(value, list) and index != "...":
                value = value[int(index)]
            elif isinstance(value, dict) and key in value:
                value = value[key]
            else:
                return None
        return shown(value)
    except (msgspec.DecodeError, RecursionError):  # another fault, behind the first
        return None
