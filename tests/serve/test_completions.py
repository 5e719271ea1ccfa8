"""Raw completions over a scripted engine."""

import asyncio
import json
from typing import Any

import pytest

from relight.base.types import Logprobs, Request
from relight.engine.replay import ReplayClient
from relight.text.tokenizer import SPELLING, Tokenizer
from tests.serve.fakes import EOS, FOLDER, TOKENIZER, answering, echo, events, rig, tokens


def test_the_bytes_of_a_raw_stream() -> None:
    head = (
        '{"id":"cmpl-00000000000000000000000000000001","object":"text_completion",'
        '"created":1700000000,"model":"tiny","choices":['
    )
    text = answering("é" + EOS).complete("x", stream=True).text
    assert text == (
        f'data: {head}{{"index":0,"text":"é","logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"index":0,"text":"","logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}]}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_raw_prompt_means_the_markers_that_it_spells_and_gets_none_added() -> None:
    rig_ = answering("a")
    rig_.complete("<｜User｜>x<think>")
    special = TOKENIZER.special
    assert rig_.client.requests[0].prompt == (special.user, *tokens("x"), special.think_open)


@pytest.mark.parametrize("text", ["a</think>b", "<think>a", "a<｜DSML｜b"])
def test_raw_text_is_not_parsed(text: str) -> None:
    assert answering(text + EOS).complete("x").json()["choices"][0]["text"] == text


def test_a_list_of_ids_is_one_prompt_as_it_stands() -> None:
    rig_ = answering("a")
    rig_.complete([5, 6, 7])
    assert rig_.client.requests[0].prompt == (5, 6, 7)


@pytest.mark.parametrize("prompts", [["one", "two", "three"], [[70, 71], [72], [73, 74, 75]]])
def test_several_prompts_are_choices_of_one_answer(prompts: list[Any]) -> None:
    texts = [p if isinstance(p, str) else TOKENIZER.decode(p) for p in prompts]
    body = rig(echo()).complete(prompts).json()
    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    lengths = [len(tokens(text)) for text in texts]
    assert body["usage"]["prompt_tokens"] == sum(lengths)
    assert body["usage"]["completion_tokens"] == sum(lengths) + 3

    ask = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(rig(echo()).complete(prompts, **ask))
    seen = ["", "", ""]
    for chunk in chunks[:-2]:
        assert chunk["usage"] is None
        seen[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert seen == texts
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == body["usage"]
    assert chunks[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_one_prompt_that_fails_ends_the_others(stream: bool) -> None:
    def answer(request: Request) -> list[int]:
        if request.prompt == (72,):
            raise ZeroDivisionError
        return [70] * 1000

    rig_ = rig(ReplayClient(answer))
    response = rig_.complete([[70], [72], [74]], stream=stream)
    assert "internal_error" in response.text
    assert response.status_code == (200 if stream else 500)
    assert rig_.client.num_running == 0
    assert rig_.server.num_open == 0


def test_sixteen_tokens_by_default() -> None:
    body = answering("a b " * 100).complete("x").json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("per_delta", [1, 2, 3, 100])
def test_stop_strings_cut_raw_text_for_every_split(per_delta: int) -> None:
    rig_ = answering("one STOP two", per_delta=per_delta)
    choice = rig_.complete("x", stop=["STOP", "never"], max_tokens=100).json()["choices"][0]
    assert choice["text"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")


def test_a_half_character_at_the_limit_is_replaced() -> None:
    smile = tokens("🙂")
    assert len(smile) > 1
    choice = answering("🙂").complete("x", max_tokens=1).json()["choices"][0]
    assert choice["text"] == "�"


def test_an_exact_number_of_tokens_for_benchmarks() -> None:
    rig_ = answering((EOS + "a") * 40)
    body = rig_.complete("x", ignore_eos=True, max_tokens=33).json()
    assert body["usage"]["completion_tokens"] == 33


def test_a_seed_is_drawn_where_none_is_given() -> None:
    rig_ = answering("a")

    async def many() -> None:
        async with rig_.http() as http:
            for body in ({"prompt": "x"}, {"prompt": "x"}, {"prompt": "x", "seed": 5}):
                await http.post("/v1/completions", json=body)

    asyncio.run(many())
    seeds = [request.sampling.seed for request in rig_.client.requests]
    assert seeds[0] != seeds[1]
    assert seeds[2] == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("prompt", ["one two", [70, 71, 72], ["one", "two"], [[70], [71, 72]]])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_stands_before_the_answer(prompt: Any, stream: bool) -> None:
    asked = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    texts = [p if isinstance(p, str) else TOKENIZER.decode(p) for p in asked]
    response = answering("x STOP y" + EOS).complete(prompt, echo=True, stream=stream, stop="STOP")
    seen = ["" for _ in asked]
    if stream:
        for chunk in events(response)[:-1]:
            seen[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        seen = [choice["text"] for choice in response.json()["choices"]]
    assert seen == [text + "x " for text in texts]


def test_an_echoed_prompt_is_not_searched_for_stop_strings() -> None:
    choice = answering("x" + EOS).complete("a STOP b", echo=True, stop="STOP").json()["choices"][0]
    assert choice["text"] == "a STOP bx"


def test_every_choice_has_the_echo() -> None:
    body = answering("x" + EOS).complete(["a", "b"], echo=True, n=2).json()
    assert [choice["text"] for choice in body["choices"]] == ["ax", "ax", "bx", "bx"]


def test_a_suffix_without_the_markers_for_it_is_refused_and_an_empty_one_asks_for_nothing() -> None:
    error = answering("x").complete("a", suffix="b").json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert answering("x" + EOS).complete("a", suffix="").status_code == 200


def scoring(**how: Any) -> Any:
    """A rig whose engine makes what it is told to, and then an answer."""

    def answer(request: Request) -> list[int]:
        return [*request.sampling.forced, *tokens(how.get("text", "zé" + EOS))]

    def score(token: int) -> Logprobs:
        return Logprobs(-token / 8, ((token, -token / 8), (70, -9.0)))

    return rig(ReplayClient(answer, score=score, per_delta=how.get("per_delta", 1)))


@pytest.mark.parametrize("per_delta", [1, 2, 50])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a é🙂 b", [70, 71, 72, 73], [70], "🙂"])
def test_an_echoed_prompt_is_told_with_its_log_probabilities(
    prompt: Any, stream: bool, per_delta: int
) -> None:
    ids = tokens(prompt) if isinstance(prompt, str) else prompt
    rig_ = scoring(per_delta=per_delta)
    response = rig_.complete(prompt, echo=True, logprobs=1, stream=stream)
    [request] = rig_.client.requests
    assert (*request.prompt, *request.sampling.forced) == tuple(ids)
    assert request.sampling.max_tokens == len(ids) - 1 + 16
    if stream:
        chunks = events(response)[:-1]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["text"] for choice in choices)
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        told = {key: [entry for part in parts for entry in part[key]] for key in parts[0]}
    else:
        [choice] = response.json()["choices"]
        text, told = choice["text"], choice["logprobs"]
        usage = response.json()["usage"]
        made = len(tokens("zé" + EOS))
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), made)
    assert text == TOKENIZER.decode(ids) + "zé"
    scored = [*ids, *tokens("zé")]
    assert told["token_logprobs"] == [None, *(-token / 8 for token in scored[1:])]
    assert told["top_logprobs"][0] is None
    assert len(told["tokens"]) == len(told["top_logprobs"]) == len(scored)
    starts = [len(TOKENIZER.decode(scored[:i]).rstrip("�")) for i in range(len(scored))]
    assert told["text_offset"] == starts


def test_a_prompt_can_be_scored_without_an_answer() -> None:
    rig_ = scoring()
    [choice] = rig_.complete([70, 71, 72], echo=True, logprobs=0, max_tokens=0).json()["choices"]
    assert choice["text"] == TOKENIZER.decode([70, 71, 72])
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -71 / 8, -9.0]


def test_a_scored_prompt_is_not_searched_for_stop_strings_and_its_answer_is() -> None:
    rig_ = scoring(text="one STOP two")
    body = rig_.complete("a STOP b", echo=True, logprobs=0, stop="STOP", max_tokens=50).json()
    assert body["choices"][0]["text"] == "a STOP bone "
    assert body["choices"][0]["finish_reason"] == "stop"


def test_at_least_so_many_tokens_are_those_of_the_answer() -> None:
    rig_ = scoring()
    rig_.complete([70, 71, 72], echo=True, logprobs=0, min_tokens=4)
    assert rig_.client.requests[0].sampling.min_tokens == 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "logprobs": False}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "logprobs": 1, "prompt": [70]}, "max_tokens"),
        ({"echo": True, "logprobs": 1, "presence_penalty": 1}, "presence_penalty"),
        ({"echo": True, "logprobs": 1, "suffix": "b"}, "suffix"),
    ],
)
def test_what_cannot_be_scored_is_told(fields: dict[str, Any], param: str) -> None:
    error = scoring().post("/v1/completions", {"prompt": "ab"} | fields).json()["error"]
    assert error["param"] == param


def test_a_suffix_reaches_the_engine_as_a_middle_to_fill(tmp_path: Any) -> None:
    data = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    size = TOKENIZER.vocab_size
    for i, name in enumerate(("fim_begin", "fim_hole", "fim_end")):
        marker = dict(data["added_tokens"][0], id=size + i, content=SPELLING[name])
        data["added_tokens"].append(marker)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    rig_ = answering("x" + EOS)
    rig_.server.sessions[0].tokenizer = tokenizer
    rig_.complete([70, 71], suffix="b")
    assert rig_.client.requests[0].prompt == (size, 70, 71, size + 1, *tokens("b"), size + 2)
