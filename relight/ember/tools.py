"""Tool calls: made-up tools, a request for one of them, its arguments, its result, the answer.

Names are made up and held out by hash, and a request tells a tool by what it does, so a model has
to find the tool in the prompt and copy its name.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from relight.ember.split import Split
from relight.ember.words import (
    COMMON,
    LANGUAGES,
    MEASURES,
    THINGS,
    Language,
    made_up_name,
    made_up_word,
)
from relight.text.conversation import Tool, ToolCall

Value = str | int | float | bool
TYPES = ("string", "integer", "number", "boolean")

DESCRIBE: dict[Language, str] = {"en": "Finds the {topic}.", "zh": "查询{topic}。"}
ASK: dict[Language, tuple[str, ...]] = {
    "en": (
        "What is the {topic}? Use {given}.",
        "Please find the {topic} with {given}.",
        "I need the {topic}. Set {given}.",
        "Look up the {topic}, {given}.",
    ),
    "zh": (
        "{topic}是多少？用 {given}。",
        "请查询{topic}，{given}。",
        "我想知道{topic}，设 {given}。",
        "帮我查一下{topic}，参数是 {given}。",
    ),
}
ASK_BY_NAME: dict[Language, tuple[str, ...]] = {
    "en": ("Call {name} with {given}.", "Please use {name}, {given}."),
    "zh": ("调用 {name}，{given}。", "请使用 {name}，{given}。"),
}
GIVEN: dict[Language, tuple[str, str]] = {"en": ("{k} = {v}", ", "), "zh": ("{k} = {v}", "，")}
THOUGHT: dict[Language, str] = {
    "en": "The {topic} comes from {name}.",
    "zh": "{topic}由 {name} 给出。",
}
RESULTS = ('{{"result": {json}}}', "{plain}", '{{"status": "ok", "value": {json}}}')
ANSWER: dict[Language, str] = {"en": "The {topic} is {value}.", "zh": "{topic}是 {value}。"}


class Topic(msgspec.Struct, frozen=True):
    measure: int
    thing: int

    def text(self, language: Language) -> str:
        place = LANGUAGES.index(language)
        measure, thing = MEASURES[self.measure][place], THINGS[self.thing][place]
        return f"{measure} of {thing}" if language == "en" else f"{thing}的{measure}"


class Request(msgspec.Struct, frozen=True):
    """One use of one tool."""

    text: str
    topic: Topic
    tool: Tool
    arguments: dict[str, Value]
    result: str
    value: str

    def call(self, id: str) -> ToolCall:
        return ToolCall(id, self.tool.name, dict(self.arguments))

    def thought(self, language: Language) -> str:
        return THOUGHT[language].format(topic=self.topic.text(language), name=self.tool.name)

    def answer(self, language: Language) -> str:
        return ANSWER[language].format(topic=self.topic.text(language), value=self.value)


class Toolbox(msgspec.Struct, frozen=True):
    """Tools with a topic each."""

    tools: tuple[Tool, ...]
    topics: tuple[Topic, ...]


def draw_toolbox(rng: Random, language: Language, split: Split, *, most: int = 8) -> Toolbox:
    """3 to `most` tools of 1 to 3 arguments; no two are about the same topic."""
    count = rng.randint(3, most)
    names: set[str] = set()
    topics: list[Topic] = []
    tools: list[Tool] = []
    while len(tools) < count:
        topic = Topic(rng.randrange(len(MEASURES)), rng.randrange(len(THINGS)))
        name = made_up_name(rng, split)
        if topic in topics or name in names:
            continue
        names.add(name)
        topics.append(topic)
        tools.append(_draw_tool(rng, language, split, name, topic))
    return Toolbox(tuple(tools), tuple(topics))


def _draw_tool(rng: Random, language: Language, split: Split, name: str, topic: Topic) -> Tool:
    arguments: dict[str, str] = {}
    for _ in range(rng.randint(1, 3)):
        arguments[made_up_name(rng, split)] = rng.choice(TYPES)
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
        "required": list(arguments),
    }
    return Tool(name, DESCRIBE[language].format(topic=topic.text(language)), parameters)


def draw_request(
    rng: Random,
    language: Language,
    box: Toolbox,
    *,
    by_name: bool = False,
    which: int | None = None,
) -> Request:
    """A request, for any tool or for that one, that names all arguments in the schema's order."""
    i = rng.randrange(len(box.tools)) if which is None else which
    tool, topic = box.tools[i], box.topics[i]
    assert tool.parameters is not None
    arguments = {
        name: _draw_value(rng, kind["type"]) for name, kind in tool.parameters["properties"].items()
    }
    form, comma = GIVEN[language]
    given = comma.join(form.format(k=k, v=plain(v)) for k, v in arguments.items())
    forms = ASK_BY_NAME if by_name else ASK
    text = rng.choice(forms[language]).format(
        topic=topic.text(language), name=tool.name, given=given
    )
    value = _draw_value(rng, rng.choice(("string", "integer", "number")))
    result = rng.choice(RESULTS).format(json=msgspec.json.encode(value).decode(), plain=value)
    return Request(text, topic, tool, arguments, result, plain(value))


def _draw_value(rng: Random, kind: str) -> Value:
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "integer":
        return rng.randint(0, 10 ** rng.randint(1, 4))
    if kind == "number":
        return round(rng.randint(0, 99) + rng.randint(1, 9) / 10, 1)
    words: Sequence[str] = [
        rng.choice(COMMON) if rng.random() < 0.5 else made_up_word(rng, 2)
        for _ in range(rng.choice((1, 1, 2)))
    ]
    return " ".join(words)


def plain(value: Value) -> str:
    """As people and JSON write it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
