"""Takes secrets out of what a result stores of a server: its command line, its settings, its
addresses. Knows no file and no server.

A name decides (`--api-key`, `hf_token`, `PASSWORD=`), and so does the look of a value (`sk-…`,
`hf_…`, `Bearer …`, a password in an address). What is hidden needlessly, such as a `bos_token`,
is a small loss.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

HIDDEN = "[hidden]"
_SECRET = re.compile(
    r"(api)?keys?|tokens?|secrets?|passwords?|passwd|pwd|auth|authorization|bearer|credentials?"
)
_COUNT = re.compile(r"max|min|num|batched|new|per|step|output|input|draft|active")
"""Before `tokens`: `max_num_batched_tokens` is a number; `hf_tokens` would be none."""
_LOOKS = re.compile(
    r"\b(sk|hf|ghp|xox[bp]|glpat)[-_][A-Za-z0-9_\-]{8,}|Bearer\s+\S+|(?<=://)[^/\s:@]+:[^/\s@]+@"
)


def is_secret_name(name: str) -> bool:
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if not words or not _SECRET.fullmatch(words[-1]):
        return False
    return words[-1] != "tokens" or not any(map(_COUNT.fullmatch, words[:-1]))


def text(value: str) -> str:
    return _LOOKS.sub(HIDDEN, value)


def argv(arguments: Sequence[str]) -> list[str]:
    """`--api-key x`, `--api-key=x` and `API_KEY=x` lose the x; so does every value after the flag
    up to the next flag, since `--api-key` may take several."""
    return list(_argv(arguments))


def _argv(arguments: Sequence[str]) -> Iterator[str]:
    hiding = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if argument.startswith("-"):
            hiding = not equals and is_secret_name(name)
            yield f"{name}={HIDDEN}" if equals and is_secret_name(name) else text(argument)
        elif hiding:
            yield HIDDEN
        elif equals and is_secret_name(name):
            yield f"{name}={HIDDEN}"
        else:
            yield text(argument)


def settings(value: Any, name: str = "") -> Any:
    """The same of nested settings. Numbers, truths and nulls cannot be secrets."""
    if isinstance(value, dict):
        return {str(key): settings(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [settings(inner, name) for inner in value]
    if isinstance(value, str) and value:
        return HIDDEN if is_secret_name(name) else text(value)
    return value
