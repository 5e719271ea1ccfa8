"""Makes the conversations of agents: turns that grow upon a shared beginning. Knows no server."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from relight.bench.prompts import CALL_ID, Prompt, Scale, Writer
from relight.bench.scenario import Class, Sessions

NEXT = "\n\nGo on with the work, with what is new above."
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": says,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
    for name, says in (
        ("read", "Reads a file."),
        ("search", "Finds the lines of a file that hold a text."),
        ("write", "Writes a text to a file."),
    )
)


def sessions(writer: Writer, one: Class, scale: Scale) -> list[Prompt]:
    """All turns of all sessions of a class, in order. A session that is given up has fewer turns,
    so that what is planned is known before."""
    wanted = one.sessions
    assert wanted is not None
    shared: tuple[dict[str, Any], ...] = ()
    if wanted.shared_tokens:
        mark = writer.mark(f"shared {one.name}")
        room = int(wanted.shared_tokens / scale.slope) - len(mark)
        text = writer.corpus(one.name).text(max(room, 1))
        shared = ({"role": "system", "content": f"{mark}\n{text}"},)
    found: list[Prompt] = []
    for number in range(one.requests // wanted.turns):
        found += _session(writer, one, wanted, scale, number, shared)
    return found


def _session(
    writer: Writer,
    one: Class,
    wanted: Sessions,
    scale: Scale,
    number: int,
    shared: tuple[dict[str, Any], ...],
) -> Iterator[Prompt]:
    for turn in range(wanted.turns):
        if turn and writer.random.random() < wanted.abort:
            return
        first = turn == 0
        tokens = one.input_tokens if first else _spread(wanted, writer.random)
        made = writer.prompt(one, scale, input_tokens=max(tokens, 1))
        text = made.text if first else made.text.rpartition("\n\n")[0] + NEXT
        yield msgspec.structs.replace(
            made,
            text=text,
            # What tools and earlier turns cost in the template is the server's to know.
            length=wanted.shared_tokens + tokens if first and not wanted.tools else None,
            before=shared if first else (),
            tools=TOOLS if wanted.tools else (),
            session=number,
            turn=turn,
            delay_s=0.0 if first else _delay(wanted, writer.random),
            role="tool" if wanted.tools and not first else "user",
            reply=_reply(writer, one, wanted, scale),
        )


def _spread(wanted: Sessions, draw: random.Random) -> int:
    return round(wanted.turn_tokens * draw.lognormvariate(0.0, wanted.spread))


def _delay(wanted: Sessions, draw: random.Random) -> float:
    human = draw.random() < wanted.human_share
    mean = wanted.human_delay_s if human else wanted.tool_delay_s
    return draw.expovariate(1 / mean) if mean else 0.0


def _reply(writer: Writer, one: Class, wanted: Sessions, scale: Scale) -> str | None:
    if wanted.reply == "server":
        return None
    return writer.corpus(one.name).text(max(int(one.output_tokens / scale.slope), 1))


def after(prompt: Prompt, answer: str, following: Prompt) -> Prompt:
    """The next turn of a conversation, with all that was said before it."""
    reply: dict[str, Any] = {
        "role": "assistant",
        "content": answer if prompt.reply is None else prompt.reply,
    }
    if following.role == "tool":
        call = {"name": "read", "arguments": '{"path": "notes.txt"}'}
        reply["tool_calls"] = [{"id": CALL_ID, "type": "function", "function": call}]
    before = (*prompt.before, prompt.said, reply)
    return msgspec.structs.replace(following, before=before)
