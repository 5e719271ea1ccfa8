"""The routes that generate nothing."""

import json
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import relight
from relight.base.metrics import METRICS
from relight.engine.client import EngineState
from relight.engine.replay import ReplayClient
from relight.serve.fields import CHAT_REFUSED, COMPLETION_REFUSED, IGNORED
from relight.serve.routes import OPERATIONS
from relight.serve.schema import ChatCall, CompletionCall
from tests.serve.fakes import EOS, HELLO, WEATHER, answering, rig, tokens


def test_models_are_listed_with_aliases_and_their_context() -> None:
    body = answering("x").request("GET", "/v1/models").json()
    card = {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "relight",
        "max_model_len": 4096,
    }
    alias = card | {"id": "alias", "root": "tiny"}
    assert body == {"object": "list", "data": [card, alias]}
    assert answering("x").request("GET", "/v1/models/tiny").json() == card
    assert answering("x").request("GET", "/v1/models/alias").json() == alias


def test_a_conversation_is_tokenized_as_it_is_generated_from() -> None:
    rig = answering("x")
    body = {"messages": HELLO, "tools": [WEATHER], "reasoning_effort": "low"}
    counted = rig.post("/tokenize", body).json()
    rig.chat(**body)
    assert tuple(counted["tokens"]) == rig.client.requests[0].prompt
    assert counted["count"] == len(counted["tokens"])
    assert counted["max_model_len"] == 4096


@pytest.mark.parametrize("text", ["hello, world", "<｜User｜>π🙂", ""])
def test_tokens_of_a_raw_prompt_and_back(text: str) -> None:
    rig = answering("x")
    counted = rig.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert counted["tokens"] == tokens(text)
    assert len(counted["token_strs"]) == counted["count"]
    back = rig.post("/detokenize", {"tokens": counted["tokens"]}).json()
    assert back == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_bad_bodies_are_told(path: str, body: dict[str, Any], param: str) -> None:
    response = answering("x").post(path, body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def test_health_and_version() -> None:
    rig = answering("x")
    for path in ("/health", "/ping"):
        response = rig.request("GET", path)
        assert (response.status_code, response.json()) == (200, {"state": "idle"})
    assert rig.request("GET", "/version").json() == {"version": relight.__version__}
    head = rig.request("HEAD", "/health")
    assert (head.status_code, head.content) == (200, b"")


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found.setdefault(sample.name, {})[tuple(extra.values())] = sample.value
    return found


def test_metrics_tell_what_happened() -> None:
    rig = answering("ab" + EOS, num_cached=2)
    rig.chat()
    rig.complete("xyz", max_tokens=1)
    rig.chat(model="nope")
    rig.chat(stop="b", thinking={"type": "disabled"})
    rig.client.condition = "dead"
    rig.chat()
    rig.client.condition = None
    rig.client.tokens_per_s = 12.5
    response = rig.request("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    seen = samples(response.text)
    prompts = sum(len(request.prompt) for request in rig.client.requests)
    assert seen["vllm:prompt_tokens_total"] == {(): prompts}
    assert seen["vllm:prompt_tokens_cached_total"] == {(): 6}
    assert seen["vllm:prompt_tokens_by_source_total"] == {
        ("local_cache_hit",): 6,
        ("local_compute",): prompts - 6,
    }
    assert seen["vllm:generation_tokens_total"] == {(): rig.client.num_tokens}
    assert seen["vllm:request_success_total"] == {("stop",): 2, ("length",): 1}
    assert seen["vllm:admission_rejections_total"] == {
        ("model_not_found",): 1,
        ("service_unavailable",): 1,
    }
    for name in (
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_inference_time_seconds",
        "vllm:request_prefill_kv_computed_tokens",
        "vllm:request_max_num_generation_tokens",
        "vllm:request_params_max_tokens",
        "vllm:request_params_n",
    ):
        assert seen[f"{name}_count"] == {(): 3}
    gaps = rig.client.num_tokens - 3
    assert seen["vllm:inter_token_latency_seconds_count"] == {(): gaps}
    assert seen["vllm:num_requests_running"] == {(): 0}
    assert seen["vllm:cache_config_info"] == {("128", "256"): 1}
    assert seen["process_resident_memory_bytes"][()] > 0
    assert seen["vllm:kv_cache_usage_perc"] == {(): 0}
    assert seen["relight:tokens_per_second"] == {(): 12.5}
    assert seen["relight:pages"] == {("held",): 0, ("cached",): 0, ("total",): 0}


def test_a_request_for_several_answers_is_one_request_in_the_metrics_of_requests() -> None:
    texts = ["one", "the longest of them", "three"]
    client = ReplayClient(lambda request: tokens(texts[request.sampling.choice] + EOS))
    several = rig(client)
    several.chat(n=3, max_tokens=50, thinking={"type": "disabled"})
    several.complete("x", max_tokens=20)
    seen = samples(several.request("GET", "/metrics").text)
    longest = [len(tokens(text + EOS)) for text in (texts[1], texts[0])]
    assert seen["vllm:request_max_num_generation_tokens_sum"] == {(): sum(longest)}
    assert seen["vllm:request_params_n_sum"] == {(): 3 + 1}
    assert seen["vllm:request_params_max_tokens_sum"] == {(): 50 + 20}
    assert seen["vllm:request_params_n_count"] == {(): 2}
    assert seen["vllm:request_time_per_output_token_seconds_count"] == {(): 4}


def test_every_declared_metric_is_exported() -> None:
    text = answering("x").request("GET", "/metrics").text
    for metric in METRICS:
        assert f"# TYPE {metric.name}{'_total' if metric.kind == 'counter' else ''} " in text


def test_names_that_clients_invent_do_not_grow_the_metrics_for_ever() -> None:
    rig = answering("x")
    for i in range(4):
        rig.chat(**{f"field_{i}_{k}": 1 for k in range(100)})
    text = rig.request("GET", "/metrics").text
    assert text.count("relight:ignored_fields_total{") == 201
    assert 'field="other"' in text


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_openapi_document_describes_every_operation_and_refers_to_what_it_has() -> None:
    document = answering("x").request("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {
        (operation.method, operation.path.replace(":path", "")) for operation in OPERATIONS
    }
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    temperature = document["components"]["schemas"]["ChatCall"]["properties"]["temperature"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature["anyOf"]
    assert json.dumps(document)


def test_a_field_has_one_class() -> None:
    for kind, refused in ((ChatCall, CHAT_REFUSED), (CompletionCall, COMPLETION_REFUSED)):
        honoured = {field.encode_name for field in msgspec.structs.fields(kind)}
        assert not honoured & refused.keys()
        assert not honoured & IGNORED
        assert not refused.keys() & IGNORED


def test_the_server_is_as_well_as_its_best_engine() -> None:
    one, two = answering("x"), answering("x")
    one.server.sessions = [one.session, two.session]
    cases: tuple[tuple[EngineState, EngineState, str], ...] = (
        ("idle", "idle", "idle"),
        ("busy", "idle", "busy"),
        ("dead", "idle", "idle"),
        ("dead", "loading", "loading"),
    )
    for first, second, state in cases:
        one.client.condition, two.client.condition = first, second
        assert one.request("GET", "/health").json() == {"state": state}
    one.client.condition, two.client.condition = "dead", "idle"
    assert one.chat().status_code == 200
    assert (len(one.client.requests), len(two.client.requests)) == (0, 1)
