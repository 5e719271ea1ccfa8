"""A call in the protocol of items → the chat call that asks the same. Knows no answer, and decides
nothing that the chat call decides."""

from dataclasses import dataclass

from relight.serve.chat_only import chat_only
from relight.serve.decode import check_depth, shown_name
from relight.serve.fields import Refused
from relight.serve.names import Names
from relight.serve.responses.items import read_items
from relight.serve.responses.schema import ResponsesCall, TextFields
from relight.serve.responses.tools import Tools, read_choice, read_tools
from relight.serve.schema import ChatCall, ChatMessage, JsonSchemaBody, ResponseFormatBody

SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

_STORED = Refused((), "nothing is stored here: send the whole conversation in input")

REFUSED = chat_only(
    ResponsesCall,
    messages="input",
    max_tokens="max_output_tokens",
    max_completion_tokens="max_output_tokens",
    response_format="text.format",
    reasoning_effort="reasoning.effort",
    output_config="reasoning.effort",
    thinking="reasoning.effort",
    enable_thinking="reasoning.effort",
    logprobs=f"{LOGPROBS} in include",
) | {
    "previous_response_id": _STORED,
    "conversation": _STORED,
    "background": Refused((False,), "leave it out, and stream if the answer takes long"),
    "prompt": Refused((), "send the text itself in instructions or input"),
}
"""Fields of the protocol that are not built."""

_WORDS = (
    (r'"function": \{"name": …\}', '"name": …'),
    (r"^messages\b(?!\[)", "input"),
    (r"(messages\[\d+\])\.tool_calls", r"\1"),
    (r"(tools\[\d+\])\.function\.", r"\1."),
    (r"\.tool_call_id", ".call_id"),
    (r"\ba tool message for each call\b", "an output with the call_id of each call"),
    (r"reasoning_effort", "reasoning.effort"),
    (r"\blogprobs is not true; set logprobs to true\b", f"include has no {LOGPROBS}; add it"),
    (r"response_format(\.json_schema)?", "text.format"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """`ignored` names kinds of tools, of items and of what to include that are not here."""

    call: ChatCall
    names: Names
    tools: Tools
    ignored: tuple[str, ...]


def chat_call(call: ResponsesCall) -> Asked:
    """Raises `BadRequest` and `Unsupported` that name the field as it was sent."""
    include = call.include or ()
    check_depth(call.metadata, "metadata")
    if call.text and call.text.format:
        check_depth(call.text.format.schema, "text.format.schema")
    placed, skipped = [], list[str]()
    if call.instructions:
        instructions = ChatMessage(role="system", content=call.instructions)
        placed.append(("instructions", instructions))
    if isinstance(call.input, str):
        placed.append(("input", ChatMessage(role="user", content=call.input)))
    else:
        messages, skipped = read_items(call.input)
        placed += messages
    tools = read_tools(call.tools or ())
    asked = ChatCall(
        model=call.model,
        messages=[message for _, message in placed],
        tools=tools.functions,
        tool_choice=read_choice(call.tool_choice),
        parallel_tool_calls=call.parallel_tool_calls,
        response_format=_format(call.text),
        reasoning=call.reasoning,
        max_tokens=call.max_output_tokens,
        stream=call.stream,
        temperature=call.temperature,
        top_p=call.top_p,
        logprobs=LOGPROBS in include,
        top_logprobs=call.top_logprobs,
        seed=call.seed,
        cache_salt=call.cache_salt,
    )
    ignored = [f"tools.{kind}" for kind in tools.dropped]
    ignored += [f"input.{kind}" for kind in skipped]
    ignored += [f"include.{name}" for name in include if name not in (SEALED, LOGPROBS)]
    names = Names([place for place, _ in placed], tools.places, _WORDS)
    return Asked(asked, names, tools, tuple(dict.fromkeys(map(shown_name, ignored))))


def _format(text: TextFields | None) -> ResponseFormatBody | None:
    if text is None or (body := text.format) is None:
        return None
    schema = JsonSchemaBody(name=body.name, schema=body.schema, strict=body.strict)
    return ResponseFormatBody(type=body.type, json_schema=schema)
