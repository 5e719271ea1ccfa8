"""Blocks of a growing text, and how they look."""

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from relight.chat.markdown import Blocks, Tail, rendered, visible

TEXT = (
    "# Title\n\nOne\ntwo\n\n\n1. a\n\n   more of a\n2. b\n\n"
    "```py\nx = 1\n\ny = 2\n```\nafter\n\n~~~\n```\n\n~~~~\n| a | b |\n| - | - |\n| 1 | 2 |\n\nend"
)
BLOCKS = [
    "# Title",
    "One\ntwo",
    "1. a\n\n   more of a\n2. b",
    "```py\nx = 1\n\ny = 2\n```",
    "after",
    "~~~\n```\n\n~~~~",
    "| a | b |\n| - | - |\n| 1 | 2 |",
    "end",
]


def blocks_of(pieces: list[str]) -> list[str]:
    blocks = Blocks()
    found = [block for piece in pieces for block in blocks.feed(piece)]
    return found + blocks.finish()


def shown(text: str, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(rendered(text))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_a_text_is_cut_where_its_blocks_end() -> None:
    assert blocks_of([TEXT]) == BLOCKS


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_any_split_of_the_stream_gives_the_same_blocks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in pairwise(edges)]
    assert blocks_of(pieces) == BLOCKS


@given(st.text(alphabet="a \n`~#-", max_size=60))
def test_blocks_lose_nothing_but_empty_space(text: str) -> None:
    assert "".join("\n".join(blocks_of(list(text))).split()) == "".join(text.split())


def test_the_open_block_is_what_no_block_has_yet() -> None:
    blocks = Blocks()
    assert blocks.feed("done\n\nnot **yet") == ["done"]
    assert blocks.open == "not **yet"


def test_markup_of_models_is_text_where_it_is_not_markdown() -> None:
    assert "<div>kept</div>" in shown("<div>kept</div>")
    assert "a <b>c</b>" in shown("a <b>c</b>")
    assert "[red]kept[/red]" in shown("[red]kept[/red]")


def test_lines_of_a_poem_stay_lines() -> None:
    assert [line.strip() for line in shown("one\ntwo\nthree").splitlines()] == [
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize("code", ["\x1b[2J", "\x07", "\x9b31m", "\x08", "\x00"])
def test_no_code_of_a_terminal_passes(code: str) -> None:
    assert visible(f"a{code}b\tc\n").replace("\ufffd", "") == f"a{code[1:]}b\tc\n"


def test_a_tail_is_the_last_lines_as_they_wrap() -> None:
    console = Console(file=io.StringIO(), width=10, color_system=None)
    with console.capture() as capture:
        console.print(Tail("one two three four five six", 2))
    assert capture.get().split() == ["three", "four", "five", "six"]
