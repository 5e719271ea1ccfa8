"""Brings a conversation into the order that the prompt has: one system text, then turns, with tool
results beside the calls they answer. Knows no tokens and no template."""

from collections import deque

import msgspec

from relight.base.errors import BadRequest
from relight.text.conversation import Conversation, Message

ROLES = ("system", "developer", "user", "assistant", "tool", "latest_reminder")

Queue = deque[tuple[int, Message]]
"""Messages not yet placed, each with its index in the request."""


class UserTurn(msgspec.Struct, frozen=True):
    """The results of the calls just before, in the order of the calls, then the user's own text
    (None where the client sent results only). `message`, in every turn, is the index in the request
    of the first message that it is made of."""

    message: int
    results: tuple[str, ...]
    text: str | None


class AssistantTurn(msgspec.Struct, frozen=True):
    message: int
    said: Message


class ReminderTurn(msgspec.Struct, frozen=True):
    message: int
    text: str


class SystemTurn(msgspec.Struct, frozen=True):
    """A system message in its place."""

    message: int
    text: str


Turn = UserTurn | AssistantTurn | ReminderTurn | SystemTurn


def arrange(conversation: Conversation, *, hoist: bool = True) -> tuple[str, list[Turn]]:
    """The system text and the turns. Raises `BadRequest` with the message's place in `param`.

    With `hoist`, system and developer messages move to the front and join with an empty line,
    wherever they stood: V4 has no marker for them, and left in place they would run into the turn
    before. Without, only one at the very front is the system text, and the others are turns; those
    between a call and its results come after the results.
    """
    messages = conversation.messages
    if not messages:
        raise BadRequest("messages is empty; send at least one message", param="messages")
    for i, message in enumerate(messages):
        _check(i, message)
    if conversation.continue_final:
        _check_continuation(messages[-1], len(messages) - 1)
    if hoist:
        system = [m.content for m in messages if _is_system(m) and m.content]
        queue: Queue = deque((i, m) for i, m in enumerate(messages) if not _is_system(m))
    else:
        kept = [(i, m) for i, m in enumerate(messages) if m.content or not _is_system(m)]
        head = int(bool(kept) and _is_system(kept[0][1]))
        system = [kept[0][1].content or ""] if head else []
        queue = deque(kept[head:])
    turns: list[Turn] = []
    while queue:
        turns += _next_turns(queue, keep_empty=not hoist)
    return "\n\n".join(system), turns


def _next_turns(queue: Queue, *, keep_empty: bool) -> list[Turn]:
    i, message = queue[0]
    if message.role == "user":
        return [UserTurn(i, (), _take_user_text(queue, keep_empty))]
    if message.role == "tool":
        raise BadRequest(
            f"messages[{i}] is a tool result that answers no call; tool messages must follow the "
            "assistant message with the tool_calls, one for each call",
            param=f"messages[{i}]",
        )
    queue.popleft()
    if _is_system(message):
        return [SystemTurn(i, message.content or "")]
    if message.role == "latest_reminder":
        return [ReminderTurn(i, message.content or "")]
    if not message.tool_calls:
        return [AssistantTurn(i, message)]
    first = queue[0][0] if queue else i
    return [
        AssistantTurn(i, message),
        UserTurn(first, _take_results(i, message, queue), _take_user_text(queue, keep_empty)),
    ]


def _take_user_text(queue: Queue, keep_empty: bool) -> str | None:
    """The user messages at the front as one text; V4 has no empty line for empty ones."""
    texts = []
    while queue and queue[0][1].role == "user":
        texts.append(queue.popleft()[1].content or "")
    if not keep_empty:
        return "\n\n".join(filter(None, texts)) if texts else None
    return "\n\n".join(texts) if texts else None


def _take_results(i: int, message: Message, queue: Queue) -> tuple[str, ...]:
    """The tool messages at the front, one for each call of message `i`, in the calls' order."""
    wanted = [call.id for call in message.tool_calls]
    known = set(wanted)
    if len(known) < len(wanted):
        twice = next(id for id in wanted if wanted.count(id) > 1)
        where = f"messages[{i}].tool_calls"
        raise BadRequest(
            f"{where} has the id {twice!r} twice; each call needs its own", param=where
        )
    results: dict[str, str] = {}
    interposed = []
    while queue and len(results) < len(wanted):
        if _is_system(queue[0][1]):
            interposed.append(queue.popleft())
            continue
        if queue[0][1].role != "tool":
            break
        j, result = queue.popleft()
        id = result.tool_call_id
        if id not in known or id in results:
            where = f"messages[{j}].tool_call_id"
            open_ids = [w for w in wanted if w not in results]
            raise BadRequest(f"{where} is {id!r}; wanted one of {open_ids}", param=where)
        results[id] = result.content or ""
    if len(results) < len(wanted):
        missing = next(id for id in wanted if id not in results)
        raise BadRequest(
            f"messages[{i}].tool_calls has the call {missing!r} without a result; a tool message "
            "for each call must follow at once",
            param=f"messages[{i}].tool_calls",
        )
    queue.extendleft(reversed(interposed))
    return tuple(results[id] for id in wanted)


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _check(i: int, message: Message) -> None:
    if message.role not in ROLES:
        remedy = "; send results with role 'tool'" if message.role == "function" else ""
        raise BadRequest(
            f"messages[{i}].role is {message.role!r}; wanted one of {', '.join(ROLES)}{remedy}",
            param=f"messages[{i}].role",
        )
    if message.content is None and message.role != "assistant":
        raise BadRequest(
            f"messages[{i}].content is missing; only an assistant message may go without",
            param=f"messages[{i}].content",
        )
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(
            f"messages[{i}].tool_calls is set on role {message.role!r}; only an assistant calls",
            param=f"messages[{i}].tool_calls",
        )


def _check_continuation(message: Message, i: int) -> None:
    if message.role != "assistant" or message.tool_calls:
        raise BadRequest(
            f"messages[{i}] cannot be continued; the last message must be an assistant's, "
            "without tool_calls",
            param=f"messages[{i}]",
        )
