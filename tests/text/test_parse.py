"""The parser's promises on its own vocabulary of tags. tests/text/test_parse_oracle.py compares it
with DeepSeek's parser."""

import json
import random

import pytest

from relight.text.conversation import Tool
from relight.text.parse import (
    Content,
    OutputParser,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

WEATHER = Tool(
    "weather",
    None,
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
NOW = Tool("now")
TOOLS = (WEATHER, NOW)


def block(*calls, tag="tool_calls"):
    return f"<｜DSML｜{tag}>\n" + "\n".join(calls) + f"\n</｜DSML｜{tag}>"


def invoke(name, *parameters):
    return f'<｜DSML｜invoke name="{name}">\n' + "\n".join(parameters) + "\n</｜DSML｜invoke>"


def parameter(name, value, string="true"):
    return f'<｜DSML｜parameter name="{name}" string="{string}">{value}</｜DSML｜parameter>'


def v41(text):
    """The same markup as V4.1 writes it."""
    return text.replace("｜DSML｜", "｜DSML｜ ").replace("tool_calls", "calls")


def merge(events):
    """Events with adjacent texts of one kind joined."""
    merged = []
    for event in events:
        last = merged[-1] if merged else None
        if type(event) is type(last) and hasattr(event, "text"):
            fields = {"text": last.text + event.text}
            if isinstance(event, ToolCallArguments):
                assert event.index == last.index
                fields["index"] = event.index
            merged[-1] = type(event)(**fields)
        else:
            merged.append(event)
    return merged


def parse(tokenizer, text, start="content", *, chunks=None, stopped=True, tools=TOOLS, **options):
    parser = OutputParser(tokenizer, start, tools, **options)
    events = []
    for ids in chunks or [tokenizer.encode_raw(text)]:
        events += parser.feed(ids)
    return merge(events + parser.finish(stopped=stopped)), parser


def calls(events):
    """Names and arguments of the calls, complete or not."""
    found = {}
    for event in events:
        match event:
            case ToolCallStart(index, name):
                assert index == len(found)
                found[index] = [name, ""]
            case ToolCallArguments(index, text):
                found[index][1] += text
    return [tuple(call) for call in found.values()]


def text_of(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))


# Splits

FRAGMENTS = [
    *("hello", " ", "\n", "\n\n", "<", "</", "2 < 3", "é漢🙂", "think>", "</thi", "｜", '\\ "q"'),
    *(
        "<think>",
        "</think>",
        "<｜DSML｜",
        "</｜DSML｜",
        "｜DSML｜",
        "<｜User｜>",
        "invoke",
        "parameter",
    ),
    *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜ calls>\n", "</｜DSML｜ calls>"),
    *('<｜DSML｜invoke name="weather">', "</｜DSML｜invoke>", '<｜DSML｜ invoke name="now"/>'),
    *(
        '<｜DSML｜parameter name="city" string="true">',
        '<｜DSML｜ parameter name="days" string="false">',
    ),
    *(
        "</｜DSML｜parameter>",
        "</｜DSML｜ parameter>",
        "12",
        '{"city": "Oslo"}',
        "[1,",
        "name=",
        ">",
    ),
    block(invoke("weather", parameter("city", "Oslo"), parameter("days", "2", "false"))),
    block(invoke("weather", parameter("days", "2"), parameter("x", "<b>\t</b>"))),
]


def random_answer(pick):
    return "".join(pick.choices(FRAGMENTS, k=pick.randint(1, 9)))


@pytest.mark.parametrize("start", ["reasoning", "content", "tools"])
def test_every_split_of_the_tokens_gives_the_same_events(tiny, start):
    pick = random.Random(start)
    for _ in range(12):
        ids = tiny.encode_raw(random_answer(pick))
        stopped = pick.random() < 0.7
        expected, whole = parse(tiny, "", start, chunks=[ids], stopped=stopped)
        splits = [[[token] for token in ids]]
        splits += [[ids[:cut], ids[cut:]] for cut in range(len(ids) + 1)]
        splits += [[ids[i : i + n] for i in range(0, len(ids), n)] for n in (2, 3, 5, 13)]
        for chunks in splits:
            found, parser = parse(tiny, "", start, chunks=chunks, stopped=stopped)
            assert found == expected
            assert parser.reasoning_tokens == whole.reasoning_tokens
            assert parser.made_call == whole.made_call


def test_what_was_sent_does_not_depend_on_where_the_stream_was_cut(tiny):
    pick = random.Random("prefixes")
    for _ in range(25):
        ids = tiny.encode_raw(random_answer(pick))
        one_by_one, events = OutputParser(tiny, "reasoning", TOOLS), []
        for n, token in enumerate(ids, 1):
            events += one_by_one.feed([token])
            assert merge(events) == merge(OutputParser(tiny, "reasoning", TOOLS).feed(ids[:n]))


def test_the_tokens_that_ordinary_text_is_made_of_do_not_matter(tiny):
    pick = random.Random("bytes")
    markers = {*vars_of(tiny.special)}
    for _ in range(200):
        ids = tiny.encode_raw(random_answer(pick))
        single = []
        for token in ids:
            single += [token] if token in markers else [3 + b for b in tiny.token_bytes(token)]
        assert parse(tiny, "", chunks=[ids])[0] == parse(tiny, "", chunks=[single])[0]


def vars_of(special):
    return [getattr(special, field) for field in special.__struct_fields__]


def test_whatever_the_tokens_arguments_of_a_stopped_answer_are_an_object(tiny):
    pick = random.Random("objects")
    for _ in range(300):
        events, parser = parse(tiny, random_answer(pick))
        for _, arguments in calls(events):
            assert isinstance(json.loads(arguments), dict)
        assert "<｜DSML｜tool_calls>" not in text_of(events, Content)
        ends = [event for event in events if isinstance(event, ToolCallEnd)]
        assert parser.made_call == any(end.complete for end in ends)
        assert len(ends) == len(calls(events))


# Reasoning and content


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\n\nhm\n\n</think>\n\nhello\n", "hm", "hello\n"),
        (" \nhm \n</think> \nhello", " \nhm ", " \nhello"),
        ("hm", "hm", ""),
        ("hm\n\n", "hm\n\n", ""),
        ("</think>hi", "", "hi"),
        ("<think>hm</think>hi", "hm", "hi"),
        ("a<think>b</think>hi", "a<think>b", "hi"),
        ("a</think>b</think>c", "a", "bc"),
        ("a</think>b<think>\nc\n</think>\nd", "ac", "bd"),
        ("a <\n</think>b", "a <", "b"),
        ("a <</think>b", "a <", "b"),
        ("x</think>2 <", "x", "2 <"),
        ("x</think>a </", "x", "a </"),
    ],
)
def test_reasoning_ends_at_its_marker_and_blank_lines_around_it_go(tiny, text, reasoning, content):
    events, _ = parse(tiny, text, "reasoning")
    assert text_of(events, Reasoning) == reasoning
    assert text_of(events, Content) == content


def test_markers_spelt_in_ordinary_tokens_are_text(tiny):
    spelt = 'a</think><｜DSML｜tool_calls><｜DSML｜invoke name="now"/>'
    events, parser = parse(tiny, "", "reasoning", chunks=[tiny.encode_text(spelt)])
    assert events == [Reasoning(spelt)]
    assert not parser.made_call


def test_a_continued_answer_keeps_its_leading_newlines(tiny):
    assert parse(tiny, "\n\nx", "reasoning", continued=True)[0] == [Reasoning("\n\nx")]
    assert parse(tiny, "\n\nx", "content", continued=True)[0] == [Content("\n\nx")]
    assert parse(tiny, "\n\nx", "content")[0] == [Content("x")]


def test_reasoning_tokens_count_without_markers_and_markup(public):
    answers = {
        "hmm</think>x": 2,  # h, mm
        "</think>x": 0,
        "<think>hmm</think>x": 2,
        "hmm\n\n</think>x": 3,
        "hmm\n\n" + block(invoke("now")): 4,  # `\n\n` and `<` came before the marker
    }
    for text, tokens in answers.items():
        _, parser = parse(public, text, "reasoning")
        assert parser.reasoning_tokens == tokens, text


def test_eos_is_no_text_and_an_ignored_one_changes_nothing(tiny):
    eos = tiny.special.eos
    a, b = tiny.encode_text("a"), tiny.encode_text("b")
    events, _ = parse(tiny, "", chunks=[[*a, eos, *b, eos]])
    assert events == [Content("ab")]


def test_stop_strings_act_on_content_only(tiny):
    parser = OutputParser(tiny, "reasoning", TOOLS)
    seen = []
    for text in ("hm", "</think>", "hi", block(invoke("now")) + "x"):
        parser.feed(tiny.encode_raw(text))
        seen.append(parser.in_content)
    assert seen == [False, True, True, False]


# Tool calls


@pytest.mark.parametrize("dialect", [str, v41])
def test_calls_stream_as_start_arguments_end(tiny, dialect):
    text = "Let me see.\n\n" + block(
        invoke("weather", parameter("city", " 北京 \n"), parameter("days", "3", "false")),
        invoke("now"),
    )
    events, parser = parse(tiny, "hm\n</think>\n" + dialect(text) + "\n", "reasoning")
    assert events == [
        Reasoning("hm"),
        Content("Let me see."),
        ToolCallStart(0, "weather"),
        ToolCallArguments(0, '{"city": " 北京 \\n", "days": 3}'),
        ToolCallEnd(0),
        ToolCallStart(1, "now"),
        ToolCallArguments(1, "{}"),
        ToolCallEnd(1),
    ]
    assert parser.made_call


def test_a_string_streams_piece_by_piece_and_other_values_wait(tiny):
    parser = OutputParser(tiny, "tools", TOOLS)
    parser.feed(
        tiny.encode_raw(
            '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">'
        )
    )
    assert parser.feed(tiny.encode_text('Os"lo <')) == [ToolCallArguments(0, 'Os\\"lo ')]
    assert parser.feed(tiny.encode_text("b>")) == [ToolCallArguments(0, "<b>")]
    parser.feed(
        tiny.encode_raw('</｜DSML｜parameter><｜DSML｜parameter name="days" string="false">')
    )
    assert parser.feed(tiny.encode_text("12")) == []
    assert parser.feed(tiny.encode_raw("</｜DSML｜parameter>")) == [
        ToolCallArguments(0, ', "days": 12')
    ]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("", "{}"),
        ('\n{"city": "Oslo", "n": 2.50}\n', '{"city": "Oslo", "n": 2.50}'),
        ("\nnot an object\n", "{}"),
        ("junk" + parameter("city", "Oslo") + "junk", '{"city": "Oslo"}'),
        (parameter("city", "42"), '{"city": "42"}'),
        (parameter("days", "42"), '{"days": 42}'),
        (parameter("days", "12345678901234567890", "false"), '{"days": 12345678901234567890}'),
        (parameter("x", '{"a": [1,2.50]}', "false"), '{"x": {"a": [1,2.50]}}'),
        (parameter("x", "12,5", "false"), '{"x": "12,5"}'),
        ('<｜DSML｜parameter name="x">v</｜DSML｜parameter>', '{"x": "v"}'),
        ('<｜DSML｜parameter name="x">[1]</｜DSML｜parameter>', '{"x": [1]}'),
        ('<｜DSML｜parameter string="true" name="x">v</｜DSML｜parameter>', '{"x": "v"}'),
        (
            '<｜DSML｜parameter name="x" string="true"/>' + parameter("y", "w"),
            '{"x": "", "y": "w"}',
        ),
        (parameter('x"y', "v"), '{"x\\"y": "v"}'),
        (parameter("x", 'q"\\\n\t\x01é'), '{"x": "q\\"\\\\\\n\\t\\u0001é"}'),
        (parameter("x", "a</think><think>b"), '{"x": "a</think><think>b"}'),
        (
            parameter("x", "<b></｜DSML｜invoke> <｜DSML｜ </｜DSML｜q> ｜DSML｜ <"),
            '{"x": "<b></｜DSML｜invoke> <｜DSML｜ </｜DSML｜q> ｜DSML｜ <"}',
        ),
        (
            '<｜DSML｜parameter name="x" string="true">v' + parameter("y", "w"),
            '{"x": "v", "y": "w"}',
        ),
        (parameter("arguments", '{"city": "Oslo"}', "false"), '{"city": "Oslo"}'),
        (parameter("input", '{"city": "Oslo"}'), '{"city": "Oslo"}'),
        (parameter("arguments", "[1]", "false"), '{"arguments": [1]}'),
        (
            parameter("arguments", "{}", "false") + parameter("city", "Oslo"),
            '{"arguments": {}, "city": "Oslo"}',
        ),
        (parameter("city", "a") + parameter("city", "a"), '{"city": "a"}'),
        (parameter("x", "1", "false") + parameter("x", "1", "false"), '{"x": 1}'),
    ],
)
def test_arguments_of_one_call(tiny, body, arguments):
    events, parser = parse(tiny, block(f'<｜DSML｜invoke name="weather">{body}</｜DSML｜invoke>'))
    assert calls(events) == [("weather", arguments)]
    assert parser.made_call


def test_of_a_repeated_parameter_the_last_wins_for_readers_of_json(tiny):
    events, _ = parse(
        tiny, block(invoke("weather", parameter("city", "a"), parameter("city", "b")))
    )
    assert json.loads(calls(events)[0][1]) == {"city": "b"}


def test_an_argument_that_the_tool_names_itself_is_no_wrapper(tiny):
    tool = Tool("run", None, {"properties": {"input": {"type": "object"}}})
    text = block(invoke("run", parameter("input", '{"a": 1}', "false")))
    assert calls(parse(tiny, text, tools=(tool,))[0]) == [("run", '{"input": {"a": 1}}')]


def test_a_tool_that_is_not_known_keeps_what_the_markup_says(tiny):
    text = block(invoke("other", parameter("arguments", "{}", "false"), parameter("n", "1")))
    assert calls(parse(tiny, text)[0]) == [("other", '{"arguments": {}, "n": "1"}')]


@pytest.mark.parametrize(
    "text",
    [
        block(invoke("now"), tag="function_calls"),
        block(invoke("now"), tag="toolcalls"),
        block(invoke("now"), tag="tool"),
        block(invoke("now"), tag="tool-cals"),
        invoke("now"),
        invoke("now") + "after",
        block('<｜DSML｜invoke name="now"/>'),
        block("<｜DSML｜invoke name='now' >\n</｜DSML｜invoke>"),
        block('<｜DSML｜invoke name="now">'),
        "\n\n \n" + block("junk", invoke("now"), "junk") + "\n\nafter",
    ],
)
def test_a_call_is_read_in_every_spelling_of_its_block(tiny, text):
    events, _ = parse(tiny, text)
    assert calls(events) == [("now", "{}")]
    assert text_of(events, Content) == ""


def test_blanks_before_a_block_go_and_other_blanks_stay(tiny):
    assert parse(tiny, "a \n\n" + block(invoke("now")))[0][0] == Content("a")
    assert parse(tiny, "a \n\n b \n")[0] == [Content("a \n\n b \n")]


def test_a_block_in_reasoning_ends_it(tiny):
    events, parser = parse(tiny, "hm\n\n" + block(invoke("now")), "reasoning")
    assert events[:2] == [Reasoning("hm"), ToolCallStart(0, "now")]
    assert parser.made_call


def test_a_second_block_goes_on_counting(tiny):
    events, _ = parse(tiny, block(invoke("now")) + "dropped" + block(invoke("weather")))
    assert calls(events) == [("now", "{}"), ("weather", "{}")]
    assert text_of(events, Content) == ""


def test_an_empty_block_is_no_call(tiny):
    events, parser = parse(tiny, "a\n\n" + block(""))
    assert events == [Content("a")]
    assert not parser.made_call


def test_a_marker_that_opens_no_tag_is_text(tiny):
    text = "the ｜DSML｜ marker, <｜DSML｜\n, </｜DSML｜tool_calls> and <｜DSML｜x y> are text"
    assert parse(tiny, text)[0] == [Content(text)]


def test_a_tag_without_end_is_text_after_a_bound(tiny):
    parser = OutputParser(tiny, "content", TOOLS)
    parser.feed(tiny.encode_raw('<｜DSML｜invoke name="'))
    assert parser.feed(tiny.encode_text("x" * 400)) == []
    assert parser.feed(tiny.encode_text("x" * 400))
    assert len(text_of(parser.feed(tiny.encode_text("x" * 400)), Content)) == 400


def test_a_prompt_that_opened_the_block_starts_in_it(tiny):
    events, _ = parse(tiny, invoke("now") + "\n</｜DSML｜tool_calls>", "tools")
    assert calls(events) == [("now", "{}")]


def test_without_tools_no_markup_and_no_call_reaches_the_client(tiny):
    text = "a\n\n" + block(invoke("now")) + "b"
    events, parser = parse(tiny, text, tools=())
    assert events == [Content("a")]
    assert not parser.made_call


# Ends


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<｜DSML｜parameter name="city" string="true">Os', '{"city": "Os"}'),
        ('<｜DSML｜parameter name="city" string="true">Os <', '{"city": "Os <"}'),
        ('<｜DSML｜parameter name="city" string="true">Os</｜DSML｜para', '{"city": "Os"}'),
        ('<｜DSML｜parameter name="days" string="false">12', '{"days": 12}'),
        ('<｜DSML｜parameter name="days" string="false">[1,', '{"days": "[1,"}'),
        (parameter("city", "Oslo"), '{"city": "Oslo"}'),
        (parameter("city", "Oslo") + "<｜DSML｜parameter na", '{"city": "Oslo"}'),
        ("", "{}"),
    ],
)
def test_a_call_left_open_at_eos_is_closed_and_not_complete(tiny, text, arguments):
    ids = tiny.encode_raw('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n' + text)
    events, parser = parse(tiny, "", chunks=[[*ids, tiny.special.eos]], stopped=None)
    assert calls(events) == [("weather", arguments)]
    assert events[-1] == ToolCallEnd(0, complete=False)
    assert not parser.made_call


def test_a_call_cut_off_by_a_limit_stays_as_it_was_sent(tiny):
    text = '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Os'
    events, parser = parse(tiny, text, stopped=None)
    assert events == [ToolCallStart(0, "weather"), ToolCallArguments(0, '{"city": "Os')]
    assert not parser.made_call


def test_a_tag_cut_off_is_not_sent(tiny):
    for text in ("a\n\n<｜DSML｜", "a\n\n<｜DSML｜tool_ca", 'a\n\n<｜DSML｜invoke name="no'):
        assert parse(tiny, text)[0] == [Content("a")]
