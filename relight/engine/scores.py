"""Log probabilities of recorded draws, recorded themselves. Knows no model and no request."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from relight.engine.plan import Draw
from relight.engine.sampler import Sampled, asked_scores, scored
from relight.engine.table import Table, smallest
from relight.kernels.record import Recorder, Replay
from relight.kernels.sample import Scores, score_tokens

MOST_TOLD = 20
"""Best tokens that are told of a draw: as many as the protocol has. A draw that asks for more is
scored eagerly."""


class RecordedScores:
    """Scores `tokens` [draws] by rows of `logits` [rows, V]. So many of the best are looked up for
    all: the order is fixed, so those that a draw asks for are how they begin."""

    def __init__(self, logits: Tensor, tokens: Tensor) -> None:
        most, vocab = logits.shape
        self._logits = logits
        self._tokens = tokens
        self._told = min(MOST_TOLD, vocab)
        self._table = Table(most, 2, logits.device)  # which draw, and its row
        self._own = logits.new_zeros(most)
        self._ids = tokens.new_zeros((most, self._told))
        self._top = logits.new_zeros((most, self._told))
        self._recorded: dict[int, Replay] = {}
        self.num_replays = 0

    def record(self, count: int, recorder: Recorder) -> None:
        if count not in self._recorded:
            self._table.clear()
            self._recorded[count] = recorder.record(partial(self._run, count))

    def told(self, draws: Sequence[Draw], rows: Sequence[int]) -> Sampled:
        """The draws with what they ask for; draw i is of row `rows[i]`."""
        asked, tokens = asked_scores(draws), self._tokens[: len(draws)]
        width = smallest(self._recorded, len(asked))
        few = all(count <= self._told for _, count in asked)
        if not asked or width is None or not few:
            return scored(draws, self._logits, tokens, rows)
        self._table.fill([(number, rows[number]) for number, _ in asked], width)
        self._recorded[width]()
        self.num_replays += 1
        n = len(asked)
        return Sampled(tokens, asked, Scores(self._own[:n], self._ids[:n], self._top[:n]))

    def _run(self, count: int) -> None:
        number, row = self._table.columns(count)
        found = score_tokens(self._logits[row], self._tokens[number], self._told)
        self._own[:count], self._ids[:count], self._top[:count] = (
            found.own,
            found.top_ids,
            found.top,
        )
