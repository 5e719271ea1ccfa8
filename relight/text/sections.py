"""Finds the tokens with which a section of an answer begins: reasoning, content, calls. Reads no
more of a tokenizer than its added tokens, since a whole one takes a second to build.
"""

from pathlib import Path
from typing import Literal

import msgspec

from relight.base.errors import BadCheckpoint
from relight.base.files import read_regular
from relight.text.tokenizer import SPELLING

Section = Literal["reasoning", "content", "tool"]
SECTIONS: dict[str, Section] = {
    SPELLING["think_open"]: "reasoning",
    SPELLING["think_close"]: "content",
    SPELLING["dsml"]: "tool",
}


class _Added(msgspec.Struct):
    id: int
    content: str


class _File(msgspec.Struct):
    added_tokens: list[_Added] = []


def section_tokens(folder: Path) -> dict[int, Section]:
    """The section behind each such token; none if there is no tokenizer. Raises `BadCheckpoint`."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return {}
    try:
        added = msgspec.json.decode(read_regular(path), type=_File).added_tokens
    except (OSError, msgspec.MsgspecError) as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}; fetch the file again") from error
    return {token.id: SECTIONS[token.content] for token in added if token.content in SECTIONS}
