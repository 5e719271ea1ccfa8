"""Draws from recorded steps, recorded themselves. Knows no model and no scheduler.

A draw is a hundred operations by torch's definition and ten by kernels, with a copy from the host
for each parameter. Here all parameters are one table, filled by one copy, and the rest is a
recording for each number of draws. Draws are of four kinds: changed or not by penalties and masks,
cut or not by top-k and top-p. What names tokens (bias, bans, forced ones, the end of a budget) has
no fixed shape: such a draw is the sampler's own, eagerly. Each draw has the same bits as there,
since they hang on nothing but its row and its parameters.

Lines of padding are copies of the last: they draw and write what it does.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from relight.engine.plan import Draw
from relight.engine.sampler import (
    Sampled,
    Sampler,
    allowed_words,
    is_cut,
    names_tokens,
    signed,
)
from relight.engine.scores import RecordedScores
from relight.engine.table import Table, smallest
from relight.kernels.device import upload
from relight.kernels.record import Recorder, Replay
from relight.kernels.sample import Adjustments, Penalties, SampleParams, sample


class Kind(NamedTuple):
    adjusted: bool
    cut: bool


KINDS = tuple(itertools.starmap(Kind, itertools.product((False, True), repeat=2)))
"""Apart, since most draws are neither, and a cut sorts the whole vocabulary."""

PARAMS = 7
"""Columns of `sampling_numbers`."""

PENALTIES = 3
PLACES = 5
"""Columns beside them: which draw of the step, row of logits, slot, line of masks, whether it is
counted."""


def kind_of(draw: Draw) -> Kind | None:
    """None: it is not for a recording."""
    if names_tokens(draw):
        return None
    return Kind(draw.sampling.penalised or draw.mask is not None, is_cut(draw.sampling))


def sampling_numbers(draws: Sequence[Draw]) -> list[tuple[int, ...]]:
    """Their parameters as lines of a table."""
    params = [draw.sampling for draw in draws]
    reals = float_bits([(p.temperature, p.top_p, p.min_p) for p in params])
    return [
        (signed(p.seed), p.choice, draw.position, p.top_k, *real)
        for draw, p, real in zip(draws, params, reals, strict=True)
    ]


def sampling_params(columns: Tensor, *, cut: bool) -> SampleParams:
    """The same of columns [PARAMS, n] of the table. Which of the rows are greedy, and with `cut`
    which are cut, only the device knows."""
    seed, choice, position, top_k = columns[:4]
    temperature, top_p, min_p = as_floats(columns[4:])
    return SampleParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        choice=choice,
        position=position,
        cut=None if cut else position[:0],
    )


def float_bits(lines: Sequence[Sequence[float]]) -> list[list[int]]:
    """Lines of float32 values as the integers that have their bits."""
    bits: list[list[int]] = torch.tensor(lines, dtype=torch.float32).view(torch.int32).tolist()
    return bits


def as_floats(bits: Tensor) -> Tensor:
    """The inverse, of int64."""
    return bits.to(torch.int32).view(torch.float32)


class RecordedDraws:
    """Draws from `logits` [rows, V], where recorded steps leave theirs. `last` [slots]: what each
    slot drew last."""

    def __init__(self, sampler: Sampler, logits: Tensor, last: Tensor) -> None:
        most, vocab = logits.shape
        device = logits.device
        self._sampler = sampler
        self._logits = logits
        self._last = last
        self._table = Table(most, PLACES + PARAMS + PENALTIES, device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        # Line 0 lets all tokens through: that of draws without a mask.
        words = (most + 1, -(-vocab // 32))
        self._masks = torch.full(words, -1, dtype=torch.int32, device=device)
        self.scores = RecordedScores(logits, self._tokens)
        self._recorded: dict[tuple[int, Kind], Replay] = {}
        self.num_replays = 0

    def record(self, count: int, recorder: Recorder) -> None:
        """From now on so many draws of each kind are replayed, and what is told of so many. Raises
        as `Recorder.record`."""
        for kind in KINDS:
            if (count, kind) not in self._recorded:
                self._table.clear()  # greedy draws from row 0 for slot 0, counted nowhere
                self._recorded[count, kind] = recorder.record(partial(self._run, count, kind))
        self.scores.record(count, recorder)

    def draw(self, draws: Sequence[Draw], rows: Sequence[int]) -> Sampled:
        """One token for each of `rows` of the logits. They lie at one place until the next call."""
        # Eager ones first: the end of a budget hangs on what was counted before this step.
        groups: dict[Kind | None, list[int]] = {None: []}
        for number, draw in enumerate(draws):
            groups.setdefault(kind_of(draw), []).append(number)
        for kind, numbers in groups.items():
            if not numbers:
                continue
            widths = (count for count, recorded in self._recorded if recorded == kind)
            count = smallest(widths, len(numbers))
            if kind is None or count is None:
                self._draw_eagerly(draws, rows, numbers)
            else:
                self._table.fill(self._lines(draws, rows, numbers), count)
                self._recorded[count, kind]()
                self.num_replays += 1
        return self.scores.told(draws, rows)

    def _draw_eagerly(
        self, draws: Sequence[Draw], rows: Sequence[int], numbers: Sequence[int]
    ) -> None:
        logits = self._logits[upload([rows[n] for n in numbers], self._logits.device)]
        found = self._sampler.tokens([draws[n] for n in numbers], logits, self._last)
        self._tokens[upload(numbers, found.device)] = found

    def _lines(
        self, draws: Sequence[Draw], rows: Sequence[int], numbers: Sequence[int]
    ) -> list[tuple[int, ...]]:
        some = [draws[n] for n in numbers]
        masked = [draw for draw in some if draw.mask is not None]
        words = allowed_words(masked, self._logits.shape[1], self._logits.device, self._last)
        if words is not None:
            self._masks[1 : 1 + len(masked)] = words
        mask, params = itertools.count(1), [draw.sampling for draw in some]
        places = [
            (n, rows[n], draw.slot, 0 if draw.mask is None else next(mask), int(p.counted))
            for n, draw, p in zip(numbers, some, params, strict=True)
        ]
        penalties = float_bits(
            [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        )
        parts = zip(places, sampling_numbers(some), penalties, strict=True)
        return [(*at, *sampled, *bits) for at, sampled, bits in parts]

    def _run(self, count: int, kind: Kind) -> None:
        columns = self._table.columns(count)
        number, row, slot, mask, counted = columns[:PLACES]
        params = sampling_params(columns[PLACES : PLACES + PARAMS], cut=kind.cut)
        counts, adjustments = self._sampler.counts, None
        if kind.adjusted:
            repetition, frequency, presence = as_floats(columns[PLACES + PARAMS :])
            penalties = Penalties(repetition, frequency, presence, counts[slot])
            every = torch.arange(count, device=row.device)
            adjustments = Adjustments(every, penalties, allowed=self._masks[mask])
        tokens = sample(self._logits[row], params, adjustments, self._sampler.fast)
        kept = tokens.clamp(min=0)
        # Of one slot all draws are counted or none, so two of one token write the same.
        counts[slot, kept] += counted.to(counts.dtype)
        self._last[slot] = kept
        self._tokens[number] = tokens
