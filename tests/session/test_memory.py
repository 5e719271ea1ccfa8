"""Conversations that come back: what was made stands in the next prompt, what was changed not."""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from relight.session import Options, Session, collect
from relight.session.memory import ENTRY_TOKENS, Memory, Opening
from relight.text.conversation import Conversation, Message, Tool, ToolCall
from relight.text.fingerprint import fingerprint
from tests.serve.fakes import CALL, ENCODER, EOS, TOKENIZER, counter, tokens

USER = Message("user", "Weather?")
TOOLS = (Tool("get_weather", None, {"type": "object", "properties": {"n": {}, "o": {}}}),)
NUMBERS = (
    CALL.replace('name="city" string="true">Paris<', 'name="n" string="false">2.50<')
    .replace("\n</｜DSML｜invoke>", '\n<｜DSML｜parameter name="o" string="false">{"b":[1,2],'
             '"a": null}</｜DSML｜parameter>\n</｜DSML｜invoke>')
)  # fmt: skip


def odd(text: str, seed: int = 0) -> list[int]:
    """Tokens of the text as no tokenizer splits it, but a model may."""
    chance = random.Random(seed)
    ids = []
    for part in tokens(text):
        spelt = TOKENIZER.token_bytes(part).decode("utf-8", "replace")
        small = [token for letter in spelt for token in TOKENIZER.encode_text(letter)]
        exact = part < 256 or "�" in spelt or spelt.startswith("<｜") or "DSML" in spelt
        exact = exact or spelt in ("<think>", "</think>")
        ids += [part] if exact or chance.random() < 0.3 else small
    assert TOKENIZER.decode(ids) == text
    return ids


class Talk:
    """A session with a memory, whose engine makes one answer after the other."""

    def __init__(self, *answers: str, memory: Memory | None = None) -> None:
        self.made = [odd(answer) for answer in answers]
        left = iter(self.made)
        self.client = ReplayClient(lambda request: next(left))
        self.session = Session(
            self.client, TOKENIZER, ENCODER, memory=memory or Memory(), new_id=counter()
        )

    def ask(self, *messages: Message, options: Options | None = None, **fields: Any) -> Message:
        fields = {"tools": TOOLS, "effort": "low"} | fields
        conversation = Conversation(messages=messages, **fields)

        async def run() -> Message:
            job = await self.session.chat(conversation, options or Options())
            answer = await collect(self.session.run(job))
            calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in answer.calls)
            return Message("assistant", answer.content, answer.reasoning, calls)

        return asyncio.run(run())

    @property
    def requests(self) -> list[Request]:
        return self.client.requests

    def goes_on(self) -> bool:
        """Whether the last prompt begins with the one before it and what was made of that."""
        before, last = self.requests[-2:]
        whole = (*before.prompt, *self.made[len(self.requests) - 2])
        return last.prompt[: len(whole)] == whole


def result(call: ToolCall, text: str = "sunny") -> Message:
    return Message("tool", text, tool_call_id=call.id)


def same(message: Message) -> Message:
    return message


def as_dicts(message: Message) -> Message:
    calls = tuple(
        ToolCall(call.id, call.name, json.loads(str(call.arguments))) for call in message.tool_calls
    )
    return Message("assistant", message.content, message.reasoning, calls)


def by_another_library(message: Message) -> Message:
    calls = tuple(
        ToolCall(
            call.id,
            call.name,
            json.dumps(
                dict(reversed(json.loads(str(call.arguments)).items())), separators=(",", ":")
            ),
        )
        for call in message.tool_calls
    )
    return Message("assistant", message.content, message.reasoning, calls)


def encoded_twice(message: Message) -> Message:
    calls = tuple(
        ToolCall(call.id, call.name, json.dumps(call.arguments)) for call in message.tool_calls
    )
    return Message("assistant", message.content, message.reasoning, calls)


def with_blanks(message: Message) -> Message:
    return Message(
        "assistant", f" {message.content}\n", f"{message.reasoning}\n", message.tool_calls
    )


def without_content(message: Message) -> Message:
    return Message("assistant", message.content or None, message.reasoning, message.tool_calls)


FORMS = [same, as_dicts, by_another_library, encoded_twice, with_blanks, without_content]
ANSWERS = {
    "call": "I need it.</think>" + CALL + EOS,
    "text and call": "I need it.\n</think>\n\nLet me see.  " + NUMBERS + EOS,
    "text": "Hm — π.</think>All is well. 🙂" + EOS,
    "no thoughts": "</think>All is well." + EOS,
    "bare": "All is well",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_comes_back_stands_as_it_was_made(
    name: str, form: Callable[[Message], Message]
) -> None:
    talk = Talk(ANSWERS[name], "x" + EOS)
    answer = talk.ask(USER)
    results = [result(call) for call in answer.tool_calls]
    talk.ask(USER, form(answer), *results, Message("user", "Go on."))
    assert talk.goes_on() or name == "bare"
    if name == "bare":  # reasoning that a limit cut off is closed as the template has it
        before, last = talk.requests
        whole = (*before.prompt, *talk.made[0], TOKENIZER.special.think_close)
        assert last.prompt[: len(whole)] == whole
    canonical = ENCODER.encode(
        Conversation(
            messages=(USER, answer, *results, Message("user", "Go on.")), tools=TOOLS, effort="low"
        )
    ).ids
    assert talk.requests[-1].prompt != canonical


def test_all_answers_of_a_long_conversation_stand_as_they_were_made() -> None:
    rounds = 6
    talk = Talk(*[ANSWERS["text and call"]] * rounds)
    messages = [USER]
    for number in range(rounds):
        answer = talk.ask(*messages)
        messages += [by_another_library(answer), result(answer.tool_calls[0], f"it is {number}")]
        assert number == 0 or talk.goes_on()


def test_without_thinking_an_answer_stands_as_it_was_made() -> None:
    talk = Talk("All — π — is well." + EOS, "x" + EOS)
    answer = talk.ask(USER, tools=(), thinking=False)
    talk.ask(USER, answer, USER, tools=(), thinking=False)
    assert talk.goes_on()


def test_what_the_template_drops_is_not_put_back() -> None:
    talk = Talk(ANSWERS["text"], "x" + EOS)
    answer = talk.ask(USER, tools=())
    talk.ask(USER, answer, USER, tools=())
    assert not talk.goes_on()
    assert "Hm" not in TOKENIZER.decode(talk.requests[-1].prompt)


def test_a_call_that_was_forced_stands_as_it_was_made() -> None:
    talk = Talk(CALL.partition("tool_calls>\n")[2] + EOS, "x" + EOS)
    answer = talk.ask(USER, thinking=False, tool_choice="required")
    assert answer.tool_calls
    talk.ask(USER, answer, result(answer.tool_calls[0]), thinking=False)
    assert talk.goes_on()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("</think>one two three" + EOS, Options(stop=("two",))),
        ("</think>" + CALL + EOS, Options(max_tokens=40)),
        ("</think>" + CALL.replace("\n</｜DSML｜tool_calls>", CALL[2:]) + EOS,
         Options(parallel_tool_calls=False)),
    ],
    ids=["stop string", "cut call", "second call"],
)  # fmt: skip
def test_what_the_client_was_not_told_is_not_put_back(text: str, options: Options) -> None:
    talk = Talk(text, "x" + EOS)
    answer = talk.ask(USER, options=options)
    back = Conversation(
        messages=(USER, answer, *map(result, answer.tool_calls), USER), tools=TOOLS, effort="low"
    )
    talk.ask(*back.messages)
    assert talk.requests[-1].prompt == ENCODER.encode(back).ids


def test_another_beginning_or_salt_recalls_nothing() -> None:
    for last in (
        {"messages": (Message("user", "Other?"),)},
        {"options": Options(cache_salt="b")},
    ):
        talk = Talk(ANSWERS["text"], "x" + EOS)
        answer = talk.ask(USER, options=Options(cache_salt="a"))
        messages = (*last.get("messages", (USER,)), answer, USER)  # type: ignore[misc]
        talk.ask(*messages, options=last.get("options", Options(cache_salt="a")))  # type: ignore[arg-type]
        back = Conversation(messages=messages, tools=TOOLS, effort="low")
        assert talk.requests[-1].prompt == ENCODER.encode(back).ids


def test_each_of_several_answers_stands_as_it_was_made() -> None:
    memory = Memory()
    texts = ["</think>All is well." + EOS, "</think>Not at all." + EOS]
    for text in texts:
        Talk(text, memory=memory).ask(USER)
    for text in texts:
        talk = Talk(text, "x" + EOS, memory=memory)
        talk.ask(USER, Message("assistant", text[8 : -len(EOS)], ""), USER)
        ids = talk.requests[-1].prompt
        made = tuple(odd(text))
        assert any(ids[i : i + len(made)] == made for i in range(len(ids)))


def broken(
    caplog: pytest.LogCaptureFixture, talk: Talk, *messages: Message, **fields: Any
) -> tuple[str, int, int]:
    """What the log says of the last of two prompts, and the token where it must say so."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        talk.ask(*messages, **fields)
    [line] = [r.getMessage() for r in caplog.records if "leaves an earlier prefix" in r.message]
    before, last = talk.requests[-2:]
    whole = (*before.prompt, *talk.made[len(talk.requests) - 2])
    pairs = enumerate(zip(whole, last.prompt, strict=False))
    at = next(i for i, (was, now) in pairs if was != now)
    assert f" at token {at} of {len(last.prompt)}" in line
    return line, at, len(whole)


def test_the_log_tells_which_message_broke_the_prefix(caplog: pytest.LogCaptureFixture) -> None:
    for change, why in (
        ({"reasoning": None}, "its reasoning did not come back"),
        ({"reasoning": "Other"}, "its reasoning came back changed"),
        ({"content": "Other"}, "its content came back changed"),
        ({"content": ""}, "its content did not come back"),
        ({"tool_calls": (ToolCall("x", "get_weather", "{}"),)}, "its calls came back changed"),
    ):
        talk = Talk(ANSWERS["text and call"], "x" + EOS)
        answer = talk.ask(USER)
        parts = {"content": answer.content, "reasoning": answer.reasoning}
        calls = {"tool_calls": answer.tool_calls}
        changed = Message("assistant", **parts | calls | change)  # type: ignore[arg-type]
        results = [result(call) for call in changed.tool_calls]
        line, at, _ = broken(caplog, talk, USER, changed, *results)
        assert "messages[1]" in line
        assert line.endswith(why)
        assert at >= len(talk.requests[0].prompt)


def test_the_log_tells_of_a_change_before_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (Message("user", "First"), Message("user", "Second"))
    system = Message("system", "Be terse.")
    for changed, where in (
        ((Message("system", "Be verbose."), first), "the system text"),
        ((system, Message("user", "1st")), "messages[1]"),
    ):
        talk = Talk(ANSWERS["text"], ANSWERS["text and call"], "x" + EOS)
        one = talk.ask(system, first)
        two = talk.ask(system, first, one, second)
        line, _, _ = broken(
            caplog, talk, *changed, one, second, two, result(two.tool_calls[0]), second
        )
        assert line.partition(": ")[2].startswith(where)


def test_nothing_is_logged_where_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        talk = Talk(ANSWERS["text"], "x" + EOS, "y" + EOS)
        answer = talk.ask(USER)
        talk.ask(USER, answer, USER)
        talk.ask(Message("user", "Another conversation"))
    assert "prefix" not in caplog.text


def test_a_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    size = 3 * (30 + ENTRY_TOKENS)
    memory = Memory(max_answer_tokens=size, max_prompt_tokens=size)
    what = fingerprint(Message("assistant", "x"))
    for number in range(20):
        memory.remember("", Opening(b"%d" % number, 1), (1,), [number] * 30, what)
        memory.recall("")(b"0", what)
    kept = [n for n in range(20) if memory.recall("")(b"%d" % n, what)]
    assert kept == [0, 18, 19]
    memory.remember("", Opening(b"large", 1), (1,), [1] * 1000, what)
    assert memory.recall("")(b"large", what) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(), child, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_call_has_one_fingerprint_however_it_is_spelt(arguments: dict[str, Any]) -> None:
    text = json.dumps(arguments)
    spellings: list[Any] = [
        text,
        arguments,
        json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), sort_keys=True),
        json.dumps(text),
        json.dumps(dict(reversed(arguments.items())), indent=1),
    ]
    prints = {
        fingerprint(Message("assistant", tool_calls=(ToolCall("x", "f", spelling),)))
        for spelling in spellings
        if spelling is arguments or _is_unicode(spelling)
    }
    assert len(prints) == 1


def _is_unicode(spelling: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in spelling)


def test_whole_numbers_are_equal_in_both_forms() -> None:
    def of(arguments: str) -> Any:
        return fingerprint(Message("assistant", tool_calls=(ToolCall("x", "f", arguments),)))

    assert of('{"a": 1.0, "b": [2e3]}') == of('{"b": [2000], "a": 1}')
    assert of('{"a": 1}') != of('{"a": "1"}')
    assert of('{"a": 12345678901234567890}') != of('{"a": 12345678901234567000}')
