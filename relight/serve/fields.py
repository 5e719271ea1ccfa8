"""What a call may name besides the fields of its schema: refused if it asks for what is not built,
else ignored and reported. Knows names and neutral values, not what a field would do.

Nothing that would change the answer is ignored. A value that asks for nothing (`best_of: 1`) is
accepted.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is not built. `neutral` are the values that ask for nothing, as null does."""

    neutral: tuple[object, ...] = ()
    remedy: str = "leave the field out"

    def asks(self, value: object) -> bool:
        """Whether `value` asks for the field. Types count: `best_of: true` is not `best_of: 1`."""
        return value is not None and not any(_same(value, other) for other in self.neutral)


def _same(value: object, other: object) -> bool:
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return value == other


_COMMON = {
    "best_of": Refused((1,), "ask for several answers with `n`"),
    "use_beam_search": Refused((False,)),
    "prompt_logprobs": Refused((False,)),
    "allowed_token_ids": Refused(([],)),
    "bad_words": Refused(([],)),
    "skip_special_tokens": Refused((True,)),
    "truncate_prompt_tokens": Refused((), "send a shorter prompt"),
    "structural_tag": Refused((), "send the schema in `response_format`"),
    "guided_whitespace_pattern": Refused((), "say it in a regular expression"),
}

CHAT_REFUSED = _COMMON | {
    "functions": Refused(([],), "describe them in `tools`"),
    "function_call": Refused(("auto", "none"), "use `tool_choice`"),
    "audio": Refused(),
    "modalities": Refused((["text"],), 'ask for ["text"]'),
    "web_search_options": Refused(),
    "chat_template": Refused((), "the prompt is laid out by the model's own encoding"),
    "separate_reasoning": Refused((True,)),
    "echo": Refused((False,), "join the prompt and the answer on your side"),
}

COMPLETION_REFUSED = _COMMON

NOTHING_REFUSED: dict[str, Refused] = {}

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "verbosity",
        "chat_id",
        "session_id",
        "id",
        "prediction",
        "guided_decoding_backend",
        "priority",
    }
)
"""Fields that clients of OpenAI's protocols send and that change no answer here. They are listed
for readers: a field that nobody has heard of is treated as these are."""

RESPONSES_IGNORED = IGNORED - {"metadata", "id", "chat_id", "prediction", "priority"} | {
    "truncation",
    "max_tool_calls",
    "stream_options",
}
MESSAGES_IGNORED = frozenset({"metadata", "service_tier", "context_management"})
