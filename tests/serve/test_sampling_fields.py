"""Fields that change how tokens are drawn: what reaches the engine, and what is refused."""

import json
from typing import Any

import pytest

from relight.base.types import SamplingParams
from tests.serve.fakes import EOS, TOKENIZER, Rig, answering

CHAT, RAW = "chat", "raw"


def ask(rig: Rig, kind: str, fields: dict[str, Any]) -> Any:
    return rig.chat(**fields) if kind == CHAT else rig.complete("x", **fields)


def reached(kind: str, fields: dict[str, Any]) -> SamplingParams:
    rig = answering("x" + EOS)
    response = ask(rig, kind, fields)
    assert response.status_code == 200, response.text
    assert "x-relight-ignored" not in response.headers
    return rig.client.requests[0].sampling


def refusal(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    rig = answering("x" + EOS)
    response = ask(rig, kind, fields)
    assert response.status_code == 400, response.text
    assert rig.client.requests == []
    return dict(response.json()["error"])


LAST = TOKENIZER.vocab_size - 1
SAME = [
    (field, value, value)
    for field, values in {
        "frequency_penalty": (-2, -0.5, 0, 2),
        "presence_penalty": (-2, 1.5, 2),
        "repetition_penalty": (0.01, 1, 1.3, 100),
        "min_tokens": (0, 1, 16),
    }.items()
    for value in values
]


@pytest.mark.parametrize("kind", [CHAT, RAW])
@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        *SAME,
        ("logit_bias", {"5": -100, str(LAST): 100, "2": 0.5}, ((2, 0.5), (5, -100.0), (LAST, 100))),
        ("logit_bias", {"5": 0}, ()),
        ("logit_bias", {}, ()),
        ("frequency_penalty", None, 0.0),
        ("repetition_penalty", None, 1.0),
        ("logit_bias", None, ()),
        ("min_tokens", None, 0),
    ],
)
def test_a_field_reaches_the_engine(kind: str, field: str, value: Any, wanted: Any) -> None:
    assert getattr(reached(kind, {field: value, "max_tokens": 16}), field) == wanted


@pytest.mark.parametrize("kind", [CHAT, RAW])
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("frequency_penalty", (-2.01, 2.01, "1")),
        ("presence_penalty", (-2.01, 2.01, [1])),
        ("repetition_penalty", (0, 0.009, 100.1, -1)),
        ("min_tokens", (-1, 1.5, "2")),
        ("n", (0, -1, 129, 1.5, "2", True)),
        (
            "logit_bias",
            ([1], {"x": 1}, {"-1": 1}, {"1.5": 1}, {"1": 100.1}, {"1": -101}, {"1": "a"}),
        ),
        ("logit_bias", ({str(LAST + 1): 1}, {"9" * 30: 1}, {str(i): 1 for i in range(1025)})),
    ],
)
def test_a_value_beyond_the_edge_is_a_400_that_names_the_field(
    kind: str, field: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        error = refusal(kind, {field: value})
        assert error["param"].split("[")[0] == field, value
        assert field in error["message"]


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        (CHAT, {}, None),
        (CHAT, {"logprobs": False}, None),
        (CHAT, {"logprobs": None, "top_logprobs": None}, None),
        (CHAT, {"top_logprobs": 0}, None),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 0}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (RAW, {}, None),
        (RAW, {"logprobs": None}, None),
        (RAW, {"logprobs": False}, None),
        (RAW, {"logprobs": 0}, 0),
        (RAW, {"logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_asked_of_the_engine(
    kind: str, fields: dict[str, Any], wanted: int | None
) -> None:
    assert reached(kind, fields).logprobs == wanted


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": 3}, "logprobs"),
        (RAW, {"logprobs": 21}, "logprobs"),
        (RAW, {"logprobs": -1}, "logprobs"),
        (RAW, {"logprobs": True}, "logprobs"),
    ],
)
def test_log_probabilities_beyond_the_edge_are_refused(
    kind: str, fields: dict[str, Any], param: str
) -> None:
    assert refusal(kind, fields)["param"] == param


@pytest.mark.parametrize("kind", [CHAT, RAW])
def test_more_tokens_at_least_than_at_most_are_refused(kind: str) -> None:
    error = refusal(kind, {"min_tokens": 5, "max_tokens": 4})
    assert error["param"] == "min_tokens"
    assert error["message"] == (
        "min_tokens is 5, more than the 4 of max_tokens; lower it or raise max_tokens"
    )
    assert reached(kind, {"min_tokens": 5, "max_tokens": 5}).min_tokens == 5
    assert refusal(RAW, {"min_tokens": 17})["param"] == "min_tokens"


def test_the_end_of_the_turn_is_a_stop_token_unless_it_is_ignored() -> None:
    eos = TOKENIZER.special.eos
    fields = {"min_tokens": 2, "stop_token_ids": [7]}
    assert reached(CHAT, fields).stop_token_ids == (eos, 7)
    assert reached(CHAT, fields | {"ignore_eos": True}).stop_token_ids == (7,)


TEXT = "a STOP b STOP c"
FIRST = next(n for n in range(99) if "STOP" in TOKENIZER.decode(TOKENIZER.encode_raw(TEXT)[:n]))
"""So many tokens complete the first stop string."""


@pytest.mark.parametrize("per_delta", [1, 3, 100])
@pytest.mark.parametrize(
    ("min_tokens", "content"),
    [(0, "a "), (FIRST, "a "), (FIRST + 1, "a STOP b "), (99, TEXT)],
)
def test_a_stop_string_that_is_complete_before_min_tokens_ends_nothing(
    per_delta: int, min_tokens: int, content: str
) -> None:
    fields = {"stop": "STOP", "min_tokens": min_tokens, "max_tokens": 99}
    for kind, more in ((RAW, {}), (CHAT, {"thinking": {"type": "disabled"}})):
        response = ask(answering(TEXT, per_delta=per_delta), kind, fields | more)
        choice = response.json()["choices"][0]
        found = choice["text"] if kind == RAW else choice["message"]["content"]
        assert found == content
        assert choice["stop_reason"] == ("STOP" if content != TEXT else None)


def test_the_schema_tells_the_ranges() -> None:
    schema = json.loads(answering("x").request("GET", "/openapi.json").text)
    fields = schema["components"]["schemas"]["ChatCall"]["properties"]
    penalty = fields["frequency_penalty"]["anyOf"][0]
    assert (penalty["minimum"], penalty["maximum"]) == (-2, 2)
    assert fields["top_logprobs"]["anyOf"][0]["maximum"] == 20
