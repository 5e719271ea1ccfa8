"""The protocol of items: what is asked, what is answered, what is refused."""

import json
from typing import Any

import pytest

from relight.serve.responses.sealed import MAX_CHARACTERS, seal, unseal
from tests.serve.fakes import CALL, EOS, HELLO, WEATHER, Rig, answering, echo, rig, tokens

FUNCTION = {"type": "function", **WEATHER["function"]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Change files."}
SPACE = {"type": "namespace", "name": "weather", "tools": [FUNCTION | {"name": "now"}]}
OFF = {"reasoning": {"effort": "none"}}
CALLING = "need it</think>Let me see." + CALL + EOS
TWICE = CALL.replace("\n</｜DSML｜tool_calls>", "\n" + CALL.partition("tool_calls>\n")[2])
PATCHING = CALL.replace("get_weather", "apply_patch").replace("city", "input") + EOS


def ask(rig: Rig, **fields: Any) -> Any:
    return rig.post("/v1/responses", {"input": "Hi", **fields})


def stream(rig: Rig, **fields: Any) -> list[Any]:
    text = ask(rig, stream=True, **fields).text
    frames = [frame.split("\n") for frame in text.removesuffix("\n\n").split("\n\n")]
    assert all(len(frame) == 2 for frame in frames)
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    names = [name.removeprefix("event: ") for name, _ in frames]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def check_items(events: list[Any]) -> list[Any]:
    """Every item opens, grows and closes under one id and index, and says at its end what its
    pieces add up to. Returns the items that closed."""
    done: list[Any] = []
    open_id, grown = None, ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_id is None
            assert event["output_index"] == len(done)
            assert event["item"]["status"] == "in_progress"
            open_id, grown = event["item"]["id"], ""
        elif kind == "output_item.done":
            assert event["item"]["id"] == open_id
            done.append(event["item"])
            open_id = None
        elif "item_id" in event:
            assert event["item_id"] == open_id
            assert event["output_index"] == len(done)
            grown += event.get("delta", "")
            for whole in ("text", "arguments", "input"):
                assert event.get(whole, grown) == grown
    assert open_id is None
    return done


def prompt_of(path: str, body: Any) -> tuple[int, ...]:
    one = answering("x" + EOS)
    reply = one.post(path, body)
    assert reply.status_code == 200, reply.text
    return one.client.requests[0].prompt


def test_a_whole_answer() -> None:
    body = ask(answering("because</think>Hello." + EOS, num_cached=3), metadata={"a": "b"}).json()
    prompt = prompt_of("/v1/chat/completions", {"messages": HELLO})
    made = len(tokens("because</think>Hello." + EOS))
    assert body == {
        "id": f"resp_{1:032x}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "tiny",
        "output": [
            {
                "type": "reasoning",
                "id": f"rs_0_{1:032x}",
                "status": "completed",
                "content": [{"type": "reasoning_text", "text": "because"}],
                "summary": [],
                "encrypted_content": None,
            },
            {
                "type": "message",
                "id": f"msg_1_{1:032x}",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
                ],
            },
        ],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": len(prompt),
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": len(tokens("because"))},
            "total_tokens": len(prompt) + made,
        },
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "top_p": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "metadata": {"a": "b"},
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
    }


@pytest.mark.parametrize("per_delta", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "because</think>Hello." + EOS,
        CALLING,
        "need</think>" + TWICE + EOS,
        "patch</think>" + PATCHING,
        "only thinking",
        EOS,
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(text: str, per_delta: int) -> None:
    fields = {"tools": [FUNCTION, PATCH], "include": ["reasoning.encrypted_content"]}
    events = stream(answering(text, per_delta=per_delta), **fields)
    whole = ask(answering(text), **fields).json()
    assert events[-1] == {
        "type": "response.completed",
        "sequence_number": len(events) - 1,
        "response": whole,
    }
    assert check_items(events) == whole["output"]
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert events[0]["response"] | {"output": []} == events[1]["response"]


def test_the_events_of_a_stream_in_order() -> None:
    events = stream(answering(CALLING, per_delta=1000), tools=[FUNCTION])
    arguments = ["function_call_arguments.delta"] * kinds(events).count(
        "function_call_arguments.delta"
    )
    assert kinds(events) == [
        *["created", "in_progress"],
        *["output_item.added", "content_part.added"],
        *["reasoning_text.delta", "reasoning_text.done"],
        *["content_part.done", "output_item.done"],
        *["output_item.added", "content_part.added"],
        *["output_text.delta", "output_text.done"],
        *["content_part.done", "output_item.done"],
        *["output_item.added", *arguments, "function_call_arguments.done", "output_item.done"],
        "completed",
    ]


def test_a_custom_tool_gets_its_text() -> None:
    for body in (ask(answering("</think>" + PATCHING), tools=[PATCH]).json(),):
        [item] = body["output"]
        assert (item["type"], item["name"], item["input"]) == (
            "custom_tool_call",
            "apply_patch",
            "Paris",
        )
    missed = PATCHING.replace('"input"', '"patch"')
    [item] = ask(answering("</think>" + missed), tools=[PATCH]).json()["output"]
    assert item["input"] == '{"patch": "Paris"}'


def test_a_tool_in_a_namespace_comes_back_in_it() -> None:
    text = "</think>" + CALL.replace("get_weather", "weather__now") + EOS
    [item] = ask(answering(text), tools=[SPACE]).json()["output"]
    assert (item["name"], item["namespace"]) == ("now", "weather")
    [event] = [e for e in stream(answering(text), tools=[SPACE]) if "arguments.done" in e["type"]]
    assert event["name"] == "now"


def test_an_answer_that_a_limit_cuts_off_is_incomplete() -> None:
    text = "a b c d e f"
    body = ask(answering(text + EOS), max_output_tokens=3, **OFF).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    events = stream(answering(text + EOS), max_output_tokens=3, **OFF)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == body


@pytest.mark.parametrize("tool", [FUNCTION, PATCH])
def test_a_call_that_a_limit_cuts_off_is_no_part_of_the_answer(tool: Any) -> None:
    text = CALL.replace("get_weather", tool["name"])
    text = text[: text.index("Paris") + 3]
    fields = {"tools": [tool], "max_output_tokens": len(tokens(text)), **OFF}
    events = stream(answering(text + "is" + EOS), **fields)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"] == []
    [item] = check_items(events)
    assert item["status"] == "incomplete"
    assert ask(answering(text + "is" + EOS), **fields).json()["output"] == []


def item(type: str, **fields: Any) -> Any:
    return {"type": type, **fields}


def call(id: str, arguments: str) -> Any:
    return item("function_call", call_id=id, name="get_weather", arguments=arguments)


def output(id: str, text: Any) -> Any:
    return item("function_call_output", call_id=id, output=text)


HM = item("reasoning", content=[{"type": "reasoning_text", "text": "hm"}], summary=[])
TEXT = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
USER = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
CALLED = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning_content": "hm",
    "tool_calls": [
        {"id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
        {"id": "b", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
    ],
}
CHAT = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": "Weather?"},
    CALLED,
    {"role": "tool", "tool_call_id": "a", "content": "sun"},
    {"role": "tool", "tool_call_id": "b", "content": "p1\n\np2"},
    {"role": "user", "content": "Go on."},
]
PARIS, ROME = call("a", '{"city": "Paris"}'), call("b", '{"city": "Rome"}')
SUN = output("a", "sun")
RAIN = output("b", [{"type": "input_text", "text": "p1"}, {"type": "input_text", "text": "p2"}])
GO_ON = {"role": "user", "content": "Go on."}


@pytest.mark.parametrize(
    "items",
    [
        [USER, HM, TEXT, PARIS, ROME, SUN, RAIN, GO_ON],
        [USER, HM, TEXT, PARIS, ROME, RAIN, SUN, GO_ON],
        [USER, HM, TEXT, PARIS, ROME, GO_ON, SUN, RAIN],
        [USER, SUN, HM, TEXT, PARIS, ROME, item("web_search_call", id="x"), RAIN, GO_ON],
        [USER, HM | {"content": None, "encrypted_content": seal("hm")}, TEXT, PARIS, ROME, SUN,
         RAIN, GO_ON],
        [USER, item("reasoning", summary=[{"type": "summary_text", "text": "hm"}],
                    encrypted_content="of another server"), TEXT, PARIS, ROME, SUN, RAIN, GO_ON],
    ],
    ids=["in order", "results swapped", "message between", "early result", "sealed", "summary"],
)  # fmt: skip
def test_a_conversation_has_the_prompt_of_the_same_chat(items: Any) -> None:
    body = {
        "instructions": "Be terse.",
        "input": items,
        "tools": [FUNCTION, {"type": "web_search"}, {"type": "local_shell"}],
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    chat = {"messages": CHAT, "tools": [WEATHER], "reasoning_effort": "low"}
    assert prompt_of("/v1/responses", body) == prompt_of("/v1/chat/completions", chat)


def test_a_developers_message_between_a_call_and_its_output_goes_behind() -> None:
    note = {"role": "developer", "content": "A hook ran."}
    items = [USER, HM, PARIS, note, SUN, GO_ON]
    moved = [USER, HM, PARIS, SUN, note, GO_ON]
    tools = {"tools": [FUNCTION]}
    prompts = [prompt_of("/v1/responses", {"input": x, **tools}) for x in (items, moved)]
    assert prompts[0] == prompts[1]


def test_two_rounds_are_two_turns() -> None:
    again = HM | {"content": [{"type": "reasoning_text", "text": "and"}]}
    items = [USER, HM, PARIS, SUN, again, ROME, RAIN]
    calls = CALLED["tool_calls"]
    chat = [
        CHAT[1],
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": calls[:1]},
        CHAT[3],
        {"role": "assistant", "reasoning_content": "and", "tool_calls": calls[1:]},
        CHAT[4],
    ]
    prompt = prompt_of("/v1/responses", {"input": items, "tools": [FUNCTION]})
    assert prompt == prompt_of("/v1/chat/completions", {"messages": chat, "tools": [WEATHER]})


def test_what_is_answered_can_be_sent_back_as_it_is() -> None:
    include = ["reasoning.encrypted_content"]
    body = ask(answering(CALLING), tools=[FUNCTION, PATCH], include=include).json()
    id = body["output"][-1]["call_id"]
    clear = [USER, *body["output"], output(id, "sun")]
    sealed = [dict(part) for part in clear]
    assert sealed[1]["type"] == "reasoning"
    del sealed[1]["content"]
    prompts = {
        prompt_of("/v1/responses", {"input": items, "tools": [FUNCTION, PATCH]})
        for items in (clear, sealed)
    }
    assert len(prompts) == 1
    patch = ask(answering("p</think>" + PATCHING), tools=[PATCH]).json()["output"]
    result = item("custom_tool_call_output", call_id=patch[-1]["call_id"], output="done")
    prompt_of("/v1/responses", {"input": [USER, *patch, result], "tools": [PATCH]})


@pytest.mark.parametrize("text", ["", "π 🙂\n", "x" * 1_000_000])
def test_sealed_reasoning_opens_again(text: str) -> None:
    assert unseal(seal(text)) == text


@pytest.mark.parametrize(
    "sealed",
    ["", "gAAAA", "relight.1.", "relight.1.é", "relight.1.AAAA", seal("x")[:-4], seal("ab") + "!"],
)
def test_what_was_not_sealed_here_does_not_open(sealed: str) -> None:
    assert unseal(sealed) is None


def test_what_unpacks_to_more_than_a_context_does_not_open() -> None:
    assert unseal(seal("x" * (MAX_CHARACTERS + 1))) is None


def test_sampling_fields_reach_the_engine() -> None:
    one = echo()
    fields = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "cache_salt": "s"}
    assert ask(rig(one), max_output_tokens=9, **fields).status_code == 200
    request = one.requests[0]
    sampling = request.sampling
    assert sampling.max_tokens == 9
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert (sampling.seed, request.cache_salt) == (3, "s")


def test_fields_without_effect_are_accepted_and_named() -> None:
    fields = {
        "store": True,
        "n": 1,
        "frequency_penalty": 0,
        "prompt_cache_key": "k",
        "truncation": "auto",
        "text": {"verbosity": "low"},
        "previous_response_id": None,
        "background": False,
        "tools": [{"type": "web_search"}],
        "include": ["file_search_call.results"],
    }
    reply = ask(answering("x" + EOS), **fields)
    assert reply.status_code == 200
    named = reply.headers["x-relight-ignored"]
    assert named.split(", ") == [
        *["prompt_cache_key", "store", "truncation", "text.verbosity"],
        *["tools.web_search", "include.file_search_call.results"],
    ]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"input": [USER | {"a": 1}]}, "input.a"),
        (
            {"input": [{"role": "user", "content": [USER["content"][0] | {"a": 1}]}]},
            "input.content.a",
        ),
        ({"input": [USER, {"type": "web_search_call", "id": "w"}]}, "input.web_search_call"),
        ({"tools": [{"type": "function", "name": "f", "a": 1}]}, "tools.a"),
        (
            {
                "tools": [
                    {
                        "type": "namespace",
                        "name": "n",
                        "tools": [{"type": "custom", "name": "f", "a": 1}],
                    }
                ]
            },
            "tools.tools.a",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools.web_search"),
        ({"include": ["file_search_call.results"]}, "include.file_search_call.results"),
    ],
)
def test_members_and_kinds_that_are_not_read_are_named_and_refused_when_strict(
    fields: Any, name: str
) -> None:
    assert ask(answering("x" + EOS), **fields).headers["x-relight-ignored"] == name
    refused = ask(answering("x" + EOS, strict_fields=True), **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_an_answer_comes_back_to_a_strict_server_as_it_was() -> None:
    one = answering(CALLING, strict_fields=True)
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    said = ask(one, tools=[tool]).json()["output"]
    assert len(said) == 3
    result = output(said[-1]["call_id"], "sun")
    reply = ask(one, tools=[tool], input=[USER, *said, result])
    assert reply.status_code == 200, reply.text
    assert "x-relight-ignored" not in reply.headers


def test_a_call_without_an_output_is_told_in_the_words_of_items() -> None:
    message = ask(answering("x"), input=[USER, PARIS, GO_ON]).json()["error"]["message"]
    assert message.startswith("input[1] has the call 'a' without a result; an output with the ")
    assert "tool message" not in message


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ({"input": [USER, PARIS, output("a", [IMAGE])]}, "input[2].output[0]"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [USER, SUN]}, "input[1].call_id"),
        ({"input": [USER, PARIS, SUN, SUN]}, "input[3].call_id"),
        ({"input": [USER, PARIS, GO_ON]}, "input[1]"),
        ({"input": [USER, PARIS | {"call_id": None}]}, "input[1].call_id"),
        ({"input": [USER, PARIS | {"name": None}]}, "input[1].name"),
        ({"input": [item("item_reference", id="x")]}, "input[0]"),
        ({"input": [*HELLO, item("input_text", text="x")]}, "input[1]"),
        ({"input": [item("new_thing", content="text")]}, "input[0]"),
        ({"input": [USER, item("compaction", encrypted_content="gAAAA")]}, "input[1]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"thinking": {"type": "disabled"}}, "thinking"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]},
         "tools[0].format"),
        ({"tools": [{"type": "web_search"}, FUNCTION, FUNCTION]}, "tools[2].name"),
        ({"tools": [SPACE | {"tools": [FUNCTION | {"name": "a b"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [FUNCTION | {"parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tools": [FUNCTION], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": "a b " * 4096}, "input"),
        ({"temperature": 9}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_the_name_that_the_client_used(fields: Any, param: str) -> None:
    reply = ask(answering("x"), **fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert '"function": {' not in error["message"], "tools are flat in this protocol"


def test_a_stream_that_fails_says_so_at_its_end() -> None:
    one = answering("a b c", per_delta=2)
    one.client.finish, one.client.error = "error", "the step failed"
    events = stream(one, **OFF)
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the step failed"}
    reply = ask(one)
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"
