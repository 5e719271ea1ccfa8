"""What docs/api.md says of every field is what a server does with it."""

from typing import Any

import pytest

from relight.serve.routes import OPERATIONS, Operation
from tests.serve.fakes import EOS, HELLO, Rig, answering

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"messages": HELLO},
    "/detokenize": {"tokens": [70]},
}
CALLS = [operation for operation in OPERATIONS if operation.call]
ASKING = {"marker": "no neutral value is like this"}


def send(operation: Operation, **fields: Any) -> tuple[Rig, Any]:
    rig = answering("x" + EOS)
    return rig, rig.post(operation.path, BODIES[operation.path] | fields)


def test_every_route_with_a_body_is_tried_here() -> None:
    assert {operation.path for operation in CALLS} == set(BODIES)


@pytest.mark.parametrize(
    ("operation", "name"),
    [pytest.param(o, name, id=f"{o.path} {name}") for o in CALLS for name in sorted(o.refused)],
)
def test_what_the_table_calls_refused_is_refused_by_name(operation: Operation, name: str) -> None:
    rig, response = send(operation, **{name: ASKING})
    assert response.status_code == 400
    assert name in response.json()["error"]["message"]
    assert rig.client.requests == []
    for value in (None, *operation.refused[name].neutral):
        assert send(operation, **{name: value})[1].status_code == 200, value


@pytest.mark.parametrize(
    ("operation", "name"),
    [pytest.param(o, name, id=f"{o.path} {name}") for o in CALLS for name in sorted(o.ignored)],
)
def test_what_the_table_calls_ignored_is_ignored_by_name(operation: Operation, name: str) -> None:
    _, response = send(operation, **{name: ASKING})
    assert response.status_code == 200, response.text
    assert response.headers["x-relight-ignored"] == name


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.path)
def test_a_field_that_works_is_neither_refused_nor_ignored(operation: Operation) -> None:
    assert operation.call
    known = set(operation.call.__struct_fields__)
    assert not known & (set(operation.refused) | operation.ignored)
    nothing = dict.fromkeys(known - BODIES[operation.path].keys())
    _, response = send(operation, **nothing)
    assert response.status_code == 200, response.text
    assert "x-relight-ignored" not in response.headers
