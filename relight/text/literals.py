"""The fixed texts of the prompts of V4 and V4.1: effort prefixes, tools block, response formats.
They are cut out of prompts that DeepSeek's encoder renders and checked by hash; it decides nothing
else."""

import hashlib
from itertools import dropwhile
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
    """The texts by name. The tools texts enclose the schemas, one a line. V4 has a text for two
    degrees of effort, V4.1 one around a number."""

    tools_head: FixedText
    tools_tail: FixedText
    json_object: FixedText
    json_schema: FixedText
    effort_high: FixedText = ()
    effort_max: FixedText = ()
    effort_head: FixedText = ()
    effort_tail: FixedText = ()


V4_SHA256 = {
    "effort_high": "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7",
    "effort_max": "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c",
    "tools_head": "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c",
    "tools_tail": "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7",
    "json_object": "a786ffd2d77d3105d22f8107d57b02766476a65a63fb1e7d8c70c95ec164929c",
    "json_schema": "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112",
}
V41_SHA256 = {
    "effort_head": "148a3a36b8d0460f5cd7d6dd08c62906830063de941de1a4d24856131945a3de",
    "effort_tail": "9965cf68b4b08c8534271cfe58143adacc11bc7a3f92ab7d30061785c01307e5",
    "tools_head": "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d",
    "tools_tail": "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7",
    "json_object": "26fcf97af21b5a125c62e733675e06a1bd017bce0bf6fb98c2649130050d1261",
    "json_schema": "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112",
}

SCHEMA_LINE = '{"name": "probe", "description": "", "parameters": {}}'


def load_v4_literals() -> Literals:
    """Asserts every hash: the package is pinned, so another text is a broken installation."""
    probe = _Probe(recipe.DeepseekV4Encoding())
    efforts = {
        "effort_high": probe(thinking_mode=True, reasoning_effort="high"),
        "effort_max": probe(thinking_mode=True, reasoning_effort="max"),
    }
    return _checked(V4_SHA256, efforts | _common_texts(probe))


def load_v41_literals() -> Literals:
    """As `load_v4_literals`."""
    probe = _Probe(recipe.DeepseekV41Encoding())
    head, tail = _cut(probe(thinking_mode=True, reasoning_effort="high"), "75")
    efforts = {"effort_head": head, "effort_tail": tail}
    return _checked(V41_SHA256, efforts | _common_texts(probe))


def _common_texts(probe: "_Probe") -> dict[str, FixedText]:
    head, tail = _cut(probe(tools=[recipe.ToolDefinition("probe", "", {})]), SCHEMA_LINE)
    schema, _ = _cut(probe(response_schema={}), "{}")
    return {
        "tools_head": _after_blank_line(head),
        "tools_tail": tail,
        "json_object": _after_blank_line(probe(response_format="json_object")),
        "json_schema": _after_blank_line(schema),
    }


def _checked(wanted: dict[str, str], texts: dict[str, FixedText]) -> Literals:
    for name, pieces in texts.items():
        text = "".join(piece.text for piece in pieces)
        found = hashlib.sha256(text.encode()).hexdigest()
        assert found == wanted[name], (
            f"the text {name} of deepseek-recipe {recipe.__version__} has sha256 {found}, wanted "
            f"{wanted[name]}; install the version that relight pins"
        )
    return Literals(**texts)


class _Probe:
    """Renders a one-word conversation: the pieces before its user turn, without the markers that
    stand in front."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def __call__(self, thinking_mode: bool = False, **options: Any) -> FixedText:
        conversation = recipe.Conversation(
            [recipe.UserMessage("x")], thinking_mode=thinking_mode, **options
        )
        rendered = self._encoding.render_conversation(conversation)
        pieces, at = [], 0
        for start, end in rendered.special_ranges:
            if start > at:
                pieces.append(Piece(rendered.prompt[at:start]))
            marker = _marker_name(rendered.prompt[start:end])
            pieces.append(Piece(rendered.prompt[start:end], marker))
            at = end
        user = next(i for i, piece in enumerate(pieces) if piece.marker == "user")
        return tuple(dropwhile(_is_front, pieces[:user]))


def _is_front(piece: Piece) -> bool:
    return piece.marker in ("bos", "system")


def _marker_name(spelling: str) -> str:
    return next(name for name, text in SPELLING.items() if text == spelling)


def _cut(pieces: FixedText, at: str) -> tuple[FixedText, FixedText]:
    """The pieces before and after the last occurrence of a text that lies within one piece."""
    i = max(i for i, piece in enumerate(pieces) if piece.marker is None and at in piece.text)
    before, _, after = pieces[i].text.rpartition(at)
    return (*pieces[:i], Piece(before)), (Piece(after), *pieces[i + 1 :])


def _after_blank_line(pieces: FixedText) -> FixedText:
    return (Piece(pieces[0].text.removeprefix("\n\n")), *pieces[1:])
