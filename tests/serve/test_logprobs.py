"""Log probabilities on the wire: which tokens have them, where they stand, and the same for every
split of a stream."""

import json
from typing import Any

import pytest

from relight.base.types import Logprobs
from relight.engine.replay import ReplayClient
from tests.serve.fakes import CALL, EOS, TOKENIZER, WEATHER, Rig, events, rig, script, tokens

ASK = {"logprobs": True, "top_logprobs": 2}


def score(token: int) -> Logprobs:
    """Each token has numbers of its own, and the one after it is likelier."""
    return Logprobs(-token / 64, ((token + 1, -token / 128), (token, -token / 64)))


def told(text: str, per_delta: int = 1) -> Rig:
    return rig(script(text, per_delta=per_delta, score=score))


def entry(token: int) -> dict[str, Any]:
    def one(id: int, logprob: float) -> dict[str, Any]:
        data = TOKENIZER.token_bytes(id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    top = [one(token + 1, -token / 128), one(token, -token / 64)]
    return one(token, -token / 64) | {"top_logprobs": top}


def entries(text: str) -> list[dict[str, Any]]:
    return [entry(token) for token in tokens(text)]


def spelt(found: list[dict[str, Any]]) -> str:
    return b"".join(bytes(item["bytes"]) for item in found).decode()


def test_content_and_reasoning_are_told_apart_and_markers_are_not_told() -> None:
    choice = told("why</think>é🙂" + EOS).chat(**ASK).json()["choices"][0]
    assert choice["logprobs"] == {"content": entries("é🙂"), "reasoning_content": entries("why")}
    assert spelt(choice["logprobs"]["content"]) == choice["message"]["content"]


def test_nothing_is_told_unless_it_is_asked() -> None:
    text = told("why</think>é" + EOS).chat().text
    assert "logprobs" not in text
    stream = told("why</think>é" + EOS).chat(stream=True).text
    assert "logprobs" not in stream
    choice = told("x" + EOS).complete("a").json()["choices"][0]
    assert choice["logprobs"] is None


def test_without_alternatives_only_the_drawn_token_is_told() -> None:
    client = script("a" + EOS, score=lambda token: Logprobs(-0.5))
    off = {"thinking": {"type": "disabled"}}
    choice = rig(client).chat(logprobs=True, **off).json()["choices"][0]
    [item] = choice["logprobs"]["content"]
    assert (item["logprob"], item["top_logprobs"]) == (-0.5, [])
    assert "reasoning_content" not in choice["logprobs"]


TEXTS = [
    "plain only thought" + EOS,
    "why\n\nnot\n\n</think>\n\nbecause — π 🙂\n" + EOS,
    "</think>a < b </ c" + EOS,
    "x</think>Let me see." + CALL + EOS,
    "x" + CALL + EOS,
    "x</think>stop here STOP and never this" + EOS,
    "x</think>half 🙂"[:-1] + "ST",
]


@pytest.mark.parametrize("per_delta", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_tells_what_the_whole_answer_tells_for_every_split(
    text: str, per_delta: int
) -> None:
    ask = {"tools": [WEATHER], "stop": ["STOP"], **ASK}
    whole = told(text).chat(**ask).json()["choices"][0]
    content: list[Any] = []
    reasoning: list[Any] = []
    for chunk in events(told(text, per_delta).chat(stream=True, **ask))[:-1]:
        choice = chunk["choices"][0]
        if "logprobs" in choice:
            assert choice["logprobs"]["content"] or choice["logprobs"]["reasoning_content"]
            content += choice["logprobs"]["content"]
            reasoning += choice["logprobs"].get("reasoning_content", [])
    assert content == whole["logprobs"]["content"]
    assert reasoning == whole["logprobs"].get("reasoning_content", [])
    if "STOP" not in text:
        assert spelt(reasoning).strip() == whole["message"].get("reasoning_content", "").strip()
        assert spelt(content).strip() == (whole["message"]["content"] or "").strip()


def test_scores_come_with_the_text_that_they_belong_to() -> None:
    off = {"thinking": {"type": "disabled"}}
    for chunk in events(told("one 🙂 two" + EOS).chat(stream=True, **ASK, **off))[1:-2]:
        choice = chunk["choices"][0]
        assert spelt(choice["logprobs"]["content"]) == choice["delta"]["content"]


def test_tokens_of_markup_and_dropped_blanks_are_not_told() -> None:
    choice = told("\n\nx\n\n</think>\n\nSee.\n\n" + CALL + EOS).chat(tools=[WEATHER], **ASK)
    found = choice.json()["choices"][0]["logprobs"]
    assert found == {"content": entries("See."), "reasoning_content": entries("x")}


def test_hidden_reasoning_is_not_told() -> None:
    ask = {**ASK, "include_reasoning": False}
    whole = told("why</think>é" + EOS).chat(**ask).json()["choices"][0]
    assert whole["logprobs"] == {"content": entries("é")}
    chunks = events(told("why</think>é" + EOS).chat(stream=True, **ask))
    assert "reasoning" not in str(chunks)


def test_an_answer_without_text_tells_an_empty_list() -> None:
    choice = told("</think>" + EOS).chat(**ASK).json()["choices"][0]
    assert choice["logprobs"] == {"content": []}


def test_raw_completions_tell_every_token_with_its_place() -> None:
    text = "aé🙂 b"
    ids = tokens(text)
    choice = told(text + EOS).complete("x", logprobs=2, max_tokens=99).json()["choices"][0]
    found = choice["logprobs"]
    assert found["token_logprobs"] == [-token / 64 for token in ids]
    names = [spell(TOKENIZER.token_bytes(token)) for token in ids]
    assert found["tokens"] == names
    assert any(name.startswith("bytes:\\x") for name in names)
    decoded = [TOKENIZER.token_bytes(token) for token in ids]
    done = [b"".join(decoded[:n]) for n in range(len(ids))]
    assert found["text_offset"] == [len(data.decode("utf-8", "ignore")) for data in done]
    for token, top in zip(ids, found["top_logprobs"], strict=True):
        assert top == {
            spell(TOKENIZER.token_bytes(token + 1)): -token / 128,
            spell(TOKENIZER.token_bytes(token)): -token / 64,
        }


def spell(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@pytest.mark.parametrize("per_delta", [1, 3, 100])
@pytest.mark.parametrize("fields", [{}, {"stop": "STOP"}, {"max_tokens": 5}])
def test_a_raw_stream_tells_what_the_whole_answer_tells(
    per_delta: int, fields: dict[str, Any]
) -> None:
    text = "aé🙂 bSTOP never" + EOS
    ask = {"logprobs": 2, "max_tokens": 99} | fields
    whole = told(text).complete("x", **ask).json()["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in events(told(text, per_delta).complete("x", stream=True, **ask))[:-1]:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole


def test_the_drawn_token_is_among_the_best_of_a_raw_completion() -> None:
    client = ReplayClient(lambda _: tokens("ab"), score=lambda t: Logprobs(-3.0, ((t + 1, -0.1),)))
    found = rig(client).complete("x", logprobs=1).json()["choices"][0]["logprobs"]
    assert [len(top) for top in found["top_logprobs"]] == [2] * len(found["tokens"])
    client = ReplayClient(lambda _: tokens("ab"), score=lambda t: Logprobs(-3.0))
    found = rig(client).complete("x", logprobs=0).json()["choices"][0]["logprobs"]
    assert [list(top.values()) for top in found["top_logprobs"]] == [[-3.0]] * len(found["tokens"])


ITEMS = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("per_delta", [1, 3, 1000])
@pytest.mark.parametrize("text", TEXTS)
def test_items_tell_of_their_texts_what_chat_tells_of_content(text: str, per_delta: int) -> None:
    chat = told(text).chat(tools=[WEATHER], **ASK).json()["choices"][0]["logprobs"]["content"]
    ask = ITEMS | {"tools": [{"type": "function", **WEATHER["function"]}]}
    whole = told(text).post("/v1/responses", ask).json()
    assert whole["top_logprobs"] == 2
    messages = [item for item in whole["output"] if item["type"] == "message"]
    parts = [part for message in messages for part in message["content"]]
    assert [item for part in parts for item in part["logprobs"]] == chat
    stream = told(text, per_delta).post("/v1/responses", ask | {"stream": True})
    told_by: dict[str, list[Any]] = {}
    for line in stream.text.splitlines():
        if line.startswith("data: ") and "output_text" in line:
            event = json.loads(line.removeprefix("data: "))
            told_by.setdefault(event["type"], []).extend(event.get("logprobs", ()))
    assert told_by.get("response.output_text.delta", []) == chat
    assert told_by.get("response.output_text.done", []) == chat


def test_items_tell_nothing_unless_it_is_asked() -> None:
    body = told("</think>a" + EOS).post("/v1/responses", {"input": "Hi"}).json()
    assert body["output"][0]["content"][0]["logprobs"] == []
    assert "top_logprobs" not in body
    reply = told("a").post("/v1/responses", ITEMS | {"include": []})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == (
        "top_logprobs is 2 and include has no message.output_text.logprobs; add it or leave "
        "top_logprobs out"
    )
