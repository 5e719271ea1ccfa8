"""The tasks that ember is measured by: seeded instances as conversations, what a right answer is,
and whether an answer is right. Knows no engine; who runs them brings the answers.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Literal

import msgspec

from relight.ember import arithmetic, documents, letters, tools
from relight.ember.split import Split
from relight.ember.words import LANGUAGES, Language
from relight.text.conversation import Conversation, Message, ToolCall

Task = Literal["arithmetic", "letters", "tool call", "tool result", "key 1K", "key 4K"]
TASKS: tuple[Task, ...] = (
    "arithmetic",
    "letters",
    "tool call",
    "tool result",
    "key 1K",
    "key 4K",
)
KEY_LENGTHS: dict[Task, int] = {"key 1K": 1024, "key 4K": 4096}
"""Tokens of the prompt and the answer together, at most."""

ROOM = 72
"""Tokens of those that are not document: markers, the question, the answer, and some to spare."""

KEYS_PER_DOCUMENT = 16
"""Places with a key of their own; each is asked for. The others distract."""

REQUESTS_PER_TOOLBOX = 16
"""As with documents: what is asked of the same tools shares the long prefix of its prompt."""


class Output(msgspec.Struct, frozen=True):
    """What an assistant turn says. As the canonical one of an instance, what training showed."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None


class Instance(msgspec.Struct, frozen=True):
    """One question. `expected`: a number, a key, a value, or the name and arguments of a call."""

    task: Task
    language: Language
    conversation: Conversation
    expected: Any
    canonical: Output


def instances(
    task: Task,
    language: Language,
    seed: int,
    count_tokens: Callable[[str], int],
    split: Split = "held-out",
) -> Iterator[Instance]:
    """Without end, the same for the same arguments. `count_tokens` steers the length of
    documents. Questions about one document, or to the same tools, follow one another, so that a
    prefix cache can help."""
    rng = Random(f"{task} {language} {seed}")
    while True:
        yield from _draw(task, rng, language, split, count_tokens)


def held_out(
    seed: int, per_task: int, count_tokens: Callable[[str], int]
) -> dict[tuple[Task, Language], list[Instance]]:
    """`per_task` instances of every task and language."""
    drawn = {}
    for task in TASKS:
        for language in LANGUAGES:
            stream = instances(task, language, seed, count_tokens)
            drawn[task, language] = [next(stream) for _ in range(per_task)]
    return drawn


def _draw(
    task: Task,
    rng: Random,
    language: Language,
    split: Split,
    count_tokens: Callable[[str], int],
) -> Iterator[Instance]:
    if task == "arithmetic":
        yield _arithmetic(rng, language, split, thinking=rng.random() < 0.5)
    elif task == "letters":
        yield _letters(rng, language, split, thinking=rng.random() < 0.5)
    elif task in ("tool call", "tool result"):
        box = tools.draw_toolbox(rng, language, split)
        thinking = rng.random() < 0.5  # what asks for it stands in front of the tools
        for _ in range(REQUESTS_PER_TOOLBOX):
            if task == "tool call":
                yield _tool_call(rng, language, box, thinking=thinking)
            else:
                yield _tool_result(rng, language, box)
    else:
        yield from _keys(task, rng, language, split, count_tokens)


def _arithmetic(rng: Random, language: Language, split: Split, *, thinking: bool) -> Instance:
    task = arithmetic.draw_sum(rng, split)
    question = arithmetic.question(rng, language, task)
    return Instance(
        "arithmetic",
        language,
        ask(question, thinking=thinking),
        task.result,
        arithmetic_output(language, task, thinking=thinking),
    )


def _letters(rng: Random, language: Language, split: Split, *, thinking: bool) -> Instance:
    task = letters.draw_count(rng, split)
    question = letters.question(rng, language, task)
    return Instance(
        "letters",
        language,
        ask(question, thinking=thinking),
        task.result,
        letters_output(language, task, thinking=thinking),
    )


def arithmetic_output(language: Language, task: arithmetic.Sum, *, thinking: bool) -> Output:
    if thinking:
        thought = arithmetic.thought(language, task)
        return Output(arithmetic.answer(language, task), reasoning=thought)
    return Output(arithmetic.worked_answer(language, task))


def letters_output(language: Language, task: letters.Count, *, thinking: bool) -> Output:
    if thinking:
        return Output(letters.answer(language, task), reasoning=letters.spelt(task))
    return Output(letters.worked_answer(language, task))


def _tool_call(rng: Random, language: Language, box: tools.Toolbox, *, thinking: bool) -> Instance:
    request = tools.draw_request(rng, language, box)
    call = request.call("call_0")
    return Instance(
        "tool call",
        language,
        ask(request.text, thinking=thinking, box=box),
        {"name": call.name, "arguments": call.arguments},
        Output(calls=(call,), reasoning=request.thought(language) if thinking else None),
    )


def _tool_result(rng: Random, language: Language, box: tools.Toolbox) -> Instance:
    request = tools.draw_request(rng, language, box)
    call = request.call("call_0")
    messages = (
        Message("user", request.text),
        Message("assistant", tool_calls=(call,)),
        Message("tool", request.result, tool_call_id=call.id),
    )
    conversation = Conversation(messages=messages, tools=box.tools, thinking=False)
    return Instance(
        "tool result", language, conversation, request.value, Output(request.answer(language))
    )


def _keys(
    task: Task,
    rng: Random,
    language: Language,
    split: Split,
    count_tokens: Callable[[str], int],
) -> Iterator[Instance]:
    length = KEY_LENGTHS[task] - ROOM
    document = documents.draw_document(
        rng, language, split, length, count_tokens, KEYS_PER_DOCUMENT
    )
    for hidden in document.hidden:
        question = documents.question(rng, language, hidden)
        yield Instance(
            task,
            language,
            ask(f"{document.text}\n\n{question}", thinking=False),
            hidden.key,
            Output(documents.answer(language, hidden)),
        )


def ask(text: str, *, thinking: bool, box: tools.Toolbox | None = None) -> Conversation:
    return Conversation(
        messages=(Message("user", text),), tools=box.tools if box else (), thinking=thinking
    )


def is_right(instance: Instance, content: str, calls: Sequence[tuple[str, str]]) -> bool:
    """Judges an answer by its content and its calls (name, JSON arguments), as a client sees them.

    A number is the last integer of the content; a key or a value must stand in it as a word of its
    own; a call must be the only one, with exactly the expected name and arguments.
    """
    expected = instance.expected
    if instance.task == "tool call":
        return len(calls) == 1 and _call(*calls[0]) == expected
    if calls:
        return False
    if instance.task in ("arithmetic", "letters"):
        numbers = re.findall(r"-?\d+", content)
        return bool(numbers) and int(numbers[-1]) == expected
    found = re.search(rf"(?<![\w.]){re.escape(expected)}(?![\w]|\.\d)", content, re.ASCII)
    return found is not None


def _call(name: str, arguments: str) -> Any:
    try:
        return {"name": name, "arguments": json.loads(arguments)}
    except ValueError:
        return None
