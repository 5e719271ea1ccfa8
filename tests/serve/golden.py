"""Streams whose bytes are written down in tests/golden/sse. To write them anew, and then read the
difference: python -m tests.serve.golden"""

from pathlib import Path
from typing import Any

from tests.serve.fakes import CALL, EOS, HELLO, WEATHER, answering

FOLDER = Path(__file__).parent.parent / "golden" / "sse"

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
FUNCTION = WEATHER["function"]
TOOLS: dict[str, Any] = {
    CHAT: [WEATHER],
    MESSAGES: [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
    RESPONSES: [{"type": "function", **FUNCTION}],
}
ASKED: dict[str, Any] = {
    CHAT: {"messages": HELLO, "stream_options": {"include_usage": True}},
    COMPLETIONS: {"prompt": "Hi", "stream_options": {"include_usage": True}, "max_tokens": 64},
    MESSAGES: {"messages": HELLO, "max_tokens": 256},
    RESPONSES: {"input": "Hi", "include": ["reasoning.encrypted_content"]},
}
ANSWERS = {
    "text": "Let me think.</think>Hello — π 🙂." + EOS,
    "calls": "I need it.</think>Let me see." + CALL + EOS,
    "cut": "I need it.</think>" + CALL[: CALL.index("ris<")],
    "fails": "a b c",
}
CASES = [
    (path, name)
    for path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
    for name in ANSWERS
    if path != COMPLETIONS or name in ("text", "fails")
]


def file_of(path: str, name: str) -> Path:
    return FOLDER / f"{path.removeprefix('/v1/').replace('/', '-')}-{name}.sse"


def stream(path: str, name: str) -> bytes:
    """The bytes as served: ids count from 1, and the clock stands."""
    body = ASKED[path] | {"model": "tiny", "stream": True}
    if name in ("calls", "cut"):
        body["tools"] = TOOLS[path]
    rig = answering(ANSWERS[name], per_delta=4, num_cached=2)
    if name == "cut":
        rig.client.finish = "length"
    if name == "fails":
        rig.client.finish, rig.client.error = "error", "a step of the engine failed"
    return rig.post(path, body, headers={"x-request-id": "one"}).content


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        file_of(*case).write_bytes(stream(*case))
