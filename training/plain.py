"""The text that the tokenizer is trained on: all that rows are made of, before it is encoded. Knows
no token."""

from collections.abc import Iterator
from random import Random

from relight.ember import arithmetic, documents, letters, tools
from relight.ember.tasks import arithmetic_output, letters_output
from relight.ember.words import LANGUAGES, made_up_name, spelling_word
from relight.text.conversation import Tool
from relight.text.dsml import V4_TAGS, python_json, render_calls
from relight.text.literals import load_v4_literals
from training.smalltalk import draw_system, draw_talk
from training.snippets import draw_snippet


def plain_texts(seed: int, count: int) -> Iterator[str]:
    """`count` rounds of one text of each kind and language, and the fixed texts now and then."""
    rng = Random(f"plain {seed}")
    literals = load_v4_literals()
    for i in range(count):
        if i % 40 == 0:
            for name in ("tools_head", "tools_tail", "effort_high", "effort_max"):
                yield from (p.text for p in getattr(literals, name) if p.marker is None)
        for language in LANGUAGES:
            for thinking in (False, True):
                task = arithmetic.draw_sum(rng, "train")
                yield arithmetic.question(rng, language, task)
                output = arithmetic_output(language, task, thinking=thinking)
                yield output.content
                yield output.reasoning or ""
                word = letters.draw_count(rng, "train")
                yield letters.question(rng, language, word)
                output = letters_output(language, word, thinking=thinking)
                yield output.content
                yield output.reasoning or ""
            yield from draw_talk(rng, language)
            yield draw_system(rng, language)
            yield from draw_snippet(rng, language)
            document = documents.draw_document(rng, language, "train", 400, len, 2)
            yield document.text
            yield documents.question(rng, language, document.hidden[0])
            if i % 2 == 0:
                box = tools.draw_toolbox(rng, language, "train")
                yield "\n".join(map(_schema, box.tools))
                request = tools.draw_request(rng, language, box)
                yield request.text
                yield request.result
                yield request.thought(language)
                yield request.answer(language)
                yield from _markup(request)
        # Words that occur once each: what BPE has to build from their parts.
        yield " ".join(spelling_word(rng, "train")[0] for _ in range(8))
        yield " ".join(made_up_name(rng, "train") for _ in range(8))


def _markup(request: tools.Request) -> Iterator[str]:
    run = ""
    for piece in render_calls((request.call("c"),), V4_TAGS, 0):
        if isinstance(piece, str):
            run += piece
        else:
            yield run
            run = ""
    yield run


def _schema(tool: Tool) -> str:
    return python_json(
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    )
