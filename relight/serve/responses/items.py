"""Items of a conversation → chat messages. Knows no tools and no answer.

A turn of the model is several items here and one message there. Outputs stand right behind the turn
that called, whatever the client put in between: agents insert messages of their own.
"""

from collections.abc import Sequence

from relight.base.errors import BadRequest, Unsupported
from relight.serve.decode import shown
from relight.serve.responses.schema import InputItem, ItemPart
from relight.serve.responses.sealed import unseal
from relight.serve.responses.tools import function_name
from relight.serve.schema import ChatMessage, FunctionCall, MessageToolCall

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")

Placed = tuple[str, ChatMessage]
"""A message, and where it stood in the body."""


def read_items(items: Sequence[InputItem]) -> tuple[list[Placed], list[str]]:
    """The messages, and the types of the items that were skipped. Raises `BadRequest` and
    `Unsupported` by the place of the item."""
    reader = _Reader(_outputs(items))
    for i, item in enumerate(items):
        reader.read(item, f"input[{i}]")
    reader.end_turn()
    return reader.placed, reader.skipped


class _Reader:
    """Collects the turn of the model that is being read, until something else comes."""

    def __init__(self, outputs: dict[str, Placed]) -> None:
        self.placed: list[Placed] = []
        self.skipped: list[str] = []
        self._outputs = outputs
        self._where = ""
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[MessageToolCall] = []

    def read(self, item: InputItem, where: str) -> None:
        kind = item.type or "message"
        if kind == "reasoning":
            if self._texts or self._calls:
                self.end_turn()
            self._where = self._where or where
            self._thoughts.append(_thought(item, where))
        elif kind == "message" and item.role == "assistant":
            if self._calls:
                self.end_turn()
            self._where = where
            self._texts.append(_text(item.content, f"{where}.content"))
        elif kind in _CALLS:
            self._where = where
            self._calls.append(_call(item, where))
        elif kind == "message":
            self.end_turn()
            self.placed.append((where, _message(item, where)))
        elif kind in _OUTPUTS:
            self.end_turn()
        else:
            _check_skipped(item, where)
            self.skipped.append(kind)

    def end_turn(self) -> None:
        """Its message, then the outputs of its calls."""
        if not (self._thoughts or self._texts or self._calls):
            return
        message = ChatMessage(
            role="assistant",
            content=list(self._texts) if self._texts else None,
            reasoning_content="\n\n".join(self._thoughts) if self._thoughts else None,
            tool_calls=self._calls or None,
        )
        self.placed.append((self._where, message))
        ids = [call.id or "" for call in self._calls]
        self.placed += [self._outputs.pop(id) for id in ids if id in self._outputs]
        self._where, self._thoughts, self._texts, self._calls = "", [], [], []


def _outputs(items: Sequence[InputItem]) -> dict[str, Placed]:
    """By the id of the call. Every one must have a call, before or behind it."""
    called = {item.call_id for item in items if item.type in _CALLS}
    outputs: dict[str, Placed] = {}
    for i, item in enumerate(items):
        if item.type not in _OUTPUTS:
            continue
        where = f"input[{i}]"
        id = _call_id(item, where)
        if id not in called or id in outputs:
            why = "has an output already" if id in outputs else "no item here calls"
            raise BadRequest(
                f"{where}.call_id is {shown(id)}, which {why}; send each call and its output once",
                param=f"{where}.call_id",
            )
        content = _text(item.output or "", f"{where}.output")
        outputs[id] = (where, ChatMessage(role="tool", content=content, tool_call_id=id))
    return outputs


def _message(item: InputItem, where: str) -> ChatMessage:
    if item.role is None or item.content is None:
        name = "role" if item.role is None else "content"
        raise BadRequest(f"{where}.{name} is missing; add it", param=f"{where}.{name}")
    return ChatMessage(role=item.role, content=_text(item.content, f"{where}.content"))


def _call(item: InputItem, where: str) -> MessageToolCall:
    if not item.name:
        raise BadRequest(f"{where}.name is missing; name the tool", param=f"{where}.name")
    is_custom = item.type == "custom_tool_call"
    arguments = {"input": item.input or ""} if is_custom else item.arguments
    name = function_name(item.name, item.namespace)
    return MessageToolCall(
        id=_call_id(item, where), function=FunctionCall(name=name, arguments=arguments)
    )


def _call_id(item: InputItem, where: str) -> str:
    if not item.call_id:
        raise BadRequest(
            f"{where}.call_id is missing; repeat the call_id as it was sent",
            param=f"{where}.call_id",
        )
    return item.call_id


def _thought(item: InputItem, where: str) -> str:
    """In clear, else as sealed by `seal`, else a summary by whoever made it."""
    if item.content:
        return _text(item.content, f"{where}.content")
    sealed = unseal(item.encrypted_content) if item.encrypted_content else None
    if sealed is not None:
        return sealed
    return _text(item.summary or "", f"{where}.summary")


def _text(content: str | Sequence[ItemPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: ItemPart, where: str) -> str:
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXTS:
        raise Unsupported(
            f"{where} is of type {shown(part.type)}; this model reads text only; send parts of "
            "type input_text",
            param=where,
        )
    if part.text is None:
        raise BadRequest(f"{where}.text is missing; send a string", param=f"{where}.text")
    return part.text


def _check_skipped(item: InputItem, where: str) -> None:
    """Items that tell of tools that ran elsewhere say nothing to the model."""
    texts = (item.content, item.text, item.output, item.input, item.arguments, item.summary)
    if any(texts) or item.encrypted_content:
        raise Unsupported(
            f"{where} is of type {shown(item.type)}, which is not built, and has text; send it in "
            "a message",
            param=where,
        )
    if item.type == "item_reference":
        raise Unsupported(
            f"{where} refers to an item that this server does not store; send the item itself "
            "(store: false makes clients do so)",
            param=where,
        )
