"""What the model says in the replayed conversations, and the tokens in which it says it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from relight.text.dsml import Tags
from relight.text.tokenizer import Segment, Tokenizer


class Json(str):
    """A value as the model writes it: JSON, spaced and spelt as it likes."""


@dataclass(frozen=True)
class Said:
    """One answer. `calls` are names of tools with their arguments; a plain string is text."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, dict[str, str]], ...] = ()


TEXT = (
    "the parser reads one token at a time and never looks back so a split of the stream changes "
    "nothing größe naïve 文字 π ≈ 3.14159 🙂 index page boundary record prefix cache"
)
CODE = (
    "```python\ndef total(rows):\n    return sum(row.size for row in rows if row.size > 0)\n```\n"
)


def prose(count: int, seed: int) -> str:
    """So many paragraphs of forty words, the same for a seed."""
    chance, words = random.Random(seed), TEXT.split()
    return "\n\n".join(
        f"{number}. " + " ".join(chance.choice(words) for _ in range(40)) for number in range(count)
    )


SAID = (
    Said(
        "The user wants the bug found. First look at the file.\n" + prose(2, 1),
        "Let me look at the file first.",
        (("read", {"path": "src/größe.py", "offset": Json("0"), "limit": Json("200")}),),
    ),
    Said(
        "Two places matter; both can be read at once. " + prose(3, 2),
        "",
        (
            ("read", {"path": "src/rows.py", "limit": Json("1e2"), "all": Json("false")}),
            (
                "search",
                {"pattern": "total\\(", "paths": Json('["src","tests"]'), "weight": Json("2.50")},
            ),
        ),
    ),
    Said(
        "Now change it.",
        "I found it: a row of size 0 is dropped.\n\n" + CODE,
        (
            (
                "edit",
                {
                    "path": "src/rows.py",
                    "edits": Json(
                        '[{"old": "> 0","new":">= 0", "all": null, "near":{"line": 12}}]'
                    ),
                    "note": 'line 1\nline "2"\t— done 🙂',
                },
            ),
        ),
    ),
    Said(prose(1, 3), "It is done. " + prose(2, 4)),
    Said(
        "They want a test too.",
        "",
        (("edit", {"path": "tests/test_rows.py", "edits": Json("[ ]"), "note": ""}),),
    ),
    Said("Short.", "The test is there.  " + CODE + prose(1, 5)),
)
"""A task with three rounds of tools, an answer, and a second task with one."""

TASKS = ("There is a bug in total(). Find it and correct it.", "Write a test for it, too.")
SYSTEM = "You work in a repository.\n\n" + prose(6, 9)


def result_of(name: str) -> str:
    return f"<{name}>\n" + prose(2, 20 + len(name)) + f"\n</{name}>"


def _function(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"{name}: " + prose(1, len(name)),
        "parameters": {"type": "object", "properties": properties},
    }


STRING, ARRAY = {"type": "string"}, {"type": "array"}
FUNCTIONS = (
    _function("read", path=STRING, offset={"type": "integer"}, limit={"type": "number"}, all={}),
    _function("search", pattern=STRING, paths=ARRAY, weight={"type": "number"}),
    _function("edit", path=STRING, edits=ARRAY, note=STRING),
)


@dataclass
class Pen:
    """Writes answers in tokens as a model may: split where the tokenizer would not split."""

    tokenizer: Tokenizer
    tags: Tags
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def write(self, said: Said, *, thinking: bool) -> list[int]:
        special = self.tokenizer.special
        ids = [*self._odd(said.reasoning), special.think_close] if thinking else []
        ids += self._odd(said.content)
        for part in self._markup(said) if said.calls else ():
            ids += [part] if isinstance(part, int) else self._odd(part)
        return [*ids, special.eos]

    def _markup(self, said: Said) -> Iterator[Segment]:
        tags, mark = self.tags, self.tokenizer.special.dsml
        yield from ("\n\n<", mark, f"{tags.block}>\n")
        for name, arguments in said.calls:
            yield from ("<", mark, f'{tags.invoke} name="{name}">\n')
            for key, value in arguments.items():
                is_text = "false" if isinstance(value, Json) else "true"
                yield from ("<", mark, f'{tags.parameter} name="{key}" string="{is_text}">')
                yield from (value, "</", mark, f"{tags.parameter}>\n")
            yield from ("</", mark, f"{tags.invoke}>\n")
        yield from ("</", mark, f"{tags.block}>")

    def _odd(self, text: str) -> Sequence[int]:
        """Runs of a few letters, each encoded alone."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            size = self.chance.choice((3, 8, 20, 60))
            ids += self.tokenizer.encode_text(text[at : at + size])
            at += size
        return ids
