"""Makes the prompts of a run: unique from the first token on, each of a wanted number of tokens.
Knows no server; how many tokens a character makes is told to it."""

import hashlib
import random
from collections.abc import Sequence

import msgspec

from relight.bench.client import Prompt
from relight.bench.corpus import Corpus
from relight.bench.scenario import Class, Scenario

TASK = "\n\nSay in your own words what the text above is about, part by part."
ASK_NEEDLE = "\n\nThe text above holds one line with the number of the vault {vault}. What is it?"


class Scale(msgspec.Struct, frozen=True):
    """Tokens of a prompt = overhead + characters * slope, as this server counts them."""

    overhead: float = 0.0
    slope: float = 0.25
    calibrated: bool = False


class Writer:
    """The nonce stands at the very front of each prompt, and nothing before it differs from run to
    run: no two prompts share more than the template's own first tokens."""

    def __init__(self, scenario: Scenario, nonce: str) -> None:
        self._corpus = Corpus(scenario.corpus, scenario.seed)
        self._random = random.Random(scenario.seed)
        self._nonce = nonce
        self._made = 0
        self.corpus_hash = self._corpus.hash

    def prompt(
        self,
        one: Class,
        scale: Scale,
        *,
        input_tokens: int | None = None,
        max_tokens: int | None = None,
        fixed: bool | None = None,
    ) -> Prompt:
        self._made += 1
        mark = hashlib.sha256(f"{self._nonce} {self._made}".encode()).hexdigest()[:32]
        wanted = input_tokens or one.input_tokens
        task, needle, line = self._task(one)
        room = int((wanted - scale.overhead) / scale.slope) - len(mark) - len(task) - len(line) - 2
        text = self._corpus.text(max(room, 1))
        depth = self._random.randrange(len(text) + 1) if line else 0
        return Prompt(
            id=self._made,
            kind=one.name,
            text=f"{mark}\n{text[:depth]}{line}{text[depth:]}{task}",
            max_tokens=max_tokens or one.output_tokens,
            fixed=one.fixed if fixed is None else fixed,
            ignore_eos=one.ignore_eos,
            needle=needle,
        )

    def _task(self, one: Class) -> tuple[str, str | None, str]:
        if not one.needle:
            return TASK, None, ""
        vault, number = self._random.randrange(100, 999), str(self._random.randrange(10**6, 10**7))
        line = f"\nThe number of the vault {vault} is {number}.\n"
        return ASK_NEEDLE.format(vault=vault), number, line


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Equal for literally equal prompts, nonce and all."""
    joined = hashlib.sha256()
    for prompt in prompts:
        joined.update(f"{prompt.id} {prompt.max_tokens} {prompt.text}".encode())
    return joined.hexdigest()[:16]


def schedule(one: Class, seed: int) -> list[float]:
    """When each request of an open class is due, in seconds from its start: gamma gaps drawn
    beforehand, and never stretched to fill a duration, which would hide the bursts."""
    draw = random.Random(f"{seed} {one.name}")
    due, moment = [], one.start_s
    for _ in range(one.requests):
        moment += draw.gammavariate(one.burstiness, 1 / (one.rate * one.burstiness))
        due.append(moment)
    return due
