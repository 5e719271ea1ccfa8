"""What a scripted server does: how each request is answered, and what the server claims. Knows no
socket."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Field = Literal["content", "reasoning", "reasoning_content", "tool_calls"]
Ending = Literal["whole", "stall", "die", "in_band", "no_done", "no_finish", "no_usage", "garbage"]
CHARS_PER_TOKEN = 4
TEMPLATE_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Token n comes `first_s + (n // per_chunk) * gap_s` after its slot was given.

    `ending` other than whole acts after `cut` tokens, or at the end when `cut` is None.
    """

    first_s: float = 0.02
    gap_s: float = 0.004
    per_chunk: int = 1
    tokens: int | None = None  # None: max_tokens
    thought: int = 0  # tokens of `thought_field` before the answer
    thought_field: Field = "reasoning_content"
    answer_field: Field = "content"
    finish: str = "length"
    ending: Ending = "whole"
    cut: int | None = None
    status: int = 200
    prelude: bool = True
    usage_lie: int = 0  # added to the completion tokens that usage tells
    usage_each: bool = False  # usage on every chunk
    cached: int | None = None  # overrides the prefix cache
    text: str = ""  # the whole answer, given with the first chunk; else made-up words
    comment_s: float = 0.0  # keep-alive comments this often
    histogram: tuple[int, ...] = ()  # verifications that accepted 0, 1, 2 … drafts, told beside


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the server sees it; `number` counts the measured ones from 0."""

    number: int
    prompt: str
    max_tokens: int
    measured: bool


@dataclass(slots=True)
class Script:
    reply: Callable[[Asked], Reply] = lambda _: Reply()
    refusal: str = "scripted refusal"  # the message of statuses other than 200
    measured_tokens: int = 8
    warm_ups: int = 1
    slots: int = 1000
    dialect: Literal["vllm", "sglang", "none"] = "vllm"
    max_model_len: int | None = 100_000
    prefix_cache: bool = False
    prefixes: set[str] = field(default_factory=set)  # what that cache holds; outlives a server
    tells_start: bool = True  # process_start_time_seconds is among the metrics
    model_created: Callable[[int], int] = lambda _: 1
    ttft_lie_s: float = 0.0
    tokens_lie: float = 1.0
    restart_before: int | None = None  # the request before which all counters go back to 0
    spec_depth: int = 0
    spec_accept: tuple[float, ...] = ()
    spec_drafted: tuple[float, ...] = ()  # share of verifications that drafted so far
    settings: dict[str, Any] = field(default_factory=dict)  # what /server_info tells
    tokenizes: bool = False  # /tokenize counts the tokens of a text
    keeps_left: bool = False  # goes on with an answer whose client went away
    garbage: bool = False  # metrics and settings are no such thing


@dataclass(slots=True)
class Served:
    """What was really done, by the server's own clock."""

    asked: Asked
    arrived: float
    started: float = 0.0
    writes: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens)


def prompt_of(body: dict[str, Any]) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"])


def num_tokens(prompt: str) -> int:
    return TEMPLATE_TOKENS + len(prompt) // CHARS_PER_TOKEN
