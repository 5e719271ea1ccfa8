"""Answers of a real engine with random weights: whatever the weights say, the form is kept, and
overlapping steps change no text."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from relight.base.errors import BadRequest
from relight.llm import LLM
from relight.session import Answer, Job, Options, collect_all
from relight.text.constrain import Format
from relight.text.conversation import Conversation, Message, Tool
from tests.engine.real import write_checkpoint
from tests.serve.fakes import FOLDER, TOKENIZER

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "bc", None]},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["n", "kind"],
    "additionalProperties": False,
}
TOOLS = (
    Tool("put", None, SCHEMA, strict=True),
    Tool("get", None, {"type": "object", "properties": {"id": {"enum": ["x", "y"]}}}),
)
CALM = Conversation(messages=(Message("user", "Hi"),), thinking=False)
MUSING = Conversation(messages=(Message("user", "Hi"),), thinking=True)


pytestmark = pytest.mark.slow  # some hundred steps, of a network that is not made for a processor

Asked = tuple[Conversation | str, Options]


def form(kind: Any, value: Any = None) -> Format:
    return Format(kind=kind, value=value)


def sampled(max_tokens: int = 120, **options: Any) -> Options:
    """Random weights like blanks; without them a text comes to an end."""
    blanks = {TOKENIZER.encode_text(text)[0]: -9.0 for text in " \n\t\r"}
    return Options(**{"seed": 1, "max_tokens": max_tokens, "logit_bias": blanks, **options})


def forced(conversation: Conversation, name: str | None = None) -> Conversation:
    return replace(conversation, tools=TOOLS, tool_choice="required", forced_tool=name)


ASKED: dict[str, Asked] = {
    "objects": (CALM, sampled(format=form("json_schema", SCHEMA), n=2)),
    "greedy": (CALM, sampled(format=form("json_schema", SCHEMA), temperature=0.0)),
    "scored": (
        CALM,
        sampled(format=form("json_schema", SCHEMA), top_k=3, presence_penalty=2.0, logprobs=2),
    ),
    "raw": ("x", sampled(format=form("regex", "[a-c]{2,5}-[0-9]"))),
    "musing": (MUSING, sampled(format=form("choice", ["yes", "no"]), thinking_budget=5)),
    "any call": (forced(CALM), sampled(seed=2)),
    "put": (forced(CALM, "put"), sampled(seed=3)),
    "get": (forced(MUSING, "get"), sampled(250, thinking_budget=4, parallel_tool_calls=False)),
    "early": (CALM, sampled(format=form("choice", ["yes", "no"]), min_tokens=50)),
    "late": (CALM, sampled(20, format=form("choice", ["yes", "no"]), ignore_eos=True)),
    "cut": (CALM, sampled(7, format=form("regex", "(ab){100}"))),
    "stopped": (CALM, sampled(format=form("regex", "[ab]{3}-[ab]{3}"), stop=("-",))),
}


def answers(llm: LLM, asked: Sequence[Asked]) -> list[list[Answer]]:
    """All at once, `n` for each."""
    session = llm._session

    async def job(what: Conversation | str, options: Options) -> Job:
        if isinstance(what, str):
            return await session.complete(what, options)
        return await session.chat(what, options)

    async def run() -> list[Answer]:
        jobs = [each for asking in asked for each in session.choices(await job(*asking))]
        return await collect_all(session, jobs)

    left = asyncio.run(run())
    return [[left.pop(0) for _ in range(options.n)] for _, options in asked]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LLM]:
    """Weights and vocabulary both have 320 tokens."""
    folder = tmp_path_factory.mktemp("forms")
    write_checkpoint(folder)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    shutil.copy(FOLDER / "tokenizer.json", folder)
    return lambda **settings: LLM(folder, device="cpu", num_slots=16, **settings)


@pytest.fixture(scope="module")
def llm(load: Callable[..., LLM]) -> LLM:
    return load()


@pytest.fixture(scope="module")
def found(llm: LLM) -> dict[str, list[Answer]]:
    return dict(zip(ASKED, answers(llm, list(ASKED.values())), strict=True))


def reason(answer: Answer) -> str:
    assert answer.finish
    return answer.finish.reason


def test_content_has_the_form_that_is_asked_for(found: dict[str, list[Answer]]) -> None:
    objects = found["objects"] + found["greedy"] + found["scored"]
    ended = [answer for answer in objects if reason(answer) == "stop"]
    assert len(ended) >= 2
    for answer in ended:
        jsonschema.validate(json.loads(answer.content), SCHEMA)
    assert found["objects"][0].content != found["objects"][1].content
    assert re.fullmatch(r"[a-c]{2,5}-[0-9]", found["raw"][0].content)
    (musing,) = found["musing"]
    assert musing.content in ("yes", "no")
    assert musing.reasoning


def test_log_probabilities_are_those_of_the_text(found: dict[str, list[Answer]]) -> None:
    (answer,) = found["scored"]
    assert b"".join(scored.token.bytes for scored in answer.scores) == answer.content.encode()


@pytest.mark.parametrize("name", ["any call", "put", "get"])
def test_a_call_that_is_forced_is_made(found: dict[str, list[Answer]], name: str) -> None:
    (answer,) = found[name]
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    assert answer.content == ""
    assert answer.started
    for call in answer.started.values():
        assert call.name in ({name} if name in schemas else schemas)
    for call in answer.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    if name == "get":
        assert len(answer.calls) == 1
        assert reason(answer) == "tool_calls"


def test_a_form_ends_before_min_tokens_are_made(found: dict[str, list[Answer]]) -> None:
    (early,) = found["early"]
    assert early.content in ("yes", "no")
    assert reason(early) == "stop"


def test_an_answer_that_ignores_its_end_is_free_behind_its_form(
    found: dict[str, list[Answer]],
) -> None:
    (late,) = found["late"]
    assert late.content.startswith(("yes", "no"))
    assert late.finish
    assert late.finish.usage.completion_tokens == 20


def test_a_form_is_cut_off_at_max_tokens(found: dict[str, list[Answer]]) -> None:
    (cut,) = found["cut"]
    assert reason(cut) == "length"
    assert ("ab" * 100).startswith(cut.content)


def test_a_stop_string_ends_a_form_like_any_other_text(found: dict[str, list[Answer]]) -> None:
    (stopped,) = found["stopped"]
    assert re.fullmatch("[ab]{3}", stopped.content)
    assert stopped.finish
    assert stopped.finish.stopped_by == "-"


def test_texts_are_the_same_when_steps_overlap_and_when_they_do_not(
    load: Callable[..., LLM], llm: LLM
) -> None:
    """Beside free answers, too, and those whose grammar begins behind a marker."""
    marker = {TOKENIZER.special.dsml: 11.0, TOKENIZER.encode_text("<")[0]: 8.0}
    asked: list[Asked] = [
        ("x", sampled(40)),
        (forced(CALM), sampled(30, seed=2)),
        (forced(MUSING), sampled(40, seed=3, thinking_budget=20)),
        (CALM, sampled(30, seed=4, format=form("json_object"))),
        (MUSING, sampled(40, seed=5, format=form("json_object"), thinking_budget=9)),
        (replace(CALM, tools=TOOLS), sampled(40, seed=6, logit_bias=marker)),
    ]
    overlapped, in_turn = answers(llm, asked), answers(load(overlap="off"), asked)

    def told(answer: Answer) -> object:
        calls = [(call.name, call.arguments) for call in answer.started.values()]
        return answer.reasoning, answer.content, calls, reason(answer)

    assert [told(each) for (each,) in overlapped] == [told(each) for (each,) in in_turn]
    assert overlapped[-1][0].started


def test_a_form_that_cannot_be_kept_is_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="response_format cannot be followed"):
        answers(llm, [(CALM, sampled(format=form("json_schema", {"not": {}})))])
