"""Random request bodies, DeepSeek's encoder that they are given to, and the same as ours takes it.
Knows no encoding by name."""

import json
import random

import deepseek_recipe as recipe

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


def oracle_of(file, encoding, model):
    """DeepSeek's encoder with a tokenizer.json: from a body to prompt and ids, or its refusal."""
    encoding = encoding.with_tokenizer(recipe.Tokenizer.from_file(str(file)))

    def encode(body):
        request = recipe.ChatCompletionRequest({"model": model, **body})
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
            body["reasoning_effort"] = self.pick.choice(
                ["low", "medium", "high", "xhigh", "ultra", "max"]
            )
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
