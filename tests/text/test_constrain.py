"""Whatever a model draws from what a constraint allows is read back as what was asked for."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from relight.base.errors import BadRequest
from relight.text.calls import Markup
from relight.text.constrain import PLAIN_NAMES, Format, Wanted, constraints, suspects
from relight.text.conversation import Start, Tool, ToolCall
from relight.text.dsml import V4_TAGS, V41_TAGS, render_calls
from relight.text.grammar import Vocabulary
from relight.text.parse import (
    Content,
    Event,
    OutputParser,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from relight.text.tokenizer import Tokenizer
from tests.text.constrained import babble, ids_of, is_in, portions, random_object, whole

TAGS = {"v4": V4_TAGS, "v4.1": V41_TAGS}


@pytest.fixture(scope="module")
def words(tiny: Tokenizer) -> Vocabulary:
    return Vocabulary(tiny)


@pytest.fixture(scope="module")
def ember() -> Tokenizer:
    """The vocabulary of 4,096 tokens that the embedded model is trained with."""
    return Tokenizer.load(Path(__file__).parents[2] / "training" / "tokenizer")


@pytest.fixture(scope="module")
def ember_words(ember: Tokenizer) -> Vocabulary:
    return Vocabulary(ember)


@pytest.fixture(scope="module")
def public_words(public: Tokenizer) -> Vocabulary:
    return Vocabulary(public)


def calls_of(events: list[Event]) -> list[tuple[str, str, bool]]:
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    complete = set()
    for event in events:
        match event:
            case ToolCallStart(index, name):
                names[index], texts[index] = name, ""
            case ToolCallArguments(index, text):
                texts[index] += text
            case ToolCallEnd(index, True):
                complete.add(index)
    return [(names[i], texts[i], i in complete) for i in sorted(names)]


def read(
    tokenizer: Tokenizer, start: Start, tools: Sequence[Tool], tokens: list[int], rng: random.Random
) -> tuple[list[tuple[str, str, bool]], str]:
    """Calls and content, read in portions of any size."""
    parser = OutputParser(tokenizer, start, tools)
    events = [event for part in portions(tokens, rng) for event in parser.feed(part)]
    events += parser.finish(stopped=True)
    return calls_of(events), "".join(e.text for e in events if isinstance(e, Content))


@pytest.mark.parametrize("dialect", TAGS)
@pytest.mark.parametrize("forced", [True, False], ids=["forced", "free"])
def test_calls_have_arguments_that_their_schemas_allow(
    tiny: Tokenizer, words: Vocabulary, dialect: str, forced: bool
) -> None:
    """Any schema that compiles, in any order of drawing; where nothing is drawn to its end the
    calls before the last are whole."""
    rng = random.Random(f"calls {dialect} {forced}")
    markup = Markup(TAGS[dialect], tiny.special.dsml)
    seen: Counter[str] = Counter()
    for _ in range(100):
        tools = tuple(
            Tool(name, None, whole(random_object(rng), rng), strict=True)
            for name in ("get", "put-it")[: rng.randint(1, 2)]
        )
        start: Start = rng.choice(["tools", "content", "reasoning"]) if forced else "content"
        wanted = Wanted(start=start, tools=tools, forced=forced, parallel=rng.random() < 0.8)
        wishes = constraints(wanted, markup, tiny.special)
        try:
            words.compile(wishes[0].grammar)
        except BadRequest:
            seen["refused"] += 1
            continue
        tokens, ended = babble(tiny, words, wishes[0], rng)
        seen["ended"] += ended
        if not forced:
            tokens = [*tiny.encode_text("<"), tiny.special.dsml, *tokens]
        parse_start: Start = "tools" if start == "tools" else "content"
        calls, content = read(tiny, parse_start, tools, tokens, rng)
        assert content == ""
        assert calls or not ended
        assert len(calls) <= 1 or wanted.parallel
        for name, arguments, complete in calls:
            if complete and ended:
                tool = next(tool for tool in tools if tool.name == name)
                jsonschema.validate(json.loads(arguments), tool.parameters)
                seen["calls"] += 1
    assert seen["calls"] > 100, seen
    assert seen["ended"] > 60, seen
    assert seen["refused"] < 30, seen


@pytest.mark.parametrize("dialect", TAGS)
def test_calls_of_tools_that_are_not_strict_are_always_whole_json(
    tiny: Tokenizer, words: Vocabulary, dialect: str
) -> None:
    rng = random.Random(f"loose {dialect}")
    markup = Markup(TAGS[dialect], tiny.special.dsml)
    tools = (Tool("get", None, {"type": "object", "required": ["n"], "not": {}}), Tool("put"))
    wanted = Wanted(start="content", tools=tools)
    (constraint,) = constraints(wanted, markup, tiny.special)
    assert constraint.after == tiny.special.dsml
    assert constraint.opens_tag
    names = set()
    for _ in range(40):
        tokens, ended = babble(tiny, words, constraint, rng)
        tokens = [*tiny.encode_text("Yes.\n\n<"), tiny.special.dsml, *tokens]
        calls, content = read(tiny, "reasoning", tools, tokens, rng)
        assert content == ""
        if ended:
            assert all(complete for _, _, complete in calls)
            assert all(isinstance(json.loads(text), dict) for _, text, _ in calls)
            names |= {name for name, _, _ in calls}
    assert names == {"get", "put"}


FORMATS = {
    "object": Format(kind="json_object"),
    "schema": Format(kind="json_schema", value={"type": "array", "items": {"type": "integer"}}),
    "regex": Format(kind="regex", value=r"^[a-z/]{3}-\d+$"),
    "choice": Format(kind="choice", value=["yes", 'no "\\"', "é"]),
    "lark": Format(kind="grammar", value='start: a\na: "(" a ")" | "x"'),
    "gbnf": Format(kind="grammar", value='root ::= "a" root | "b"'),
}


def is_of(format: str, text: str) -> bool:
    match format:
        case "object":
            return isinstance(json.loads(text), dict)
        case "schema":
            return all(type(item) is int for item in json.loads(text))
        case "regex":
            return re.fullmatch(r"[a-z/]{3}-[0-9]+", text) is not None
        case "choice":
            return text in FORMATS["choice"].value
        case "lark":
            return re.fullmatch(r"\(*x\)*", text) is not None and text.count("(") == text.count(")")
        case _:
            return re.fullmatch("a*b", text) is not None


@pytest.mark.parametrize("vocabulary", ["tiny", "ember", "public"])
@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_has_the_form_that_was_asked_for(
    request: pytest.FixtureRequest, format: str, vocabulary: str
) -> None:
    tokenizer = request.getfixturevalue(vocabulary)
    words = request.getfixturevalue("words" if vocabulary == "tiny" else f"{vocabulary}_words")
    markup = Markup(V4_TAGS, tokenizer.special.dsml)
    rng = random.Random(format)
    for start in ("content", "reasoning"):
        wanted = Wanted(start=start, format=FORMATS[format])
        (constraint,) = constraints(wanted, markup, tokenizer.special)
        assert (constraint.after == tokenizer.special.think_close) == (start == "reasoning")
        ended = 0
        for _ in range(8 if vocabulary == "public" else 25):
            tokens, whole = babble(tokenizer, words, constraint, rng, limit=300)
            ended += whole
            if whole:
                assert is_of(format, tokenizer.decode(tokens))
        assert ended


def test_an_answer_is_of_its_form_or_a_call_if_both_may_be(
    tiny: Tokenizer, words: Vocabulary
) -> None:
    rng = random.Random("both")
    markup = Markup(V4_TAGS, tiny.special.dsml)
    tools = (Tool("get", None, {"type": "object", "properties": {"a": {"type": "integer"}}}),)
    for format in FORMATS:
        wanted = Wanted(start="content", tools=tools, format=FORMATS[format])
        (constraint,) = constraints(wanted, markup, tiny.special)
        seen = Counter[str]()
        for _ in range(60):
            tokens, ended = babble(tiny, words, constraint, rng, limit=300)
            calls, content = read(tiny, "content", tools, tokens, rng)
            if ended and calls:
                assert content == ""
                seen["calls"] += 1
            elif ended:
                assert is_of(format, tiny.decode(tokens))
                seen["text"] += 1
        assert seen["calls"], (format, seen)
        assert seen["text"], (format, seen)


@pytest.mark.parametrize("dialect", TAGS)
def test_a_forced_call_of_a_tool_that_lists_no_parameters_has_none(
    tiny: Tokenizer, words: Vocabulary, dialect: str
) -> None:
    rng = random.Random(f"none {dialect}")
    markup = Markup(TAGS[dialect], tiny.special.dsml)
    schemas: dict[str, Any] = {
        "listed": {"type": "object", "properties": {}},
        "absent": None,
        "free": {"type": "object"},
        "any": {},
    }
    made: dict[str, set[str]] = {name: set() for name in schemas}
    for name, schema in schemas.items():
        tools = (Tool(name, None, schema),)
        wanted = Wanted(start="content", tools=tools, forced=True, parallel=False)
        close = constraints(wanted, markup, tiny.special)[0]  # the one that is tried first
        for _ in range(20):
            tokens, ended = babble(tiny, words, close, rng)
            calls, _ = read(tiny, "content", tools, tokens, rng)
            made[name] |= {arguments for _, arguments, _ in calls if ended}
    assert made["listed"] == made["absent"] == {"{}"}
    for name in ("free", "any"):  # what has no list may have any parameters
        assert made[name] > {"{}"}


def test_what_is_forced_in_both_dialects_is_what_the_model_writes_itself(
    public: Tokenizer, public_words: Vocabulary
) -> None:
    """The tokens of a call as history has it are all allowed, and the grammar ends behind them."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "o": {}},
        "required": ["city"],
    }
    arguments = {"city": "Zürich </x>\n", "days": 3, "o": {"k": [1, None, "é"]}}
    calls = (ToolCall("1", "get", arguments), ToolCall("2", "now", {}))
    tools = (Tool("get", None, schema), Tool("now", None, {"type": "object", "properties": {}}))
    for tags in TAGS.values():
        markup = Markup(tags, public.special.dsml)
        wanted = Wanted(start="content", tools=tools, forced=True)
        for constraint in constraints(wanted, markup, public.special):
            matcher = public_words.compile(constraint.grammar).start()
            segments = list(render_calls(calls, tags, public.special.dsml))
            for token in chain.from_iterable(public.encode_segments(segments)):
                assert token in ids_of(matcher.mask()), public.decode([token])
                matcher.consume(token)
            assert ids_of(matcher.mask()) == [public.special.eos]


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        (Format(kind="json_schema", value={"not": {}}), 'Unimplemented keys: ["not"]'),
        (Format(kind="json_schema", value={"$ref": "#"}), "allows no text"),
        (Format(kind="regex", value="(?=a)b"), "look"),
        (Format(kind="regex", value="(((("), "regex"),
        (Format(kind="grammar", value="start: %%%"), "1("),
        (
            Format(kind="json_schema", value={"enum": [f"v{i}" for i in range(100_000)]}),
            "too big",
        ),
    ],
)
def test_what_does_not_compile_is_told(
    tiny: Tokenizer, words: Vocabulary, format: Format, reason: str
) -> None:
    wanted = Wanted(start="content", format=format)
    (constraint,) = constraints(wanted, Markup(V4_TAGS, tiny.special.dsml), tiny.special)
    with pytest.raises(BadRequest, match=re.escape(reason)):
        words.compile(constraint.grammar)


def test_the_tool_whose_schema_does_not_compile_is_named(
    tiny: Tokenizer, words: Vocabulary
) -> None:
    good = {"type": "object", "properties": {"a": {"type": "integer"}}}
    bad = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = (Tool("one", None, good, True), Tool("two", None, bad, True), Tool("three", None, bad))
    wanted = Wanted(start="content", tools=tools)
    found = []
    for suspect in suspects(wanted, Markup(V4_TAGS, tiny.special.dsml)):
        try:
            words.compile(suspect.grammar)
        except BadRequest:
            found.append(suspect.param)
    assert found == ["tools[1]"]


@pytest.mark.parametrize("strict", [False, True])
def test_hundreds_of_tools_compile(tiny: Tokenizer, words: Vocabulary, strict: bool) -> None:
    """Free ones in any number: nobody asks whether they do."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    count = 300 if strict else PLAIN_NAMES // 25
    tools = tuple(Tool(f"a-tool-of-number-{i:05}", None, schema, strict) for i in range(count))
    wanted = Wanted(start="content", tools=tools)
    markup = Markup(V4_TAGS, tiny.special.dsml)
    (constraint,) = constraints(wanted, markup, tiny.special)
    assert wanted.is_plain or strict
    matcher = words.compile(constraint.grammar).start()
    text = ["tool_calls>\n<", tiny.special.dsml, f'invoke name="{tools[-1].name}">\n<']
    for token in chain.from_iterable(tiny.encode_segments(text)):
        assert is_in(matcher.mask(), token)
        matcher.consume(token)


@pytest.mark.parametrize("strict", [(), ("get",), ("getter", "ge"), ("get", "getter", "ge")])
def test_tools_whose_names_begin_alike_can_all_be_called(
    tiny: Tokenizer, words: Vocabulary, strict: tuple[str, ...]
) -> None:
    names = ("get", "getter", "ge", "g-et")
    tools = tuple(Tool(name, None, {"type": "object"}, name in strict) for name in names)
    markup = Markup(V41_TAGS, tiny.special.dsml)
    wanted = Wanted(start="content", tools=tools, forced=True)
    for constraint in constraints(wanted, markup, tiny.special):
        for name in names:
            matcher = words.compile(constraint.grammar).start()
            calls = render_calls(
                (ToolCall("1", name, {"a": "x", "b": [1]}),), V41_TAGS, markup.dsml
            )
            for token in chain.from_iterable(tiny.encode_segments(list(calls))):
                assert is_in(matcher.mask(), token), name
                matcher.consume(token)
            matcher.mask()
            assert matcher.is_whole
