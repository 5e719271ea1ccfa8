"""Makes the prompts of a run: unique from the first token on, each of a wanted number of tokens.
Knows no server; how many tokens a character makes is told to it."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relight.bench import needle
from relight.bench.corpus import Corpus, Mix
from relight.bench.needle import Needle
from relight.bench.scenario import Class, Scenario, corpora

TASK = "\n\nSay in your own words what the text above is about, part by part."

CALL_ID = "call_1"


class Scale(msgspec.Struct, frozen=True):
    """Tokens of a prompt = overhead + characters * slope, as this server counts them."""

    overhead: float = 0.0
    slope: float = 0.25
    calibrated: bool = False

    def characters(self, tokens: float) -> int:
        return max(int((tokens - self.overhead) / self.slope), 0)


class Prompt(msgspec.Struct, frozen=True):
    """A request to make. `text` is what the user says now, `before` the messages of the
    conversation so far, the first of them included. `length` is how many tokens it should have,
    where that is known; `due` when it is sent, in open arrivals; after `leave_after` chunks its
    client goes away. Of a conversation, `delay_s` is
    how long its user waits before this turn, and `reply` what the history holds as its answer: None
    for the server's own."""

    id: int
    kind: str
    text: str
    max_tokens: int
    fixed: bool = True
    ignore_eos: bool = True
    length: int | None = None
    needle: Needle | None = None
    due: float | None = None
    leave_after: int | None = None
    before: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    session: int | None = None
    turn: int | None = None
    delay_s: float = 0.0
    role: str = "user"
    reply: str | None = None

    @property
    def said(self) -> dict[str, Any]:
        """Its message; a tool's result names the call that it answers."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        return message | ({"tool_call_id": CALL_ID} if self.role == "tool" else {})


class Writer:
    """The nonce stands at the very front of each prompt, and nothing before it differs from run to
    run: no two prompts share more than the template's own first tokens, but where a class wants
    it (sessions, traces), and those of two runs never."""

    def __init__(self, scenario: Scenario, nonce: str) -> None:
        self.random = random.Random(scenario.seed)
        self.nonce = nonce
        self._made = 0
        self._of_class = corpora(scenario)
        self._corpora: dict[str, Corpus] = {}
        for corpus in self._of_class.values():
            if _key(corpus) not in self._corpora:
                self._corpora[_key(corpus)] = Corpus(corpus, scenario.seed)

    @property
    def corpus_hash(self) -> str:
        hashes = [corpus.hash for corpus in self._corpora.values()]
        return hashes[0] if len(hashes) == 1 else _short("".join(hashes))

    def corpus(self, kind: str) -> Corpus:
        return self._corpora[_key(self._of_class[kind])]

    def number(self) -> int:
        self._made += 1
        return self._made

    def mark(self, about: str) -> str:
        """32 hex digits that no other run has."""
        return hashlib.sha256(f"{self.nonce} {about}".encode()).hexdigest()[:32]

    def prompt(
        self,
        one: Class,
        scale: Scale,
        *,
        input_tokens: int | None = None,
        max_tokens: int | None = None,
        fixed: bool | None = None,
    ) -> Prompt:
        number = self.number()
        mark = self.mark(str(number))
        wanted = input_tokens or one.input_tokens
        hidden = self._hidden(one, number)
        if one.text and not input_tokens:
            text, length = f"{mark}\n{one.text}", None
        else:
            text, length = self._filled(one, scale.characters(wanted), mark, hidden), wanted
        return Prompt(
            id=number,
            kind=one.name,
            text=text,
            max_tokens=max_tokens or one.output_tokens,
            fixed=one.fixed if fixed is None else fixed,
            ignore_eos=one.ignore_eos,
            length=length,
            needle=hidden,
            leave_after=self._leaves(one),
        )

    def _leaves(self, one: Class) -> int | None:
        if not one.leave or self.random.random() >= one.leave:
            return None
        return self.random.randrange(1, one.output_tokens)

    def _filled(self, one: Class, characters: int, mark: str, hidden: Needle | None) -> str:
        task = f"\n\n{hidden.question}" if hidden else TASK
        lines = sum(len(line) + 2 for _, line in hidden.lines) if hidden else 0
        room = characters - len(mark) - len(task) - lines - 1
        text = self.corpus(one.name).text(max(room, 1))
        return f"{mark}\n{needle.insert(text, hidden) if hidden else text}{task}"

    def _hidden(self, one: Class, number: int) -> Needle | None:
        kinds = [one.needle] if isinstance(one.needle, str) else one.needle
        if not kinds:
            return None
        # So many requests in a row as there are pairs of kind and depth have each pair once.
        turn = number // len(kinds) % max(len(one.depths), 1)
        depth = one.depths[turn] if one.depths else None
        return needle.hide(kinds[number % len(kinds)], depth, self.random)


def _key(corpus: Mix) -> str:
    return msgspec.json.encode(corpus, order="sorted").decode()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(writer: Writer, one: Class, scale: Scale, seed: int) -> list[Prompt]:
    """All prompts of a class that is neither sessions nor a trace."""
    found = [writer.prompt(one, scale) for _ in range(one.requests)]
    if not one.rate:
        return found
    moments = zip(found, schedule(one, seed), strict=True)
    return [msgspec.structs.replace(prompt, due=due) for prompt, due in moments]


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Equal for literally equal prompts, nonce and all."""
    joined = hashlib.sha256()
    for prompt in prompts:
        joined.update(f"{prompt.id} {prompt.max_tokens} {prompt.text}".encode())
        joined.update(msgspec.json.encode((prompt.before, prompt.tools)) if prompt.before else b"")
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


def within(prompts: Sequence[Prompt], seconds: float) -> list[Prompt]:
    """Without those that are due after the end of a run of so many seconds."""
    return [p for p in prompts if not seconds or p.due is None or p.due <= seconds]


Scales = Mapping[str, Scale]
