"""One answer as it grows: its text, its calls, and when what came. Knows no source and no view."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from relight.chat.source import Ended, Event
from relight.session import CallStart
from relight.text.conversation import Message, ToolCall
from relight.text.parse import Content, Reasoning, ToolCallArguments


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""

    @property
    def shown(self) -> str:
        return f"{self.name}({self.arguments})"


@dataclass(slots=True)
class Answer:
    """Times are seconds of the chat's clock. `num_thought` and `num_events` count events, which are
    about as many as tokens; only a source's usage tells exactly."""

    asked_s: float
    reasoning: str = ""
    content: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    ended: Ended | None = None
    first_s: float | None = None
    thought_s: float | None = None
    last_s: float | None = None
    num_thought: int = 0
    num_events: int = 0

    def add(self, event: Event, now: float) -> None:
        if isinstance(event, Ended):
            self.ended = event
            return
        self.num_events += 1
        self.last_s = now
        if self.first_s is None:
            self.first_s = now
        match event:
            case Reasoning(text=text):
                self.reasoning += text
                self.num_thought += 1
                self.thought_s = now
            case Content(text=text):
                self.content += text
            case CallStart(index=index, id=call_id, name=name):
                self.calls[index] = Call(call_id, name)
            case ToolCallArguments(index=index, text=text):
                self.calls[index].arguments += text

    @property
    def message(self) -> Message | None:
        """What it leaves in the conversation; None if it said nothing. Calls of an answer that did
        not come to its end may be half, and are left out."""
        whole = self.ended is not None and self.ended.reason != "length"
        calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in self.calls.values() if whole)
        if not self.content and not calls:
            return None
        return Message("assistant", self.content, self.reasoning or None, calls)


def thought(answer: Answer) -> str:
    """What a folded reasoning is shown as."""
    seconds = (answer.thought_s or 0.0) - (answer.first_s or 0.0)
    return f"thought for {seconds:.1f} s, {_thought_tokens(answer)} tokens"


def stats(answer: Answer) -> str:
    return " · ".join(_stats(answer))


def _stats(answer: Answer) -> Iterator[str]:
    usage = answer.ended.usage if answer.ended else None
    made = usage.completion_tokens if usage else answer.num_events
    about = "" if usage else "~"
    thinking = f" ({_thought_tokens(answer)} thinking)" if answer.reasoning else ""
    yield f"{about}{made:,} tokens{thinking}"
    if answer.first_s is not None and answer.last_s is not None:
        yield f"first {answer.first_s - answer.asked_s:.2f} s"
        if made > 1 and answer.last_s > answer.first_s:
            # The first token is the prompt's work.
            yield f"{about}{(made - 1) / (answer.last_s - answer.first_s):,.1f} tokens/s"
    if usage:
        yield f"{usage.cached_tokens:,} of {usage.prompt_tokens:,} cached"
    if answer.ended is None:
        yield "stopped"
    elif answer.ended.reason not in ("stop", "tool_calls"):
        yield {"length": "cut at the most tokens"}.get(answer.ended.reason, answer.ended.reason)


def _thought_tokens(answer: Answer) -> str:
    usage = answer.ended.usage if answer.ended else None
    if usage and usage.reasoning_tokens:
        return f"{usage.reasoning_tokens:,}"
    return f"~{answer.num_thought:,}"
