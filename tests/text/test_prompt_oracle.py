"""Whole conversations against DeepSeek's encoder, from a request body to ids. Where ours differs
on purpose, a test names it."""

import json
import random

import deepseek_recipe as recipe
import pytest

from relight.base.errors import BadRequest
from relight.text.conversation import Conversation, Message, Tool, ToolCall, content_text

TEXTS = [
    *(
        "",
        "q",
        "Hello.",
        " two\nlines\n\n",
        "漢字 ünï 🙂",
        "12345678",
        "</think>",
        "<｜User｜>",
        ".",
    ),
    *(
        "<｜DSML｜tool_calls>",
        "<tool_result>",
        "｜DSML｜",
        "{}",
        "a <",
        "\n",
        "<｜latest_reminder｜>x",
    ),
]
VALUES = [
    *("Paris", "", "42", "a\n<b>", 0, -7, 2.5, 1e20, 0.0001, True, None, [], {}, "｜DSML｜"),
    *([1, "é\n", {"k": [None]}], {"a": {"b": "</｜DSML｜parameter>"}}, 2**63),
]
ARGUMENTS = ["", "not json", "[1]", "null", '{"a": NaN}', '{"a": 1e999}', '{"a":1,"a":2}', " {} "]
SCHEMAS = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"city": {"type": "string", "x": 2.50}}, "required": ["city"]},
    {"type": "object", "z": 1, "a": {"é": [1, None, True]}, "properties": {}},
]


@pytest.fixture(scope="session")
def oracle(public_folder):
    """A request body to R's prompt and ids, or its refusal."""
    tokenizer = recipe.Tokenizer.from_file(str(public_folder / "tokenizer.json"))
    encoding = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer)

    def encode(body):
        request = recipe.ChatCompletionRequest({"model": "DeepSeek-V4-Pro", **body})
        conversation = request.convert(recipe.ConversionOptions()).conversation
        return encoding.render_conversation(conversation).prompt, encoding.encode(conversation)

    return encode


class Bodies:
    """Random request bodies that the oracle accepts."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        self.ids = 0

    def text(self):
        if self.pick.random() < 0.2:
            parts = self.pick.choices(TEXTS, k=self.pick.randint(1, 3))
            return [{"type": "text", "text": part} for part in parts]
        return self.pick.choice(TEXTS)

    def arguments(self):
        if self.pick.random() < 0.2:
            return self.pick.choice(ARGUMENTS)
        names = self.pick.sample(["city", "days", 'a"b', "é", "x y"], self.pick.randint(0, 3))
        return json.dumps({name: self.pick.choice(VALUES) for name in names})

    def assistant(self, with_calls):
        message = {"role": "assistant", "content": self.pick.choice(TEXTS)}
        if self.pick.random() < 0.6:
            message["reasoning_content"] = self.pick.choice(TEXTS)
        if not with_calls:
            return [message]
        calls = []
        for _ in range(self.pick.randint(1, 3)):
            self.ids += 1
            function = {"name": self.pick.choice(["f", "get_x"]), "arguments": self.arguments()}
            calls.append({"id": f"call_{self.ids:04}", "type": "function", "function": function})
        results = [{"role": "tool", "tool_call_id": c["id"], "content": self.text()} for c in calls]
        self.pick.shuffle(results)
        return [message | {"tool_calls": calls}, *results]

    def messages(self):
        messages = []
        for _ in range(self.pick.randint(1, 7)):
            match self.pick.choice(["system", "user", "user", "assistant", "calls", "reminder"]):
                case "assistant":
                    messages += self.assistant(False)
                case "calls":
                    messages += self.assistant(True)
                case "reminder":
                    messages.append({"role": "latest_reminder", "content": self.pick.choice(TEXTS)})
                case role:
                    messages.append({"role": role, "content": self.text()})
        return messages

    def body(self):
        body = {"messages": self.messages()}
        thinking = self.pick.random() < 0.6
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
        if self.pick.random() < 0.8:
            body["reasoning_effort"] = self.pick.choice(["low", "medium", "high", "xhigh", "max"])
        if self.pick.random() < 0.5:
            body["tools"] = [
                {"type": "function", "function": self.function(name)}
                for name in self.pick.sample(["f", "get_x", "h-1"], self.pick.randint(1, 3))
            ]
            choices = ["auto", "none"] + ["required"] * (not thinking)
            body["tool_choice"] = self.pick.choice(choices)
        elif self.pick.random() < 0.3 and all(m["role"] != "tool" for m in body["messages"]):
            last = self.assistant(False)[0]
            body["messages"] += [{"role": "user", "content": "go"}, last | {"prefix": True}]
        elif self.pick.random() < 0.3:
            body["response_format"] = {"type": "json_object"}
            body["messages"].insert(0, {"role": "user", "content": "as json"})
        return body

    def function(self, name):
        function = {"name": name}
        if self.pick.random() < 0.7:
            function["description"] = self.pick.choice(TEXTS)
        if self.pick.random() < 0.7:
            function["parameters"] = self.pick.choice(SCHEMAS)
        return function


def message_of(message, i):
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Message(
        message["role"],
        content_text(message.get("content"), param=f"messages[{i}].content"),
        message.get("reasoning_content"),
        calls,
        message.get("tool_call_id"),
    )


def conversation_of(body):
    tools = [tool["function"] for tool in body.get("tools", ())]
    return Conversation(
        messages=tuple(message_of(message, i) for i, message in enumerate(body["messages"])),
        tools=tuple(Tool(t["name"], t.get("description"), t.get("parameters")) for t in tools),
        tool_choice=body.get("tool_choice", "auto"),
        thinking=body.get("thinking", {"type": "enabled"})["type"] == "enabled",
        effort=body.get("reasoning_effort"),
        continue_final=bool(body["messages"] and body["messages"][-1].get("prefix")),
        response_format=body.get("response_format", {"type": "text"})["type"],
    )


@pytest.mark.parametrize("seed", range(8))
def test_generated_conversations_have_the_oracles_text_and_ids(oracle, encoder, seed):
    bodies = Bodies(seed)
    for _ in range(100):
        body = bodies.body()
        text, ids = oracle(body)
        prompt = encoder.encode(conversation_of(body))
        assert prompt.text == text, body
        assert list(prompt.ids) == ids, body


def test_a_response_schema_is_written_as_the_oracle_does(oracle, encoder):
    schema = {"type": "object", "properties": {"a": {"type": "string", "x": "é"}}}
    named = {"name": "n", "schema": schema}
    body = {
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    conversation = Conversation(
        messages=(Message("system", "S"), Message("user", "q")),
        response_format="json_schema",
        response_schema=schema,
    )
    assert encoder.encode(conversation).text == oracle(body)[0]


USER = {"role": "user", "content": "q"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "r"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [USER, RESULT]},
        {"messages": [USER, CALLS]},
        {"messages": [USER, CALLS, USER, RESULT]},
        {"messages": [USER, CALLS, RESULT | {"tool_call_id": "b"}]},
        {"messages": [USER, CALLS | {"tool_calls": [CALL, CALL]}, RESULT, RESULT]},
        {"messages": [USER, CALLS, RESULT, RESULT]},
        {"messages": [USER, CALLS, {"role": "latest_reminder", "content": "T"}, RESULT]},
    ],
)
def test_what_the_oracle_refuses_is_refused(oracle, encoder, body):
    with pytest.raises(recipe.ConversionError):
        oracle(body)
    with pytest.raises(BadRequest):
        encoder.encode(conversation_of(body))


# Differences on purpose


def test_tools_can_be_required_of_a_model_that_thinks(oracle, encoder):
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    with pytest.raises(recipe.ConversionError):
        oracle(body)
    assert encoder.encode(conversation_of(body)).start == "reasoning"


@pytest.mark.parametrize(
    ("body", "same_as"),
    [
        (
            {"messages": [USER, {"role": "assistant", "content": None}, USER]},
            {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
        ),
        (
            {"messages": [{"role": "developer", "content": "S"}, USER]},
            {"messages": [{"role": "system", "content": "S"}, USER]},
        ),
        (
            {"messages": [USER, CALLS, {"role": "system", "content": "S"}, RESULT]},
            {"messages": [{"role": "system", "content": "S"}, USER, CALLS, RESULT]},
        ),
    ],
    ids=["assistant without content", "developer", "system between call and result"],
)
def test_accepted_though_the_oracle_refuses(oracle, encoder, body, same_as):
    with pytest.raises((recipe.ConversionError, ValueError)):
        oracle(body)
    assert encoder.encode(conversation_of(body)).text == oracle(same_as)[0]


def test_continuing_with_tools_is_accepted_though_the_oracle_refuses(oracle, encoder):
    last = {"role": "assistant", "content": "Snow", "reasoning_content": "R", "prefix": True}
    body = {"messages": [USER, last], "tools": TOOLS}
    with pytest.raises(recipe.ConversionError, match="prefix"):
        oracle(body)
    assert encoder.encode(conversation_of(body)).text.endswith("<think>R</think>Snow")


def test_calls_keep_their_order_though_the_oracle_sorts_them_by_id(oracle, encoder):
    def body(*ids):
        calls = [CALL | {"id": id, "function": {"name": id, "arguments": "{}"}} for id in ids]
        results = [RESULT | {"tool_call_id": id, "content": id} for id in ids]
        return {"messages": [USER, CALLS | {"tool_calls": calls}, *results]}

    assert oracle(body("b", "a")) == oracle(body("a", "b"))
    text = encoder.encode(conversation_of(body("b", "a"))).text
    assert text.index('invoke name="b"') < text.index('invoke name="a"')
    assert text.index("<tool_result>b<") < text.index("<tool_result>a<")


@pytest.mark.parametrize(
    ("arguments", "theirs", "ours"),
    [
        ('{"n": 12345678901234567890123}', "1.2345678901234568e+22", "12345678901234567890123"),
        ('{"n": 1e-7}', "1e-7", "1e-07"),
    ],
    ids=["long integers keep their digits", "small floats as Python writes them"],
)
def test_numbers_in_past_calls(oracle, encoder, arguments, theirs, ours):
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    body = {"messages": [USER, CALLS | {"tool_calls": [call]}, RESULT]}
    prompt = encoder.encode(conversation_of(body))
    assert prompt.text == oracle(body)[0].replace(f">{theirs}<", f">{ours}<")
    assert f">{ours}<" in prompt.text


def test_arguments_encoded_twice_are_decoded_twice(oracle, encoder):
    def body(arguments):
        call = CALL | {"function": {"name": "f", "arguments": arguments}}
        return {"messages": [USER, CALLS | {"tool_calls": [call]}, RESULT]}

    twice = body(json.dumps('{"city": "Oslo"}'))
    assert encoder.encode(conversation_of(twice)).text == oracle(body('{"city": "Oslo"}'))[0]
    assert encoder.encode(conversation_of(twice)).text != oracle(twice)[0]
