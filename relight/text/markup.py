"""Reads one tag of the tool call markup, in the spelling of V3.2, V4 or V4.1. Knows no tokens and
no states."""

import re
from typing import Literal

import msgspec

Kind = Literal["block", "invoke", "parameter"]


class Tag(msgspec.Struct, frozen=True):
    """`name` and `is_string` are the attributes, None if absent. Any word but invoke and parameter
    is taken for a block: models misspell it, and nothing else is ever marked up."""

    kind: Kind
    name: str | None = None
    is_string: bool | None = None
    empty: bool = False


KINDS: dict[str, Kind] = {"invoke": "invoke", "parameter": "parameter"}

# After the marker: a space (V4.1), a word, attributes on the same line, `>`. Both are bounded, so
# that a model that never closes a tag cannot make us hold, and read again, all that it writes.
WHOLE = re.compile(r" ?([\w-]{1,64})([ \t][^<>\n]{0,500}?)?(/?)>")
BEGUN = re.compile(r" ?(?:[\w-]{1,64}[ \t]{0,500}/?|(?:invoke|parameter)[ \t][^<>\n]{0,501})?")

# A name may hold quotes, since the markup has no escapes: it ends where a tag may go on.
NAME = re.compile(r"""\sname=(["'])(.*?)\1(?=\s+string=|\s*$)""")
STRING = re.compile(r"""\sstring=["'](true|false)["']""")


def read_tag(text: str) -> tuple[Tag, str] | None:
    """The tag that `text` (what follows the marker) begins with, and the text after it."""
    match = WHOLE.match(text)
    if match is None:
        return None
    word, attributes, slash = match[1], match[2] or "", match[3]
    kind: Kind = KINDS.get(word, "block")
    if kind == "block" and attributes.strip():
        return None
    name = NAME.search(attributes)
    string = STRING.search(attributes)
    return (
        Tag(kind, name and name[2], string and string[1] == "true", slash == "/"),
        text[match.end() :],
    )


def may_become_tag(text: str) -> bool:
    """Whether more text could make `text` a tag."""
    return BEGUN.fullmatch(text) is not None
