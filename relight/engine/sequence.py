"""A request while it is computed: its tokens, their roles, and what it holds. Decides nothing.

    tokens     the prompt, then what was sampled
    roles      of each token, given or made; a prompt token that was found in the cache as made
               keeps that role, so that computing it again would run the same kernels
    num_known  of the tokens; those after are being drawn by steps in flight, and stand as 0
    planned    tokens [0, planned) have their rows, or get them by steps in flight
    computed   tokens [0, computed) have their rows in pages and rings, committed

The last token of a sequence that generates is not planned yet: computing it draws the next.
"""

from array import array
from dataclasses import dataclass, field

from relight.base.types import FinishReason, Guessed, Logprobs, Request, TokenDelta
from relight.cache.prefix import GIVEN, MADE, TOKEN_TYPE, Entry
from relight.engine.acceptance import Trial
from relight.engine.guides import Guide
from relight.engine.plan import Mask

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """`arrival` orders sequences by age. A sequence without a slot waits and holds nothing.

    `path` are the index entries of its first pages. `shares` turns false where the index knows
    pages with the same tokens in other roles: from there on its own pages stay its own.
    `boundaries`, the nearest last, is where records will be taken while the prompt is read.
    `record` is a provisional boundary record at `record_boundary`, 0 while it has no content.
    `in_flight` counts the steps that compute it and are not committed: while there are any, it
    holds all that it has, even if it is `leaving`. `distrusted`: what it wrote may be no numbers.
    `guide` says what it may go on with, None: anything. `most`: tokens that it may have.
    `proposal` are guesses at the tokens behind its last one, and `trial` tells how they came to be.
    `overran`: its slot counts rows of guesses that turned out wrong. Of its guesses `drafted` were
    checked; `checks[i]` counts the times when i of those checked at once were right. `section`:
    what it is writing.
    """

    request: Request
    arrival: int
    arrived_s: float
    root: Entry
    tokens: "array[int]"
    roles: bytearray
    num_prompt: int
    num_known: int
    most: int
    shares: bool = False
    computed: int = 0
    planned: int = 0
    in_flight: int = 0
    leaving: bool = False
    distrusted: bool = False
    guide: Guide | None = None
    proposal: tuple[int, ...] = ()
    trial: Trial | None = None
    drafted: int = 0
    checks: list[int] = field(default_factory=list)
    section: str = ""
    overran: bool = False
    slot: int = NO_SLOT
    pages: list[int] = field(default_factory=list)
    num_sent_pages: int = 0
    path: list[Entry] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)
    record: int | None = None
    record_boundary: int = 0
    num_preemptions: int = 0
    num_overtaken: int = 0
    num_cached: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    ended_s: float = 0.0
    finish: FinishReason | None = None

    @classmethod
    def of(
        cls, request: Request, arrival: int, now: float, root: Entry, guide: Guide | None = None
    ) -> "Sequence":
        """Raises OverflowError for a token id that is negative or above 32 bits."""
        tokens = array(TOKEN_TYPE, request.prompt)
        num_prompt = len(tokens)
        roles = bytearray(num_prompt)  # all given
        most = num_prompt + request.sampling.max_tokens
        made = cls(request, arrival, now, root, tokens, roles, num_prompt, num_prompt, most)
        made.guide = guide
        return made

    @property
    def num_made(self) -> int:
        """Tokens that were made, or are being drawn."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_unread(self) -> int:
        return len(self.tokens) - self.planned

    @property
    def is_forced(self) -> bool:
        """Whether its last known token is one that had to be."""
        return self.num_known - self.num_prompt <= len(self.request.sampling.forced)

    @property
    def may_start(self) -> bool:
        """Whether its grammar is compiled, if it has one."""
        return self.guide is None or self.guide.is_ready

    @property
    def may_draw(self) -> bool:
        """Whether it is known what its next token may be."""
        return self.guide is None or self.guide.may_draw(len(self.tokens) - self.num_known)

    def mask(self, num_guesses: int) -> Mask | None:
        """What its next token may be, behind so many guesses."""
        guide = self.guide
        if guide is None:
            return None
        if num_guesses:
            return guide.mask_behind(num_guesses)
        return guide.mask(len(self.tokens) - self.num_known)

    def run(self) -> tuple[int, int]:
        """The role of the next token, and where the run of tokens of that role ends."""
        role = self.roles[self.planned]
        end = self.roles.find(MADE if role == GIVEN else GIVEN, self.planned)
        return role, len(self.tokens) if end < 0 else end

    def whole_from(self, replay_rows: int) -> int:
        """Where the last `replay_rows` of the next run of given tokens begin; 0: all are whole."""
        if not replay_rows or self.roles[self.planned] == MADE:
            return 0
        return max(0, self.run()[1] - replay_rows)

    def may_go_on_at(self, boundary: int, replay_rows: int) -> bool:
        """Whether a record of this boundary has all that the next rows read. Behind a made token it
        has; in a run of given tokens, of which the last `replay_rows` alone leave rows in the
        decoder, all of those must follow."""
        if self.roles[boundary - 1] == MADE:
            return True
        end = self.roles.find(MADE, boundary)
        return boundary <= (len(self.tokens) if end < 0 else end) - replay_rows

    @property
    def awaits_budget(self) -> bool:
        """Whether its thinking budget is still to come."""
        budget = self.request.sampling.think_budget
        return budget is not None and self.num_made <= budget

    def closings(self) -> tuple[int, ...]:
        """Of the tokens that it has made those that close its thinking: all that its budget needs
        to have counted, without penalties."""
        close = self.request.sampling.think_close
        return (close,) * self.tokens[self.num_prompt :].count(close)

    def expect(self) -> None:
        """One more token is being drawn."""
        self.tokens.append(0)
        self.roles.append(MADE)

    def learn(self, token: int) -> None:
        """The first of the tokens that were being drawn is known."""
        self.tokens[self.num_known] = token
        self.num_known += 1

    def forget(self) -> None:
        """Whatever is being drawn does not count any more."""
        del self.tokens[self.num_known :], self.roles[self.num_known :]

    def plan_records(
        self, page_tokens: int, interval: int, branch: int, least_rows: int = 1
    ) -> None:
        """Chooses the page boundaries after `computed` where a record is taken while reading.

        They are the places where a later prompt may leave this one: the last boundary of the prompt
        (and the last that the same prompt could use, since `least_rows` of its tokens must run),
        where its turns start, every `interval` tokens, and `branch`, where an earlier prompt has
        left it.
        """
        end = self.num_prompt
        wanted = {branch, *(last // page_tokens * page_tokens for last in (end, end - least_rows))}
        wanted.update(
            min(hint, end) // page_tokens * page_tokens for hint in self.request.record_hints
        )
        wanted.update(range(interval, end + 1, interval))
        self.boundaries = sorted((b for b in wanted if b > self.computed), reverse=True)

    def delta(
        self,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        error: str | None = None,
        logprobs: tuple[Logprobs, ...] = (),
    ) -> TokenDelta:
        admitted_s, first_token_s = self.admitted_s, self.first_token_s
        return TokenDelta(
            id=self.request.id,
            tokens=tokens,
            logprobs=logprobs,
            finish=finish,
            error=error,
            num_cached=self.num_cached,
            guessed=Guessed(self.drafted, tuple(self.checks)) if self.checks else None,
            queue_s=0.0 if admitted_s is None else admitted_s - self.arrived_s,
            prefill_s=0.0
            if admitted_s is None or first_token_s is None
            else first_token_s - admitted_s,
        )
