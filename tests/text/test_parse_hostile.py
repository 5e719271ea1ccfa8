"""Answers that no model should give: the parser reads them all, in bounded memory, and lets no
markup through."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.text.conversation import Tool
from relight.text.parse import (
    MAX_HELD,
    Content,
    OutputParser,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

TOOL = Tool("f", None, {"type": "object", "properties": {"n": {"type": "integer"}}})
PIECES = [
    *(
        "<",
        "</",
        "｜DSML｜",
        "<｜DSML｜",
        "</｜DSML｜",
        "<think>",
        "</think>",
        ">",
        " ",
        "\n",
        "{",
        '"',
    ),
    *("tool_calls>", " calls>", "invoke", 'invoke name="f">', ' invoke name="f"/>', "invoke>"),
    *('parameter name="n" string="false">', 'parameter name="x" string="true">', "parameter>"),
    *('name="', 'string="true"', "</tool_result>", "1" * 50, "[" * 50, "\\", "\x00", "é🙂"),
    *("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>"),
]
STARTS = st.sampled_from(["reasoning", "content", "tools"])


def play(tiny, ids, start, tools, *, cut=0, stopped=True):
    parser = OutputParser(tiny, start, tools)
    events = parser.feed(ids[:cut]) + parser.feed(ids[cut:])
    return parser, events + parser.finish(stopped=stopped)


def prose(events):
    kinds = (Reasoning, Content)
    return ["".join(e.text for e in events if isinstance(e, kind)) for kind in kinds]


def calls(events):
    found = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            assert event.index == len(found), "calls come in their order"
            found[event.index] = [event.name, "", False]
        elif isinstance(event, ToolCallArguments):
            assert not found[event.index][2], "nothing comes after the end"
            found[event.index][1] += event.text
        elif isinstance(event, ToolCallEnd):
            found[event.index][2] = True
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    STARTS,
    st.booleans(),
    st.integers(0, 60),
)
def test_adversarial_markup_is_read_alike_for_every_cut(tiny, text, start, stopped, cut):
    ids = tiny.encode_raw(text)
    _, whole = play(tiny, ids, start, (TOOL,), stopped=stopped)
    _, parts = play(tiny, ids, start, (TOOL,), cut=cut, stopped=stopped)
    assert prose(whole) == prose(parts)
    assert calls(whole) == calls(parts)
    for _, arguments, ended in calls(whole).values():
        if ended:
            assert isinstance(json.loads(arguments), dict)
    if stopped:
        assert all(ended for _, _, ended in calls(whole).values())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 319), max_size=200), STARTS, st.booleans())
def test_any_tokens_are_read_and_without_tools_nothing_of_a_call_is_sent(tiny, ids, start, stopped):
    ids = [token for token in ids if token < tiny.vocab_size]
    parser, events = play(tiny, ids, start, (), stopped=stopped)
    assert not calls(events)
    assert not parser.made_call
    assert "｜DSML｜" not in "".join(prose(events)) or tiny.special.dsml not in ids


@pytest.mark.parametrize("blank", ["\n", " ", " \n\t", "<", "</", "<｜DSML｜", "<｜DSML｜invoke "])
@pytest.mark.parametrize("start", ["reasoning", "content"])
def test_a_model_that_says_nothing_for_long_is_not_kept_whole(tiny, blank, start):
    ids = tiny.encode_raw(blank)
    parser = OutputParser(tiny, start, (TOOL,))
    parser.feed(tiny.encode_raw("x"))
    for _ in range(30_000):
        parser.feed(ids)
        waiting = len(parser._held) + len(parser._tag or "")
        assert waiting <= MAX_HELD + 600


def test_blanks_before_a_block_go_up_to_a_bound(tiny):
    call = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    )
    for excess in (0, 7):
        count = MAX_HELD - len("<") + excess
        ids = tiny.encode_raw("x" + "\n" * count + call)
        _, events = play(tiny, ids, "content", (TOOL,))
        assert prose(events)[1] == "x" + "\n" * excess
        assert len(calls(events)) == 1
