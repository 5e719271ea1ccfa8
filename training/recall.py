"""Lists to repeat and pairs to look up: practice in looking back. Not measured. Knows no token.

A pair is stated with its answer behind the name, as keys are, or before it, as in a tool's schema,
where the name stands before what it does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from relight.ember import documents, tools
from relight.ember.words import (
    COMMON,
    MEASURES,
    PLACES,
    THINGS,
    Language,
    key,
    made_up_name,
    made_up_word,
)

AGAIN: dict[Language, tuple[str, ...]] = {
    "en": ("Repeat: {text}", "{text}\n\nSay that again.", "Write this again: {text}"),
    "zh": ("重复：{text}", "{text}\n\n请再说一遍。", "请重写：{text}"),
}
WHICH: dict[Language, tuple[str, ...]] = {
    "en": ("Which tool finds the {topic}?", "Where does the {topic} come from?"),
    "zh": ("哪个工具查询{topic}？", "{topic}由什么给出？"),
}
JOINTS = (", ", " ", "\n", "; ", "，")


@dataclass(frozen=True, slots=True)
class Pair:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Form:
    """How pairs are stated, asked for and answered."""

    stated: str
    asked: str
    answered: str
    joint: str = ""  # between statements; the language's if empty
    keys: float = 0.6  # the share of values that are keys; tools have names

    def statement(self, pair: Pair) -> str:
        return self.stated.format(name=pair.name, value=pair.value)

    def question(self, pair: Pair) -> str:
        return self.asked.format(name=pair.name)

    def answer(self, pair: Pair) -> str:
        return self.answered.format(name=pair.name, value=pair.value)


SCHEMA: dict[Language, str] = {
    "en": '{{"name": "{value}", "description": "Finds the {name}."}}',
    "zh": '{{"name": "{value}", "description": "查询{name}。"}}',
}

FORMS: dict[Language, tuple[Form, ...]] = {
    "en": (
        Form("{name} = {value}.", "{name}?", "{name} = {value}"),
        Form('"{value}": {name}.', "What comes from {name}?", "{name} comes from {value}."),
        Form(SCHEMA["en"], "Which tool finds the {name}?", "{name}: {value}", "\n", 0.0),
        Form(SCHEMA["en"], "What is the {name}?", "The {name} comes from {value}.", "\n", 0.0),
        Form(SCHEMA["en"], "Which tool finds the {name}?", "{value} finds it.", "\n", 0.0),
    ),
    "zh": (
        Form("{name} = {value}。", "{name}？", "{name} = {value}"),
        Form('"{value}"：{name}。', "{name}由什么给出？", "{name}由 {value} 给出。"),
        Form(SCHEMA["zh"], "哪个工具查询{name}？", "{name}：{value}", "\n", 0.0),
        Form(SCHEMA["zh"], "{name}是多少？", "{name}由 {value} 给出。", "\n", 0.0),
        Form(SCHEMA["zh"], "哪个工具查询{name}？", "由 {value} 给出。", "\n", 0.0),
    ),
}
"""Those of schemas differ in how far what was asked for stands from the answer."""


def draw_item(rng: Random, language: Language) -> str:
    kind = rng.random()
    if kind < 0.35:
        return key(rng, "train")
    if kind < 0.6:
        return made_up_name(rng, "train")
    if kind < 0.7:
        return str(rng.randint(0, 99999))
    if kind < 0.85:
        return rng.choice(COMMON)
    return rng.choice(THINGS)[language == "zh"]


def listed(rng: Random, language: Language, items: Sequence[str]) -> str:
    return rng.choice(JOINTS).join(items)


def stated(language: Language, form: Form, pairs: Sequence[Pair]) -> str:
    joint = form.joint or (" " if language == "en" else "")
    return joint.join(form.statement(pair) for pair in pairs)


def ask_again(rng: Random, language: Language, text: str) -> str:
    return rng.choice(AGAIN[language]).format(text=text)


def ask_tool(rng: Random, language: Language, request: tools.Request) -> tuple[str, str]:
    """Which tool it is, without a call."""
    question = rng.choice(WHICH[language]).format(topic=request.topic.text(language))
    return question, request.thought(language)


def draw_form(rng: Random, language: Language) -> Form:
    """One time in four the words of documents with hidden keys."""
    if rng.random() < 1 / 4:
        answer = documents.ANSWER[language].replace("{place}", "{name}").replace("{key}", "{value}")
        question = rng.choice(documents.ASK[language]).replace("{place}", "{name}")
        stated = rng.choice(documents.HIDE[language])
        stated = stated.replace("{place}", "{name}").replace("{key}", "{value}")
        return Form(stated, question, answer)
    return rng.choices(FORMS[language], (1, 1, 1, 1, 1))[0]


def draw_pairs(rng: Random, language: Language, keys: float) -> Iterator[Pair]:
    """Without end, no name twice; that share of the values are keys, the others names."""
    seen: set[str] = set()
    while True:
        name = _draw_name(rng, language)
        if name not in seen:
            seen.add(name)
            value = key(rng, "train") if rng.random() < keys else made_up_name(rng, "train")
            yield Pair(name, value)


def _draw_name(rng: Random, language: Language) -> str:
    zh = language == "zh"
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(PLACES)[zh]
    if kind < 0.7:
        topic = tools.Topic(rng.randrange(len(MEASURES)), rng.randrange(len(THINGS)))
        return topic.text(language)
    return rng.choice(COMMON) if rng.random() < 0.4 else made_up_word(rng, rng.choice((2, 3)))
