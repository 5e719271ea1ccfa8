"""The fixed texts of the V4 prompt: effort prefixes, the tools block, response formats. They are
cut out of prompts that DeepSeek's encoder renders and checked by hash; it decides nothing else."""

import hashlib
from typing import Any

import deepseek_recipe as recipe
import msgspec

from relight.text.tokenizer import SPELLING


class Piece(msgspec.Struct, frozen=True):
    """A run of fixed text; `marker` names the special token that it spells, if it is one."""

    text: str
    marker: str | None = None


FixedText = tuple[Piece, ...]


class Literals(msgspec.Struct, frozen=True):
    """The texts by name. The tools texts enclose the schemas, one a line."""

    effort_high: FixedText
    effort_max: FixedText
    tools_head: FixedText
    tools_tail: FixedText
    json_object: FixedText
    json_schema: FixedText


SHA256 = {
    "effort_high": "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7",
    "effort_max": "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c",
    "tools_head": "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c",
    "tools_tail": "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7",
    "json_object": "a786ffd2d77d3105d22f8107d57b02766476a65a63fb1e7d8c70c95ec164929c",
    "json_schema": "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112",
}

SCHEMA_LINE = '{"name": "probe", "description": "", "parameters": {}}'


def load_v4_literals() -> Literals:
    """Asserts every hash: the package is pinned, so another text is a broken installation."""
    head, tail = _cut(_probe(tools=[recipe.ToolDefinition("probe", "", {})]), SCHEMA_LINE)
    schema, _ = _cut(_probe(response_schema={}), "{}")
    texts = {
        "effort_high": _probe(thinking_mode=True, reasoning_effort="high"),
        "effort_max": _probe(thinking_mode=True, reasoning_effort="max"),
        "tools_head": _after_blank_line(head),
        "tools_tail": tail,
        "json_object": _after_blank_line(_probe(response_format="json_object")),
        "json_schema": _after_blank_line(schema),
    }
    for name, pieces in texts.items():
        text = "".join(piece.text for piece in pieces)
        found = hashlib.sha256(text.encode()).hexdigest()
        assert found == SHA256[name], (
            f"the text {name} of deepseek-recipe {recipe.__version__} has sha256 {found}, wanted "
            f"{SHA256[name]}; install the version that relight pins"
        )
    return Literals(**texts)


def _probe(thinking_mode: bool = False, **options: Any) -> FixedText:
    """The pieces between the first token and the user turn of a one-word conversation."""
    conversation = recipe.Conversation(
        [recipe.UserMessage("x")], thinking_mode=thinking_mode, **options
    )
    rendered = recipe.DeepseekV4Encoding().render_conversation(conversation)
    pieces, at = [], 0
    for start, end in rendered.special_ranges:
        if start > at:
            pieces.append(Piece(rendered.prompt[at:start]))
        pieces.append(Piece(rendered.prompt[start:end], _marker_name(rendered.prompt[start:end])))
        at = end
    user = next(i for i, piece in enumerate(pieces) if piece.marker == "user")
    return tuple(pieces[1:user])


def _marker_name(spelling: str) -> str:
    return next(name for name, text in SPELLING.items() if text == spelling)


def _cut(pieces: FixedText, at: str) -> tuple[FixedText, FixedText]:
    """The pieces before and after the last occurrence of a text that lies within one piece."""
    i = max(i for i, piece in enumerate(pieces) if piece.marker is None and at in piece.text)
    before, _, after = pieces[i].text.rpartition(at)
    return (*pieces[:i], Piece(before)), (Piece(after), *pieces[i + 1 :])


def _after_blank_line(pieces: FixedText) -> FixedText:
    return (Piece(pieces[0].text.removeprefix("\n\n")), *pieces[1:])
