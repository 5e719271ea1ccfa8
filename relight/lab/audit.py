"""Checks on this machine that a row's bits depend on its own past only, promise by promise.

Each check runs the same requests in two ways that must not matter and compares the tokens. Knows
engines only as something that turns requests into tokens.
"""

import functools
import random
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import msgspec

from relight.base.config import PAGE_TOKENS
from relight.base.errors import BadSetting
from relight.base.settings import Settings
from relight.base.types import Logprobs, Request, SamplingParams

Verdict = Literal["kept", "not kept", "not checked", "approximate"]

MAX_WIDTH = 16
"""Rows of one sequence that a step may have: a token and 15 guesses."""
LIMITS = {"max_context": 1024, "cache_bytes": 0, "record_bytes": 0}
"""Room for the requests of an audit and little more: it starts many engines."""


CHECKS = (
    "replay",
    "widths",
    "speculation",
    "batch",
    "recorded",
    "chunks",
    "warm",
    "generated",
    "starting_over",
    "threads",
)
"""Names of what is checked, in order."""

CROWDS, NEIGHBOURS = 2, 6
"""How often requests run among others that are drawn at random, and among how many."""


class Answer(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    num_cached: int = 0


class Engine(Protocol):
    """An engine that was started for one run of the audit."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_preemptions(self) -> int:
        """How often a request lost its slot for want of pages."""
        ...

    def run(self, requests: Sequence[Request]) -> list[Answer]:
        """Runs all of `requests` at once, admitted in their order, to their ends."""
        ...

    def scores(
        self, prompt: Sequence[int], made: Sequence[int], widths: Iterable[int]
    ) -> list[list[Logprobs]]:
        """For each width: log probabilities of the best tokens behind each of the tokens `made`,
        which follow `prompt` and are computed so many in a step."""
        ...


class Start(Protocol):
    def __call__(self, settings: Settings, *, num_pages: int = 0) -> AbstractContextManager[Engine]:
        """A fresh engine, whose caches are empty, with so many pages; 0: as many as fit."""
        ...


class Promise(msgspec.Struct, frozen=True):
    """`detail`: what was compared, or the first difference, or why nothing was."""

    text: str
    verdict: Verdict
    detail: str


class Audit:
    """The promises about one model and one set of settings. `tokens`: how many each request
    makes; `num_slots`: how many run at once. An engine is asked for a `vocab_size` of 0."""

    def __init__(
        self,
        settings: Settings,
        start: Start,
        *,
        tokens: int = 16,
        num_slots: int = 8,
        vocab_size: int = 0,
    ) -> None:
        self.settings = msgspec.structs.replace(settings, num_slots=num_slots, **LIMITS)
        self.start = start
        self.tokens = tokens
        self.vocab_size = vocab_size
        if not vocab_size:
            with self._engine(graphs="off") as engine:
                self.vocab_size = engine.vocab_size

    def promises(self, checks: Container[str] = CHECKS) -> Iterator[Promise]:
        """Of the checks with such names."""
        every: dict[str, Callable[[], Promise | Iterator[Promise]]] = {
            "replay": self._replay,
            "widths": self._widths,
            "speculation": self._speculation,
            "batch": self._batch,
            "recorded": self._recorded,
            "chunks": self._chunks,
            "warm": self._warm,
            "generated": self._generated,
            "starting_over": self._starting_over,
            "threads": self._threads,
        }
        assert tuple(every) == CHECKS
        for name, check in every.items():
            if name in checks:
                found = check()
                yield from (found,) if isinstance(found, Promise) else found

    def _request(self, name: str, prompt: Sequence[int], **changes: float) -> Request:
        """Sampled, since a sampled token hangs on more of the logits than the largest one, and with
        a penalty, since that hangs on every token before."""
        sampling = SamplingParams(
            temperature=1.0,
            presence_penalty=0.5,
            seed=random.Random(name).getrandbits(32),
            max_tokens=self.tokens,
        )
        sampling = msgspec.structs.replace(sampling, **changes)
        return Request(id=name, prompt=tuple(prompt), sampling=sampling)

    def _prompt(self, name: str, length: int) -> list[int]:
        draw = random.Random(name)
        return [draw.randrange(self.vocab_size) for _ in range(length)]

    def _engine(self, **changes: object) -> AbstractContextManager[Engine]:
        return self.start(msgspec.structs.replace(self.settings, **changes))

    def _one(self, request: Request, **changes: object) -> Answer:
        with self._engine(**changes) as engine:
            return engine.run([request])[0]

    def _widths(self) -> Promise:
        """A log probability hangs on all logits of its row."""
        text = "logits of generated tokens are the same at any width of a step"
        prompt, made = self._prompt("before", PAGE_TOKENS + 3), self._prompt("made", MAX_WIDTH)
        widths = range(1, MAX_WIDTH + 1)
        with self._engine(prefix_cache="off") as engine:
            alone, *others = engine.scores(prompt, made, widths)
        broken = [width for width, found in zip(widths[1:], others, strict=True) if found != alone]
        what = f"{len(made)} rows behind {len(prompt)} tokens"
        if broken:
            names = ", ".join(map(str, broken))
            return Promise(text, "not kept", f"{what}: not bit-equal at widths {names}")
        return Promise(text, "kept", f"{what}: bit-equal at each width from 1 to {MAX_WIDTH}")

    def _speculation(self) -> Promise:
        """Without penalties, which go without guesses; at the width that is set and at others."""
        text = "text is the same with speculation on or off"
        if self.settings.spec == "off":
            return Promise(text, "not checked", "spec is off; name a draft with --spec")
        requests = [
            self._request(f"guess {i}", self._prompt(f"guess {i}", length), presence_penalty=0.0)
            for i, length in enumerate((1, 127, 300))
        ]
        requests.append(self._request("greedy", self._prompt("greedy", 40), temperature=0.0))
        alone = {"spec": "off", "spec_k": 0, "spec_threshold": 0.0, "spec_max_prompt": 0}
        with self._engine(**alone, prefix_cache="off") as engine:
            expected = engine.run(requests)
        kept, pairs = [], []
        for width in sorted({1, 3, 15, self.settings.spec_k} - {0}):
            with self._engine(spec_k=width, spec_threshold=0.0, prefix_cache="off") as engine:
                found = engine.run(requests)
            pairs += list(zip(expected, found, strict=True))
            if expected == found:
                kept.append(str(width))
        return _compare(
            text, f"{len(requests)} requests, equal at k {', '.join(kept) or 'none'}", pairs
        )

    def _replay(self) -> Iterator[Promise]:
        """What no promise holds for: how often texts differ from those of exact replay."""
        if self.settings.replay == "exact":
            return
        lengths = (120, 200, 300, 400, 500, 600, 700, 800)
        requests = [
            self._request(f"replay {i}", self._prompt(f"replay {i}", length), presence_penalty=0.0)
            for i, length in enumerate(lengths)
        ]
        answers = []
        for replay in ("exact", "bounded"):
            with self._engine(replay=replay, prefix_cache="off") as engine:
                answers.append(engine.run(requests))
        pairs = list(zip(*answers, strict=True))
        same = sum(exact == bounded for exact, bounded in pairs)
        first = sum(exact.tokens[:1] == bounded.tokens[:1] for exact, bounded in pairs)
        yield Promise(
            "replay is bounded, so texts behind prompts longer than a window may differ from the "
            "model's own",
            "approximate",
            f"of {len(pairs)} answers of {self.tokens} tokens behind prompts of {lengths[0]} to "
            f"{lengths[-1]}, equal to those of replay exact: {same}, in the first token {first}",
        )

    def _batch(self) -> Promise:
        requests = [
            self._request(f"mate {i}", self._prompt(f"mate {i}", length))
            for i, length in enumerate((1, 5, 127, 128, 129, 300))
        ]
        with self._engine(prefix_cache="off") as engine:
            alone = [engine.run([request])[0] for request in requests]
            together = engine.run(requests)
            turned = engine.run(requests[::-1])[::-1]
            crowds = [self._among_others(engine, requests, number) for number in range(CROWDS)]
        found = [*together, *turned, *(answer for crowd in crowds for answer in crowd)]
        return _compare(
            "batch mates and their order never change text",
            f"{len(requests)} requests alone, together, in turned order, and {CROWDS} times among "
            f"{NEIGHBOURS} others that are drawn at random",
            zip(alone * (len(found) // len(alone)), found, strict=True),
        )

    def _among_others(
        self, engine: Engine, requests: Sequence[Request], number: int
    ) -> list[Answer]:
        """Answers to `requests` in company whose lengths, draws, ends and places are drawn."""
        draw = random.Random(f"crowd {number}")
        crowd = [*requests]
        for mate in range(NEIGHBOURS):
            name = f"crowd {number}, {mate}"
            prompt = self._prompt(name, draw.randrange(1, 3 * PAGE_TOKENS))
            more = {"temperature": draw.choice((0.0, 1.0)), "top_p": draw.choice((0.9, 1.0))}
            made = draw.randrange(1, 2 * self.tokens)
            crowd.append(self._request(name, prompt, max_tokens=made, **more))
        draw.shuffle(crowd)
        answers = dict(zip((one.id for one in crowd), engine.run(crowd), strict=True))
        return [answers[one.id] for one in requests]

    def _recorded(self) -> Promise:
        """Of all widths up to that of the batch, since answers end one by one."""
        text = "recorded steps give the text of eager ones"
        requests = [
            self._request(
                f"step {i}", self._prompt(f"step {i}", length), max_tokens=self.tokens + i
            )
            for i, length in enumerate((1, 60, 127, 200, 300))
        ]
        try:
            with self._engine(graphs="on", prefix_cache="off") as engine:
                recorded = engine.run(requests)
        except BadSetting as refused:
            reason = refused.message.removeprefix("graphs is on, and ").partition(";")[0]
            return Promise(text, "not checked", reason)
        with self._engine(graphs="off", prefix_cache="off") as engine:
            eager = engine.run(requests)
        return _compare(text, f"{len(requests)} requests", zip(eager, recorded, strict=True))

    def _chunks(self) -> Promise:
        request = self._request("chunks", self._prompt("chunks", 3 * PAGE_TOKENS + 11))
        cuts = (17, PAGE_TOKENS, 200)
        whole = self._one(request, prefix_cache="off", max_step_tokens=2048)
        cut = [self._one(request, prefix_cache="off", max_step_tokens=size) for size in cuts]
        return _compare(
            "any cut of a prompt into chunks gives the same text",
            f"{len(request.prompt)} tokens whole and in chunks of {', '.join(map(str, cuts))}",
            zip([whole] * len(cuts), cut, strict=True),
        )

    def _warm(self) -> Promise:
        text = "warm prefixes of given tokens give the same text as cold runs"
        prompt = self._prompt("warm", 2 * PAGE_TOKENS + 1)
        first = self._request("first", prompt)
        others = [
            self._request("same", prompt),
            self._request("longer", prompt + self._prompt("tail", 40)),
            self._request("branch", prompt[: PAGE_TOKENS + 9] + self._prompt("branch", 150)),
        ]
        return self._after(text, [first], others, {"prefix_cache": "on"})

    def _generated(self) -> Promise:
        """What could be reused, and must not be."""
        text = "with reuse_generated off, a turn after generated text equals a cold run"
        first, second = self._turns
        return self._after(
            text, [first], [second], {"prefix_cache": "on", "reuse_generated": "off"}
        )

    @functools.cached_property
    def _turns(self) -> tuple[Request, Request]:
        """A request, and one that goes on after its answer. The second page ends among generated
        tokens."""
        first = self._request("turn", self._prompt("turn", 2 * PAGE_TOKENS - 2))
        made = self._one(first, prefix_cache="off").tokens
        tail = self._prompt("next turn", 30)
        return first, self._request("next turn", [*first.prompt, *made, *tail])

    def _starting_over(self) -> Iterator[Promise]:
        """A turn after generated text, youngest beside five requests that need two pages each.
        Where there are nine pages, its own are taken, and it is computed again: all tokens in the
        roles that they had where it was found."""
        text = "starting over after the loss of a slot never changes text"
        reuse = "reused generated tokens are what going on in their sequence gives"
        first, second = self._turns
        mates = [
            self._request(f"older {i}", self._prompt(f"older {i}", PAGE_TOKENS - 1))
            for i in range(5)
        ]
        changes = {"prefix_cache": "on", "reuse_generated": "on", "admit_output": 1}
        settings = msgspec.structs.replace(self.settings, **changes)
        found = []
        for num_pages in (0, 9):
            with self.start(settings, num_pages=num_pages) as engine:
                engine.run([first])
                found.append(engine.run([*mates, second]))
                lost = engine.num_preemptions
        if not lost:
            why = "no request lost its slot, so there was nothing to compare"
            yield Promise(text, "not checked", why)
            yield Promise(reuse, "not checked", why)
            return
        kept, again = found
        what = f"{len(kept)} requests, {lost} slots lost"
        yield _compare(text, what, zip(kept, again, strict=True))
        reused = min(kept[-1].num_cached, again[-1].num_cached)
        if reused <= len(first.prompt):
            yield Promise(
                reuse, "not checked", f"{reused} tokens were reused, none of them generated"
            )
            return
        what = f"{reused} tokens reused, or computed again"
        yield _compare(reuse, what, [(kept[-1], again[-1])])

    def _after(
        self,
        text: str,
        before: Sequence[Request],
        requests: Sequence[Request],
        changes: dict[str, object],
    ) -> Promise:
        """Compares cold runs of `requests` with runs on an engine that has run `before`."""
        with self._engine(prefix_cache="off") as engine:
            cold = [engine.run([request])[0] for request in requests]
        with self._engine(**changes) as engine:
            for request in before:
                engine.run([request])
            warm = [engine.run([request])[0] for request in requests]
        reused = sum(answer.num_cached for answer in warm)
        if reused == 0:
            return Promise(
                text, "not checked", "nothing was reused, so there was nothing to compare"
            )
        return _compare(
            text, f"{len(warm)} warm answers, {reused} tokens reused", zip(cold, warm, strict=True)
        )

    def _threads(self) -> Promise:
        text = "the number of CPU threads never changes text"
        if self.settings.device not in ("cpu", "auto"):
            return Promise(text, "not checked", f"device is {self.settings.device}")
        request = self._request("threads", self._prompt("threads", 150))
        one, two = (self._one(request, prefix_cache="off", threads=count) for count in (1, 2))
        return _compare(text, "1 and 2 threads", [(one, two)])


def _compare(text: str, what: str, pairs: Iterable[tuple[Answer, Answer]]) -> Promise:
    count = 0
    for expected, found in pairs:
        for place, (a, b) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
            count += 1
            if a != b:
                return Promise(text, "not kept", f"{what}: output token {place} is {b}, not {a}")
    return Promise(text, "kept", f"{what}: {count} tokens equal")
