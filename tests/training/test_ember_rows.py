"""Rows are what the server sees, and what is learnt in them is what a model has to write."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from relight.ember.tasks import TASKS, held_out, instances, is_right
from relight.ember.words import LANGUAGES
from relight.text.conversation import Conversation, Message
from relight.text.parse import Content, OutputParser, ToolCallArguments, ToolCallStart
from relight.text.tokenizer import MARKERS, Tokenizer
from training.rows import SLICES, TAG, RowMaker
from training.stream import draw_batch

TOKENIZER = Path(__file__).parents[2] / "training" / "tokenizer"
KINDS = (
    ("thinking_row", 256),
    ("chat_row", 512),
    ("tools_row", 1024),
    ("key_row", 1024),
    ("recall_row", 512),
)


@pytest.fixture(scope="module", params=["v4", "v4.1"])
def maker(request: pytest.FixtureRequest) -> RowMaker:
    return RowMaker(Tokenizer.load(TOKENIZER), request.param)


def count_characters(text: str) -> int:
    return len(text) // 2


def test_tokenizer_has_4096_entries_and_copies_words_alike(maker: RowMaker) -> None:
    tokenizer = maker.tokenizer
    assert tokenizer.vocab_size == 4096
    assert len({getattr(tokenizer.special, name) for name in MARKERS}) == len(MARKERS)
    for text in ("", "vel_raxi = 12.5", "你好，Ember！\n\n é ∑ 🜂", "def f(x):\n    return x"):
        assert tokenizer.decode(tokenizer.encode_text(text)) == text
    digits = tokenizer.encode_text("1234567890")
    assert len(digits) == 10
    word = tokenizer.encode_text("jotrainkar")
    for around in ('"{}"', "k = {}.", "({})", "{}_x", "，{}。"):
        ids = tokenizer.encode_text(around.format("jotrainkar"))
        assert any(ids[i : i + len(word)] == word for i in range(len(ids))), around


@pytest.mark.parametrize(("kind", "length"), KINDS)
def test_rows_repeat_and_differ_by_seed(maker: RowMaker, kind: str, length: int) -> None:
    make = getattr(maker, kind)
    first, again, other = (make(Random(seed), length) for seed in (1, 1, 2))
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.tags, again.tags)
    assert not np.array_equal(first.ids, other.ids)
    assert first.ids.shape == (length + 1,)
    assert first.tags.shape == (length,)


def test_learnt_tokens_of_a_tool_row_parse_to_calls_of_its_tools(maker: RowMaker) -> None:
    special = maker.special
    seen = 0
    for seed in range(6):
        row = maker.tools_row(Random(seed), 1024)
        learnt = row.tags == TAG["tool call"]
        edges = np.flatnonzero(np.diff(learnt.astype(int), prepend=0, append=0))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            answer = row.ids[start + 1 : end + 1].tolist()
            if answer[-1] != special.eos:
                continue  # cut off by the end of the row
            begins = "reasoning" if special.think_close in answer else "content"
            tools = instances_tools(maker)
            events = OutputParser(maker.tokenizer, begins, tools).feed(answer)
            assert any(isinstance(event, ToolCallStart) for event in events)
            seen += 1
    assert seen > 10


def instances_tools(maker: RowMaker) -> tuple:  # type: ignore[type-arg]
    return next(instances("tool call", "en", 0, count_characters)).conversation.tools


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_canonical_answers_are_right_and_others_wrong(
    maker: RowMaker, task: str, language: str
) -> None:
    stream = instances(task, language, 3, count_characters)  # type: ignore[arg-type]
    some = [next(stream) for _ in range(12)]
    for instance, other in zip(some, [*some[1:], some[0]], strict=True):
        prompt = maker.encoder.encode(instance.conversation)
        ids = maker.encode_output(instance.canonical, instance.conversation.thinking)
        parser = OutputParser(maker.tokenizer, prompt.start, instance.conversation.tools)
        events = [*parser.feed(ids), *parser.finish()]
        content = "".join(e.text for e in events if isinstance(e, Content))
        names = [e.name for e in events if isinstance(e, ToolCallStart)]
        arguments = "".join(e.text for e in events if isinstance(e, ToolCallArguments))
        calls = [(name, arguments) for name in names]
        assert is_right(instance, content, calls)
        assert not is_right(instance, "", [])
        if other.expected != instance.expected:
            assert not is_right(other, content, calls)


def test_history_is_encoded_as_it_was_generated(maker: RowMaker) -> None:
    """Training on a finished turn and serving the next one see the same ids."""
    instance = next(instances("tool call", "zh", 5, count_characters))
    conversation = instance.conversation
    ids = [
        *maker.encoder.encode(conversation).ids,
        *maker.encode_output(instance.canonical, conversation.thinking),
    ]
    call = instance.canonical.calls[0]
    output = instance.canonical
    longer = Conversation(
        messages=(
            *conversation.messages,
            Message("assistant", output.content, output.reasoning, output.calls),
            Message("tool", "1", tool_call_id=call.id),
        ),
        tools=conversation.tools,
        thinking=conversation.thinking,
    )
    assert list(maker.encoder.encode(longer).ids[: len(ids)]) == ids


def test_training_never_shows_a_held_out_instance(maker: RowMaker) -> None:
    held = held_out(1, 40, count_characters)
    questions = {
        instance.conversation.messages[0].content
        for (task, _), some in held.items()
        for instance in some
        if task in ("arithmetic", "letters")
    }
    names = {
        name
        for some in held.values()
        for instance in some
        for tool in instance.conversation.tools
        for name in (tool.name, *tool.parameters["properties"])
    }
    keys = {
        instance.expected
        for (task, _), some in held.items()
        if task.startswith("key")
        for instance in some
    }
    for number in range(3):
        batch = draw_batch(maker, Random(number), 0.5, 4096)
        for ids in batch.ids:
            text = maker.tokenizer.decode(ids.tolist())
            assert not any(f"｜>{question}<｜" in text for question in questions)
            assert not any(f'"name": "{name}"' in text for name in names)
            assert not any(key in text for key in keys)


def test_every_slice_is_learnt(maker: RowMaker) -> None:
    seen = set()
    for kind, length in KINDS:
        for seed in range(4):
            seen |= set(getattr(maker, kind)(Random(seed), length).tags.tolist())
    assert {TAG[name] for name in SLICES} <= seen
