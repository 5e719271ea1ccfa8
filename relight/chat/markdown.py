"""Markdown that is still being written: whole blocks as soon as they are whole, and how they look.
Knows no answer.

A terminal cannot take back what has scrolled away, so a block is printed once, when no later text
can change it, and only the open one is drawn again and again.
"""

import re
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# Whoever writes a terminal's codes could rewrite what is on the screen, or more.
CODES = {*range(32), *range(127, 160)} - {ord("\n"), ord("\t")}
SHOWN_CODES = dict.fromkeys(CODES, "\N{REPLACEMENT CHARACTER}")


def visible(text: str) -> str:
    """Without anything that a terminal would obey. A carriage return before a newline goes."""
    return text.replace("\r\n", "\n").translate(SHOWN_CODES)


class Blocks:
    """Cuts a growing text where a block ends: at a fence's end, or where an unindented line follows
    an empty one outside of a fence. The blocks add up to the text, but for empty lines around."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""

    @property
    def open(self) -> str:
        """The block that may still change."""
        return "\n".join([*self._lines, self._rest]).strip("\n")

    def feed(self, text: str) -> list[str]:
        *lines, self._rest = (self._rest + text).split("\n")
        blocks = [block for line in lines for block in self._line(line)]
        if self._parts(self._rest):
            blocks += self._take()
        return blocks

    def finish(self) -> list[str]:
        self._lines.append(self._rest)
        self._rest = ""
        return self._take()

    def _line(self, line: str) -> list[str]:
        blocks = self._take() if self._parts(line) else []
        self._lines.append(line)
        mark = FENCE.match(line)
        if self._fence:
            closing = mark and mark[1].startswith(self._fence) and not line[mark.end() :].strip()
            if closing:
                self._fence = ""
                if not line.startswith(" "):
                    blocks += self._take()
        elif mark:
            self._fence = mark[1]
        return blocks

    def _parts(self, line: str) -> bool:
        """Whether a line that begins like this starts a block of its own."""
        begun = bool(line) and not line[0].isspace()
        ended = bool(self._lines) and not self._lines[-1].strip()
        return begun and ended and not self._fence

    def _take(self) -> list[str]:
        block = "\n".join(self._lines).strip("\n")
        self._lines = []
        return [block] if block.strip() else []


class _LeftHeading(Heading):
    """rich draws a first heading in the middle, like a title page."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _ChatMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
    }


def rendered(text: str) -> Markdown:
    """As chats mean it: HTML is text like any other, and a line break is one."""
    markdown = _ChatMarkdown("", code_theme="ansi_dark", hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    markdown.parsed = parser.parse(text)
    for token in markdown.parsed:
        _break_lines(token)
    return markdown


def _break_lines(token: Token) -> None:
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"


class Tail:
    """The last lines of what may be higher than the screen."""

    def __init__(self, content: RenderableType, num_lines: int) -> None:
        self._content = content
        self._num_lines = num_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        for line in lines[-self._num_lines :]:
            yield from line
            yield Segment.line()
