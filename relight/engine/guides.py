"""Says which tokens the constrained answers may go on with. Knows no scheduler and no device.

Compiling a grammar and making a mask may take a client's grammar seconds, so threads of their own
do it, without the interpreter's lock: nobody waits for them longer than `GRACE_S` a step. A mask
depends on all tokens before it, and steps overlap: an answer inside of its grammar draws when its
last token is known, so it takes part in every second step. Before its grammar begins an answer
takes part in every step, since what may follow its last token is known for both cases.

Guesses inside of a grammar are looked at by the same job, one after the other, as far as it allows
them: then the masks beside and behind each are known in front of the step that tries them.
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
from relight.text.grammar import Grammar, Vocabulary, either, has
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
        self._new: list[int] = []  # tokens inside of the grammar that no job was told
        self._text: list[int] = []  # those that were
        self._ahead: tuple[Mask, ...] = ()  # behind the guesses that the grammar allows
        self._may_try, self._has_tried = True, False  # guesses
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
            return self._mask
        if self._state is State.OVER:
            return None
        if num_unknown and self._may_begin():
            allowed = self._mask.allowed
            return Mask(allowed, after=self._constraint.after, otherwise=self._free)
        return Mask(self._free) if self._free else None

    @property
    def may_guess(self) -> bool:
        """Whether it can be known what may be drawn behind a guess."""
        return self.is_ready and self._may_try and not self._is_forced(0)

    def guesses(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the guesses at what comes next that may be tried at once, as far as that is
        known before `go_on`: the token with which a grammar begins is not guessed."""
        if self._is_forced(0):
            return ()
        after = self._constraint.after
        if self._state is State.BEFORE and after in tokens:
            return tokens[: tokens.index(after)]
        return tokens

    def allowed(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the guesses that `go_on` was told which may be tried."""
        return tokens[: len(self._ahead)] if self._state is State.INSIDE else tokens

    def mask_behind(self, count: int) -> Mask | None:
        """What may be drawn behind so many guesses."""
        if count and self._state is State.INSIDE:
            return self._ahead[count - 1]
        return self.mask(0)

    def learn(self, token: int) -> None:
        """The answer went on with this token, and has not ended. `go_on` follows."""
        self._num_known += 1
        if self._num_known <= self._num_forced:
            return
        if self._state is State.INSIDE:
            if token == self._eos:
                self._state = State.OVER  # the end of the turn is not the end of this answer
            else:
                self._new.append(token)
        elif self._state is State.BEFORE:
            if token == self._constraint.after and self._may_begin():
                self._state = State.INSIDE
            else:
                is_text = token not in self._markers
                self._last_byte = self._token_bytes(token)[-1:] if is_text else b""

    def go_on(self, guesses: tuple[int, ...] = ()) -> None:
        """All tokens of a step were told, and these are guesses at what comes next."""
        if self._state is State.INSIDE and (self._new or guesses):
            new, self._new, self._ahead = self._new, [], ()
            self._guides.work(self, self._advance, new, guesses)

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
        self._grammar = grammar
        self._start()
        if constraint.after is None:
            self._state = State.INSIDE

    def _start(self) -> None:
        self._matcher = self._grammar.start()
        self._mask = self._look()
        for token in self._text:
            self._matcher.consume(token)
            self._mask = self._look()

    def _advance(self, tokens: list[int], guesses: tuple[int, ...]) -> None:
        """What guesses have used up of a matcher's limits is not the answer's: where one gives up,
        another does what it would have done without them, and none are looked at any more."""
        self._text += tokens
        try:
            for token in tokens:
                self._matcher.consume(token)
            if tokens:
                self._mask = self._look()
            if self._may_try:
                self._ahead = self._try(guesses)
        except BadRequest:
            if not self._has_tried:
                raise
            self._may_try = self._has_tried = False
            self._start()

    def _try(self, guesses: tuple[int, ...]) -> tuple[Mask, ...]:
        """The masks behind guesses, up to the first that may not be drawn, ends the answer or
        leaves no token."""
        mask, found, consumed = self._mask, list[Mask](), 0
        for token in guesses:
            if not has(mask.allowed, token) or has(self._ends, token):
                break
            self._has_tried = True
            self._matcher.consume(token)
            consumed += 1
            mask = self._peek()
            if not mask.allowed.strip(b"\0"):
                break
            found.append(mask)
        if consumed:
            self._matcher.forget(consumed)
        return tuple(found)

    def _look(self) -> Mask:
        mask = self._peek()
        if not mask.allowed.strip(b"\0"):
            raise BadRequest("the grammar cannot go on: it leaves no token")
        return mask

    def _peek(self) -> Mask:
        """Where the text is whole, each token that may end it may come."""
        mask = self._matcher.mask()
        if self._matcher.is_whole:
            mask = either(mask, self._ends)
        return Mask(mask, closing=mask == self._ends)
