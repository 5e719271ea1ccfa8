"""Requests made from the server's own OpenAPI document, right ones and wrong ones."""

import json
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from tests.serve.fakes import CALL, EOS, answering

RIG = answering("why</think>text" + CALL + EOS)
DOCUMENT = RIG.request("GET", "/openapi.json").json()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
STATUSES = {200, 400, 404}
# A request that fails is told as it is: to make it small takes minutes.
PLAIN: dict[str, Any] = {
    "max_examples": 8,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.generate],
}


@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
        for operation in OPERATIONS
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if operation.body or mode is GenerationMode.POSITIVE  # else there is nothing to get wrong
    ],
)
def test_no_request_ends_in_a_500_and_every_answer_has_its_shape(
    operation: Any, mode: GenerationMode
) -> None:
    @settings(**PLAIN)
    @given(case=operation.as_strategy(generation_mode=mode), stream=st.booleans())
    def run(case: Any, stream: bool) -> None:
        body = case.body if operation.body else None
        if isinstance(body, dict) and "stream" in body:
            body["stream"] = stream
        name = str(case.path_parameters.get("name", "tiny")) if case.path_parameters else ""
        path = operation.path.replace("{name}", "tiny" if len(name) % 2 else "other")
        content = None if body is None else json.dumps(body, default=str)
        response = RIG.request(operation.method.upper(), path, content=content)
        assert response.status_code in STATUSES, (response.status_code, response.text, content)
        if response.headers["content-type"] == "application/json":
            kind = "200" if response.status_code == 200 else "default"
            _check(operation, kind, response.json())

    run()
    assert RIG.client.num_running == RIG.server.num_open == 0


def _check(operation: Any, kind: str, answer: Any) -> None:
    content = DOCUMENT["paths"][operation.path][operation.method]["responses"][kind]["content"]
    schema = content["application/json"]["schema"] | {"components": DOCUMENT["components"]}
    jsonschema_rs.validate(schema, answer)


def test_the_document_is_one() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert {operation.path for operation in OPERATIONS} >= {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/tokenize", "/detokenize", "/v1/models", "/health"),
    }
