"""Guesses of a draft behind recorded steps, recorded themselves. Knows no scheduler.

From what was drawn to what is guessed there is nothing for the host to know: which draw counts,
where its sequence is and how its tokens are drawn are one table, filled by one copy. A recording is
for a number of sequences; whole blocks of the draft are its rows.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from relight.engine.draws import PARAMS, sampling_numbers, sampling_params
from relight.engine.graphs import MOST_ROWS
from relight.engine.plan import Draw, Rows
from relight.engine.proposer import DraftProposer, Guesses, behind, guesses_of, who_asks
from relight.engine.sampler import is_cut
from relight.engine.table import Table, smallest
from relight.kernels.record import Recorder, Replay

PLACES = 3
"""Columns in front of the guesses: slot, first draw, how many guesses."""


class RecordedGuesses:
    """`lengths` [slots] counts all rows of a step, those of wrong guesses too. `most`: sequences
    whose blocks are few rows together."""

    def __init__(self, proposer: DraftProposer, lengths: Tensor) -> None:
        self._proposer = proposer
        self._lengths = lengths
        self._width = width = proposer.most
        device = lengths.device
        self.most = max(1, min(MOST_ROWS // width, len(lengths)))
        self._table = Table(self.most, PLACES + width + PARAMS, device)
        self._drawn = torch.zeros(MOST_ROWS, dtype=torch.int64, device=device)
        self._tokens = torch.zeros((self.most, width), dtype=torch.int64, device=device)
        self._confidence = torch.zeros((self.most, width), device=device)
        self._recorded: dict[tuple[int, bool], Replay] = {}
        self.num_replays = 0

    def record(self, count: int, recorder: Recorder) -> None:
        """From now on guesses for so many sequences are replayed, or for as many as there may be.
        Raises as `Recorder.record`."""
        count = min(count, self.most)
        for cut in (False, True):
            if (count, cut) not in self._recorded:
                self._table.clear()  # greedy guesses for slot 0
                self._recorded[count, cut] = recorder.record(partial(self._run, count, cut))

    def propose(self, rows: Sequence[Rows], draws: Sequence[Draw], drawn: Tensor) -> Guesses | None:
        """As `proposer.propose`, there until the next call. None as well if no recording holds
        it."""
        asking = who_asks(rows)
        if not asking or len(drawn) > len(self._drawn):
            return None
        own = [draws[at] for _, at in asking]
        cut = any(is_cut(draw.sampling) for draw in own)
        count = smallest((n for n, recorded in self._recorded if recorded == cut), len(asking))
        if count is None:
            return None
        lines = [
            (one.slot, at, one.proposed, *guesses_of(one, self._width), *numbers)
            for (one, at), numbers in zip(asking, sampling_numbers(own), strict=True)
        ]
        self._table.fill(lines, count)
        self._drawn[: len(drawn)] = drawn
        self._recorded[count, cut]()
        self.num_replays += 1
        n = len(asking)
        asked = tuple(one.propose for one, _ in asking)
        return Guesses(self._tokens[:n], self._confidence[:n], asked)

    def _run(self, count: int, cut: bool) -> None:
        columns = self._table.columns(count)
        slots, first, proposed = columns[:PLACES]
        guessed = columns[PLACES : PLACES + self._width].t()
        params = sampling_params(columns[PLACES + self._width :], cut=cut)
        anchors, positions = behind(slots, first, proposed, guessed, self._drawn, self._lengths)
        tokens, confidence = self._proposer.draw(slots, positions, anchors, params)
        self._tokens[:count], self._confidence[:count] = tokens, confidence
