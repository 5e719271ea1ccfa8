"""What the chunks of a stream tell of usage: nothing, the last one all, or each what was so far."""

from typing import Any

import pytest

from relight.base.types import Request
from relight.engine.replay import ReplayClient
from tests.serve.fakes import EOS, Rig, answering, events, rig, tokens

LAST = {"stream": True, "stream_options": {"include_usage": True}}
EVERY = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
TEXT = "why not</think>é and some more" + EOS
TEXTS = ["zero", "one, longer than the others", "two"]


def ask(one: Rig, path: str, **fields: Any) -> list[Any]:
    answer = one.chat(**fields) if path == "chat" else one.complete("xyz", max_tokens=99, **fields)
    *chunks, done = events(answer)
    assert done == "[DONE]"
    return chunks


@pytest.mark.parametrize("path", ["chat", "completions"])
@pytest.mark.parametrize("per_delta", [1, 3, 100])
def test_each_chunk_tells_what_was_read_and_made_until_then(path: str, per_delta: int) -> None:
    one = answering(TEXT, per_delta=per_delta, num_cached=2)
    chunks = ask(one, path, **EVERY)
    usages = [chunk["usage"] for chunk in chunks]
    num_prompt, num_made = len(one.client.requests[0].prompt), len(tokens(TEXT))
    made = [usage["completion_tokens"] for usage in usages]
    assert made == sorted(made)
    assert set(made) <= {0, *range(per_delta, num_made, per_delta), num_made}
    assert made[-2:] == [num_made, num_made]
    assert usages[-2] == usages[-1]
    for usage in usages:
        assert usage["prompt_tokens"] == num_prompt
        assert usage["total_tokens"] == num_prompt + usage["completion_tokens"]
        told = usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]
        assert told == ((2, num_prompt - 2) if usage["completion_tokens"] else (0, num_prompt))
    if path == "chat":
        assert made[0] == 0
        thought = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
        assert thought == sorted(thought)
        assert thought[-1] == len(tokens("why not"))


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_usage_in_each_chunk_changes_nothing_else(path: str) -> None:
    chunks = ask(answering(TEXT), path, **EVERY)
    assert [chunk | {"usage": None} for chunk in chunks[:-1]] + chunks[-1:] == ask(
        answering(TEXT), path, **LAST
    )


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_the_chunks_of_a_choice_tell_of_that_choice(path: str) -> None:
    def answer(request: Request) -> list[int]:
        return tokens(TEXTS[request.sampling.choice] + EOS)

    off = {"thinking": {"type": "disabled"}} if path == "chat" else {}
    chunks = ask(rig(ReplayClient(answer)), path, n=3, **off, **EVERY)
    for index, text in enumerate(TEXTS):
        own = [c["usage"] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert own[-1]["completion_tokens"] == len(tokens(text + EOS))
    total = sum(len(tokens(text + EOS)) for text in TEXTS)
    assert chunks[-1]["usage"]["completion_tokens"] == total


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_without_usage_at_all_the_option_has_no_effect_and_is_named(path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    body |= {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    name = "stream_options.continuous_usage_stats"
    reply = answering(TEXT).post(path, body)
    assert reply.headers["x-relight-ignored"] == name
    assert '"usage"' not in reply.text
    strict = answering(TEXT, strict_fields=True).post(path, body)
    error = strict.json()["error"]
    assert (strict.status_code, error["param"]) == (400, name)
    assert "has no effect in this request; leave it out" in error["message"]
