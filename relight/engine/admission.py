"""Says which requests may come in at all, and when one may start to run. Knows no step.

A reservation is a promise about pages, not pages: sequences get theirs as they need them.
"""

import math
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from relight.base.errors import BadRequest, Overloaded, TooLong
from relight.base.types import Request
from relight.cache.blocks import BlockPool
from relight.cache.layout import REWIND_ROWS
from relight.cache.prefix import Match
from relight.engine.sequence import Sequence

MAX_PREEMPTIONS = 2
"""How often a sequence gives way to those that are older and not the oldest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens, but for `num_slots` (sequences that run at once) and `max_queue` (requests).

    `step_target_s`: how long a step may take, where streams would wait for its given rows.
    `replay_rows`: of given tokens in a row, how many run through all layers; 0: all do.
    """

    num_slots: int
    max_context: int
    max_step_tokens: int
    admit_output: int
    max_queue: int
    vocab_size: int
    prefix_cache: bool = True
    record_interval: int = 4096
    made_rows: int = REWIND_ROWS
    step_target_s: float = math.inf
    replay_rows: int = 0


class Admission:
    def __init__(self, limits: Limits, pool: BlockPool, page_tokens: int) -> None:
        self.limits = limits
        self.pool = pool
        self.page_tokens = page_tokens

    def check(self, request: Request, num_waiting: int) -> None:
        """Raises `BadRequest` or `TooLong` for a request that can never be served, `Overloaded` if
        as many wait as may wait."""
        limits, num_prompt = self.limits, len(request.prompt)
        max_tokens = request.sampling.max_tokens
        if num_prompt == 0:
            raise BadRequest("prompt is empty; give at least one token", param="prompt")
        if max_tokens < 1:
            raise BadRequest(f"max_tokens is {max_tokens}; give 1 or more", param="max_tokens")
        tokens = request.prompt + request.sampling.forced
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= limits.vocab_size:
            raise BadRequest(
                f"prompt has token {low if low < 0 else high}; this model's tokens are 0 to "
                f"{limits.vocab_size - 1}",
                param="prompt",
            )
        if num_prompt >= limits.max_context:
            raise TooLong(
                f"prompt is {num_prompt:,} tokens; this server holds {limits.max_context:,}, one "
                f"of them made (--max-context)",
                param="prompt",
            )
        needed = self._pages(num_prompt, max_tokens)
        if needed > self.pool.total:
            raise TooLong(
                f"prompt of {num_prompt:,} and max_tokens {max_tokens:,} need {needed:,} pages of "
                f"{self.page_tokens} tokens; this server has {self.pool.total:,}; ask for fewer "
                f"tokens (or raise --cache-bytes)",
                param="max_tokens",
            )
        if num_waiting >= limits.max_queue:
            raise Overloaded(
                f"{num_waiting:,} requests wait; this server queues {limits.max_queue:,} "
                f"(--max-queue); try again later"
            )

    def fits(self, sequence: Sequence, match: Match, running: Ordered[Sequence]) -> bool:
        """Whether what `sequence` reserves, less what it finds, can be had beside what those that
        run (the oldest first) have reserved and not yet got."""
        anchor = not running or sequence.arrival < running[0].arrival
        needed = self._reserved(sequence, anchor)
        # A page that it finds costs nothing if others hold it; if not, it is one that can be had.
        needed -= sum(self.pool.is_held(entry.page) for entry in match.usable)
        for number, other in enumerate(running):
            needed += max(0, self._reserved(other, number == 0) - len(other.pages))
        return needed <= self.pool.num_available

    def _reserved(self, sequence: Sequence, anchor: bool) -> int:
        max_tokens = sequence.request.sampling.max_tokens
        if not anchor and sequence.num_preemptions < MAX_PREEMPTIONS:
            max_tokens = min(max_tokens, max(self.limits.admit_output, sequence.num_made + 1))
        return self._pages(sequence.num_prompt, max_tokens)

    def _pages(self, num_prompt: int, max_tokens: int) -> int:
        tokens = min(num_prompt + max_tokens, self.limits.max_context)
        return -(-tokens // self.page_tokens)
