"""Programs that people use, as far as a server sees them: what each sends, and what it makes of an
answer before it sends it back. Written from what they put on the wire; none of their code is here.
"""

import json
from collections.abc import Iterator
from typing import Any

from tools.replay.script import FUNCTIONS, SYSTEM, result_of

Json = dict[str, Any]


class Client:
    """`talks`: how its answers are to be read. It begins a task, hears answers, runs tools."""

    name = ""
    path = "/v1/chat/completions"
    thinking = True
    tools = True

    def __init__(self) -> None:
        self.history: list[Any] = []

    def body(self) -> Json:
        raise NotImplementedError

    def ask(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def hear(self, reply: str) -> None:
        """The body of an answer, or the text of its stream."""
        raise NotImplementedError

    def aside(self) -> Json | None:
        """A request besides the conversation, which some send after the first answer."""
        return None


def events(stream: str) -> Iterator[Json]:
    for frame in stream.split("\n\n"):
        data = frame.partition("data: ")[2]
        if data and data != "[DONE]":
            yield json.loads(data)


def chat_message(stream: str) -> tuple[str, str, list[Json]]:
    """Reasoning, content and calls of a stream of chat completions."""
    calls: dict[int, Json] = {}
    reasoning, content = "", ""
    for chunk in events(stream):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content", "")
            content += delta.get("content") or ""
            for part in delta.get("tool_calls", ()):
                call = calls.setdefault(part["index"], {"arguments": ""})
                call |= {"id": part["id"]} if "id" in part else {}
                call |= {"name": part["function"]["name"]} if "name" in part["function"] else {}
                call["arguments"] += part["function"]["arguments"]
    return reasoning, content, list(calls.values())


def compact(value: Any) -> str:
    """As JSON.stringify writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def chat_calls(calls: list[Json], write: Any) -> list[Json]:
    """Parsed and written anew by the client's own library."""
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": write(json.loads(call["arguments"])),
            },
        }
        for call in calls
    ]


def chat_results(calls: list[Json]) -> list[Json]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": result_of(call["name"])}
        for call in calls
    ]


class OpenCode(Client):
    """The AI SDK's client for chat completions: reads arguments into objects and back."""

    name = "OpenCode"

    def body(self) -> Json:
        return {
            "model": "scripted",
            "messages": [{"role": "system", "content": SYSTEM}, *self.history],
            "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
            "tool_choice": "auto",
            "max_tokens": 32_000,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def hear(self, reply: str) -> None:
        reasoning, content, calls = chat_message(reply)
        message: Json = {
            "role": "assistant",
            "content": content,
            "reasoning_content": reasoning,
        }
        if calls:
            message["tool_calls"] = chat_calls(calls, compact)
        self.history += [message, *chat_results(calls)]


class Codex(Client):
    """Sends items back without reasoning that it could read, and messages of its own between a call
    and its output."""

    name = "Codex"
    path = "/v1/responses"

    def ask(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.history.append({"type": "message", "role": "user", "content": content})

    def body(self) -> Json:
        functions = [{"type": "function", "strict": False, **f} for f in FUNCTIONS[:2]]
        space = {"type": "namespace", "name": "hub", "tools": [functions[0] | {"name": "issue"}]}
        edit = {"type": "function", "strict": False, **FUNCTIONS[2]}
        return {
            "model": "scripted",
            "instructions": SYSTEM,
            "input": self.history,
            "tools": [*functions, edit, space, {"type": "web_search"}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0196",
        }

    def hear(self, reply: str) -> None:
        items = [e["item"] for e in events(reply) if e["type"] == "response.output_item.done"]
        for item in items:
            if item["type"] == "reasoning":
                del item["content"]
            self.history.append({k: v for k, v in item.items() if k not in ("id", "status")})
        calls = [item for item in items if item["type"] == "function_call"]
        for call in calls:
            output = result_of(call["name"])
            self.history.append(
                {"type": "function_call_output", "call_id": call["call_id"], "output": output}
            )


class ClaudeCode(Client):
    """Blocks, among them one of the system's that is another in every request; notes of its own
    stand behind results."""

    name = "Claude Code"
    path = "/v1/messages"

    def __init__(self) -> None:
        super().__init__()
        self._num_asked = 0

    def ask(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def body(self) -> Json:
        self._num_asked += 1
        billing = f"x-anthropic-billing-header: cc_version=2.1.{self._num_asked}; cch={id(self):x};"
        return {
            "model": "scripted[1m]",
            "max_tokens": 32_000,
            "system": [
                {"type": "text", "text": billing},
                {"type": "text", "text": "You are an agent."},
                {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
            ],
            "messages": self.history,
            "tools": [
                {
                    "name": f["name"],
                    "description": f["description"],
                    "input_schema": f["parameters"],
                }
                for f in FUNCTIONS
            ],
            "thinking": {"type": "adaptive"},
            "metadata": {"user_id": "user_1"},
            "stream": True,
        }

    def hear(self, reply: str) -> None:
        blocks: list[Json] = []
        for event in events(reply):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"] | {"partial": ""})
            elif event["type"] == "content_block_delta":
                delta, block = dict(event["delta"]), blocks[-1]
                kind = delta.pop("type").removesuffix("_delta")
                if kind == "input_json":
                    block["partial"] += delta["partial_json"]
                else:
                    block[kind] += delta[kind]
        for block in blocks:
            partial = block.pop("partial")
            if block["type"] == "tool_use":
                block["input"] = json.loads(partial)
        self.history.append({"role": "assistant", "content": blocks})
        results: list[Json] = [
            {"type": "tool_result", "tool_use_id": b["id"], "content": result_of(b["name"])}
            for b in blocks
            if b["type"] == "tool_use"
        ]
        if results:
            note = {"type": "text", "text": "<system-reminder>Stay on the task.</system-reminder>"}
            self.history.append({"role": "user", "content": [*results, note]})


class Cline(Client):
    """Tools of its own in the text, none by the protocol: results are the user's."""

    name = "Cline"
    tools = False

    def ask(self, text: str) -> None:
        parts = [
            {"type": "text", "text": f"<task>\n{text}\n</task>"},
            {
                "type": "text",
                "text": "<environment_details>\nNo files open.\n</environment_details>",
            },
        ]
        self.history.append({"role": "user", "content": parts})

    def body(self) -> Json:
        return {
            "model": "scripted",
            "messages": [{"role": "system", "content": SYSTEM}, *self.history],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def hear(self, reply: str) -> None:
        reasoning, content, _ = chat_message(reply)
        self.history.append(
            {"role": "assistant", "content": content, "reasoning_content": reasoning}
        )
        if "<edit>" in content or "<read>" in content or "<search>" in content:
            self.ask("[result] " + result_of("read"))


class LangChain(Client):
    """Whole answers. It drops reasoning, and writes arguments by Python's own library."""

    name = "LangChain"

    def body(self) -> Json:
        return {
            "model": "scripted",
            "messages": [{"role": "system", "content": SYSTEM}, *self.history],
            "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
            "stream": False,
        }

    def hear(self, reply: str) -> None:
        message = json.loads(reply)["choices"][0]["message"]
        calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", ())]
        kept: Json = {"role": "assistant", "content": message["content"] or ""}
        if calls:
            kept["content"] = message["content"]
            kept["tool_calls"] = chat_calls(calls, json.dumps)
        self.history += [kept, *chat_results(calls)]


class LangChainPlain(LangChain):
    """As LangChain is best used with this model: where it thinks not, nothing can be dropped."""

    name = "LangChain, not thinking"
    thinking = False

    def body(self) -> Json:
        return super().body() | {"reasoning_effort": "none"}


class OpenWebUI(Client):
    """Once an answer is there it keeps the text of it, and neither calls nor results; it asks for a
    title by a request of its own."""

    name = "Open WebUI"

    def __init__(self) -> None:
        super().__init__()
        self._round: list[Json] = []

    def body(self) -> Json:
        return {
            "model": "scripted",
            "messages": [{"role": "system", "content": SYSTEM}, *self.history, *self._round],
            "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
            "stream": True,
            "chat_id": "1",
        }

    def hear(self, reply: str) -> None:
        reasoning, content, calls = chat_message(reply)
        message: Json = {
            "role": "assistant",
            "content": content,
            "reasoning_content": reasoning,
        }
        if calls:
            message["tool_calls"] = chat_calls(calls, lambda value: json.dumps(value))
            self._round += [message, *chat_results(calls)]
            return
        said = [m["content"] for m in (*self._round, message) if m["role"] == "assistant"]
        self.history.append({"role": "assistant", "content": "\n".join(filter(None, said))})
        self._round = []

    def aside(self) -> Json:
        prompt = "Suggest a title for this chat:\n" + compact(self.history)
        return {
            "model": "scripted",
            "messages": [{"role": "user", "content": prompt}],
            "stream": False,
            "max_tokens": 8,
        }


CLIENTS: tuple[type[Client], ...] = (
    OpenCode,
    Codex,
    ClaudeCode,
    Cline,
    LangChain,
    LangChainPlain,
    OpenWebUI,
)
