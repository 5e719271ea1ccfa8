"""StepPlan: one decision of the scheduler, the same for every rank. Knows no tensor.

A plan holds choices and upper bounds only. Token values and positions live on the device (`position
= length[slot] + i`), so that a plan can be made before the step in front of it has ended.

Structs, since a step makes three of them for each sequence, and a frozen dataclass takes six times
as long to make.
"""

import msgspec

from relight.base.types import Logprobs, SamplingParams

LAST_SAMPLED = -1
"""A token of a made row whose value is the one that the slot's sampler drew last."""


class Rows(msgspec.Struct, frozen=True):
    """Consecutive new rows of one sequence. `start` is the position of the first row (an upper
    bound where the rows before it may be rejected). The rows of a `Rows` are all given or all made.

    `sample`: draw the next token from the logits of the last row. The last `proposed` tokens are
    guesses at what is drawn before them: there is a draw for the row before each of them, too.
    `propose`: guess that many tokens behind the drawn one that counts. `whole_from`: rows at
    positions before it run through the encoder alone; 0: all run through all layers.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    sample: bool = False
    proposed: int = 0
    propose: int = 0
    whole_from: int = 0


class PageWrite(msgspec.Struct, frozen=True):
    """Entries `first`, `first + 1`, ... of the slot's page table become `pages`."""

    slot: int
    first: int
    pages: tuple[int, ...]


class RecordMove(msgspec.Struct, frozen=True):
    """Copies between the rings of a slot and a boundary record, at `boundary` tokens."""

    slot: int
    record: int
    boundary: int


class SetLength(msgspec.Struct, frozen=True):
    """The slot holds `length` tokens from now on: admission, prefix hit or rewind."""

    slot: int
    length: int


class SetCounts(msgspec.Struct, frozen=True):
    """The slot's sequence has made `tokens` so far: what its penalties count when it gets the slot.
    From then on the sampler counts what it draws, known to the scheduler or not."""

    slot: int
    tokens: tuple[int, ...]


class Mask(msgspec.Struct, frozen=True):
    """Which tokens may be drawn: token t has bit t % 8 of byte t // 8, in ceil(V / 32) * 4 bytes.

    With `after`, `allowed` holds if the slot's sampler drew that token last, and else `otherwise`
    (nothing: all tokens may be drawn). `closing`: all that is allowed ends the answer.
    """

    allowed: bytes
    after: int | None = None
    otherwise: bytes = b""
    closing: bool = False


class Draw(msgspec.Struct, frozen=True):
    """How the next token of a slot is drawn; `position` is that of the token being drawn, `made`
    how many tokens its sequence has made before."""

    slot: int
    position: int
    sampling: SamplingParams
    made: int = 0
    mask: Mask | None = None


class Scored(msgspec.Struct, frozen=True):
    """A drawn token of a sequence that asked for log probabilities."""

    token: int
    logprobs: Logprobs


Drawn = int | Scored
"""What came of a draw. A token below 0: there was none to draw, since the row's logits are not
finite or nothing is allowed."""


class Proposed(msgspec.Struct, frozen=True):
    """Guesses at the next tokens of a sequence. `confidence`: how likely each is what will be
    drawn, if those before it are."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]


Result = Drawn | Proposed
"""A step gives a `Drawn` for each of its draws, and behind them a `Proposed` for each `Rows` that
asks for one, both in their order."""


class StepPlan(msgspec.Struct, frozen=True):
    """What one step does, in this order: set lengths and counts, write page tables, restore
    records, run the made and the given segment, draw, take records.

    `draws` has an entry for every `Rows` with `sample`, made before given, in their order; one more
    for each of its guesses.
    """

    step: int
    made: tuple[Rows, ...] = ()
    given: tuple[Rows, ...] = ()
    draws: tuple[Draw, ...] = ()
    lengths: tuple[SetLength, ...] = ()
    pages: tuple[PageWrite, ...] = ()
    counts: tuple[SetCounts, ...] = ()
    restores: tuple[RecordMove, ...] = ()
    takes: tuple[RecordMove, ...] = ()

    def outline(self) -> str:
        """Its shape in one line, for a log: slots, positions and counts, no tokens."""
        parts = [
            f"{len(rows)} {name} ("
            + ", ".join(f"slot {r.slot}: {len(r.tokens)} at {r.start}" for r in rows)
            + ")"
            for name, rows in (("made", self.made), ("given", self.given))
            if rows
        ]
        parts += [
            f"{len(moves)} {name}"
            for name, moves in (
                ("draws", self.draws),
                ("page writes", self.pages),
                ("restores", self.restores),
                ("takes", self.takes),
            )
            if moves
        ]
        return f"step {self.step}: {', '.join(parts)}"
