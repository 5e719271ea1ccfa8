"""What the protocols beside chat completions share: signs of life, cut connections, documents."""

import asyncio
import json
from typing import Any

import pytest

from relight.session import Session
from relight.session.memory import Memory
from tests.serve.fakes import ENCODER, EOS, HELLO, TOKENIZER, answering, echo, rig
from tests.serve.test_chat import drive

MESSAGES = ("/v1/messages", {"messages": HELLO, "stream": True})
RESPONSES = ("/v1/responses", {"input": "Hi", "stream": True})


def test_messages_says_that_it_lives_by_pings() -> None:
    rig = answering("a" + EOS, keep_alive_s=0.01)
    rig.client.gate.clear()
    sent = drive(rig, *MESSAGES, until=4)
    assert b'"type":"message_start"' in sent[0]
    assert sent[1:4] == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 3


def test_responses_says_that_it_lives_by_events_with_data() -> None:
    rig = answering("a" + EOS, keep_alive_s=0.01)
    rig.client.gate.clear()
    sent = b"".join(drive(rig, *RESPONSES, until=4)).decode().split("\n\n")
    events = [json.loads(frame.partition("data: ")[2]) for frame in sent if frame]
    assert [event["type"] for event in events[:5]] == [
        "response.created",
        *["response.in_progress"] * 4,
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize(("path", "body"), [MESSAGES, RESPONSES])
@pytest.mark.parametrize(("stream", "until"), [(True, 3), (True, 1), (False, 0)])
def test_a_client_that_goes_away_aborts_its_request(
    path: str, body: Any, stream: bool, until: int
) -> None:
    rig = answering("a" * 1000)
    drive(rig, path, body | {"stream": stream}, until)
    assert rig.client.num_running == 0
    assert rig.client.aborted == [request.id for request in rig.client.requests]
    assert rig.server.num_open == 0


def test_the_root_answers_who_looks_whether_there_is_a_server() -> None:
    rig = answering("x")
    assert rig.request("HEAD", "/").status_code == 200
    assert rig.request("GET", "/").json() == rig.request("GET", "/version").json()


def test_the_document_describes_the_protocols() -> None:
    document = answering("x").request("GET", "/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, error in (
        ("/v1/messages", "MessageError"),
        ("/v1/messages/count_tokens", "MessageError"),
        ("/v1/responses", "ErrorBody"),
    ):
        operation = document["paths"][path]["post"]
        default = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert default == {"$ref": f"#/components/schemas/{error}"}
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    for path, kinds in (("/v1/messages", 7), ("/v1/responses", 17)):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        events = content["text/event-stream"]["schema"]["anyOf"]
        assert len(events) == kinds
        assert all(event["$ref"].rpartition("/")[2] in schemas for event in events)


def test_nothing_crosses_from_one_stream_to_another() -> None:
    """Three protocols at once, twenty streams each, and a memory of what was answered."""
    secrets = [f"secret {number:02d}!" for number in range(60)]
    bodies: list[tuple[str, Any]] = []
    for number, secret in enumerate(secrets):
        talk = [{"role": "user", "content": secret}]
        bodies.append(
            [
                ("/v1/chat/completions", {"messages": talk, "reasoning_effort": "none"}),
                ("/v1/messages", {"messages": talk, "thinking": {"type": "disabled"}}),
                ("/v1/responses", {"input": secret, "reasoning": {"effort": "none"}}),
            ][number % 3]
        )
    one = rig(echo(per_delta=2))
    one.server.sessions = [Session(one.client, TOKENIZER, ENCODER, memory=Memory())]

    async def ask_all() -> list[str]:
        async with one.http() as http:
            replies = (http.post(path, json=body | {"stream": True}) for path, body in bodies)
            return [reply.text for reply in await asyncio.gather(*replies)]

    for secret, text in zip(secrets, asyncio.run(ask_all()), strict=True):
        frames = (frame.partition("data: ")[2] for frame in text.split("\n\n"))
        events = [json.loads(data) for data in frames if data and data != "[DONE]"]
        assert "".join(map(said, events)) == secret


def said(event: Any) -> str:
    """What an event of any of the protocols adds to the text."""
    if "choices" in event:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event["type"] == "content_block_delta":
        return str(event["delta"].get("text", ""))
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
