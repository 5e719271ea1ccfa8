"""Says which tokens the constrained answers may go on with. Knows no scheduler and no device.

Compiling a grammar and making a mask may take a client's grammar seconds, so threads of their own
do it, without the interpreter's lock: nobody waits for them longer than `GRACE_S` a step. A mask
depends on all tokens before it, and steps overlap: an answer inside of its grammar draws when its
last token is known, so it takes part in every second step. Before its grammar begins an answer
takes part in every step, since what may follow its last token is known for both cases.
"""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from enum import Enum, auto
from functools import cached_property
from threading import Lock
from typing import Any

from relight.base.errors import BadRequest, RelightError
from relight.base.types import Constraint, Request
from relight.engine.plan import Mask
from relight.text.grammar import Grammar, Vocabulary, either
from relight.text.tokenizer import Tokenizer

GRACE_S = 0.002
"""How long a step may be held up for masks: a usual one takes 0.02 to 1.2 ms."""
MAX_KEPT = 64
"""How many grammars are kept compiled, each some 100 kB."""


class State(Enum):
    BEFORE = auto()  # the grammar has not begun
    INSIDE = auto()
    OVER = auto()  # the text is whole, and its end did not end the answer


class Guides:
    """All that run. Used by the thread of the loop. `open` reads a tokenizer, once, when the first
    constrained request comes."""

    def __init__(
        self, open: Callable[[], Tokenizer], num_logits: int, executor: Executor | None = None
    ) -> None:
        self._open = open
        self._num_logits = num_logits
        self._executor = executor or ThreadPoolExecutor(
            min(8, os.cpu_count() or 1), thread_name_prefix="grammar"
        )
        self._lock = Lock()
        self._kept: dict[str, Grammar] = {}
        self._working: list[Guide] = []

    def guide(self, request: Request) -> "Guide":
        """The way of one answer through its grammar, which is compiled meanwhile."""
        return Guide(self, request)

    def settle(self) -> list[tuple[str, str]]:
        """Waits a moment for masks, and not for grammars that are compiled. Returns the ids of
        requests that cannot go on, each with the reason."""
        working = self._working
        if not working:
            return []
        if masks := [guide.job for guide in working if guide.has_begun]:
            wait(masks, GRACE_S)
        self._working = [guide for guide in working if not guide.job.done()]
        return [(guide.id, guide.fault) for guide in working if guide.fault is not None]

    def rest(self) -> None:
        """Waits a moment, as there is nothing else to do."""
        wait([guide.job for guide in self._working], GRACE_S)

    def work(self, guide: "Guide", task: Callable[..., None], *values: Any) -> None:
        guide.job = self._executor.submit(task, *values)
        self._working.append(guide)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._open()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer, self._num_logits)

    def compiled(self, text: str) -> Grammar:
        """Called in a thread of the executor."""
        with self._lock:
            vocabulary = self.vocabulary
            kept = self._kept.pop(text, None)
        grammar = kept or vocabulary.compile(text)
        with self._lock:
            self._kept[text] = grammar  # the last used one stands last
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return grammar


class Guide:
    """One answer. Tokens are told in their order, as they become known. While its `job` runs only
    the job touches what it works on."""

    job: "Future[None]"

    def __init__(self, guides: Guides, request: Request) -> None:
        assert request.constraint is not None
        self.id = request.id
        self._guides = guides
        self._constraint: Constraint = request.constraint
        self._stops = request.sampling.stop_token_ids
        self._state = State.BEFORE
        self._num_forced = len(request.sampling.forced)
        self._num_known = 0
        self._last_byte = b""
        guides.work(self, self._begin)

    @property
    def fault(self) -> str | None:
        """Why the answer cannot go on."""
        error = self.job.exception() if self.job.done() else None
        if error is None:
            return None
        return error.message if isinstance(error, RelightError) else repr(error)

    @property
    def has_begun(self) -> bool:
        """Whether it waits for a mask; else for its grammar."""
        return self._state is not State.BEFORE

    @property
    def is_ready(self) -> bool:
        return self.job.done() and self.fault is None

    def may_draw(self, num_unknown: int) -> bool:
        """Whether the next token may be drawn while so many before it are being drawn."""
        if self._is_forced(num_unknown) or self._num_known < self._num_forced:
            return self._is_forced(num_unknown)  # behind the forced ones all must be known once
        return self.is_ready and (self._state is not State.INSIDE or num_unknown == 0)

    def mask(self, num_unknown: int) -> Mask | None:
        """What may be drawn next; None: anything."""
        if self._is_forced(num_unknown):
            return None
        if self._state is State.INSIDE:
            return Mask(self._mask, closing=self._mask == self._ends)
        if self._state is State.OVER:
            return None
        if num_unknown and self._may_begin():
            return Mask(self._mask, after=self._constraint.after, otherwise=self._free)
        return Mask(self._free) if self._free else None

    @property
    def is_free(self) -> bool:
        """Whether what may be drawn does not hang on the tokens before."""
        return self.is_ready and self._state is not State.INSIDE and not self._is_forced(0)

    def guesses(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """How many of these guesses at what comes next may be tried at once: those before the
        grammar begins. What may be drawn beside and behind each of them is `mask(0)`."""
        if not self.is_free:
            return ()
        after = self._constraint.after
        if self._state is State.BEFORE and after in tokens:
            return tokens[: tokens.index(after)]
        return tokens

    def learn(self, token: int) -> None:
        """The answer went on with this token, and has not ended."""
        self._num_known += 1
        if self._num_known <= self._num_forced:
            return
        if self._state is State.INSIDE:
            if token == self._eos:
                self._state = State.OVER  # the end of the turn is not the end of this answer
            else:
                self._guides.work(self, self._advance, token)
        elif self._state is State.BEFORE:
            if token == self._constraint.after and self._may_begin():
                self._state = State.INSIDE
            else:
                is_text = token not in self._markers
                self._last_byte = self._token_bytes(token)[-1:] if is_text else b""

    def _is_forced(self, num_unknown: int) -> bool:
        """Whether it is known what the next token is: its form begins behind such tokens."""
        return self._num_known + num_unknown < self._num_forced

    def _may_begin(self) -> bool:
        """Whether the grammar begins if the next token is the one that it waits for."""
        if not self._constraint.opens_tag:
            return True
        return self._last_byte == b"<"

    def _begin(self) -> None:
        constraint = self._constraint
        grammar = self._guides.compiled(constraint.grammar)
        vocabulary, tokenizer = self._guides.vocabulary, self._guides.tokenizer
        self._eos = vocabulary.eos
        self._ends = vocabulary.mask_of((*self._stops, self._eos))
        self._free = vocabulary.mask_without(constraint.banned) if constraint.banned else b""
        special = tokenizer.special
        self._markers = (special.think_open, special.think_close, special.dsml)
        self._token_bytes = tokenizer.token_bytes
        self._matcher = grammar.start()
        self._look()
        if constraint.after is None:
            self._state = State.INSIDE

    def _advance(self, token: int) -> None:
        self._matcher.consume(token)
        self._look()

    def _look(self) -> None:
        """Where the text is whole, each token that may end it may come."""
        mask = self._matcher.mask()
        self._mask = either(mask, self._ends) if self._matcher.is_whole else mask
        if not self._mask.strip(b"\0"):
            raise BadRequest("the grammar cannot go on: it leaves no token")
