"""Turns the rows of a plan into a Segment on the device. Knows no model, no pool and no scheduler.

Positions of made rows come from the device's own lengths, not from the plan, so that a plan may be
made before it is known how many rows of the step in front of it were accepted.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.base.numerics import Family
from relight.cache.layout import PAGE_TOKENS, ring_lengths
from relight.engine.graphs import RowInputs, Shape
from relight.engine.plan import LAST_SAMPLED, Rows
from relight.kernels.device import upload
from relight.model.inputs import Segment


class BatchBuilder:
    """Builds segments for one model. `lengths` [slots], `last_tokens` [slots] and `page_table`
    [slots, pages] are the runner's device tensors; they are read, never written."""

    def __init__(
        self, config: ModelConfig, lengths: Tensor, last_tokens: Tensor, page_table: Tensor
    ) -> None:
        self.lengths = lengths
        self.last_tokens = last_tokens
        self.page_table = page_table
        self.ratios = sorted({layer.ratio for layer in config.layers if layer.ratio})
        self.ring_lengths = ring_lengths(config)

    def segment(self, family: Family, rows: Sequence[Rows]) -> Segment:
        """`rows` of one role, at least one; every sequence once."""
        device = self.lengths.device

        def on_device(values: list[int]) -> Tensor:
            return upload(values, device)

        counts = [len(r.tokens) for r in rows]
        first = [sum(counts[:i]) for i in range(len(counts))]
        sequence = on_device([s for s, count in enumerate(counts) for _ in range(count)])
        slots = on_device([r.slot for r in rows])
        first_rows = on_device(first)
        total = sum(counts)
        starts = self.lengths[slots]
        offset = torch.arange(total, device=device) - first_rows[sequence]
        max_length = max(r.start + len(r.tokens) for r in rows)
        since = [r.whole_from for r in rows]
        pages = -(-max_length // PAGE_TOKENS)
        return Segment(
            family=family,
            token_ids=self._tokens(rows, slots, sequence, on_device),
            positions=starts[sequence] + offset,
            sequence=sequence,
            slots=slots,
            starts=starts,
            counts=tuple(counts),
            first_rows=first_rows,
            page_table=self.page_table[slots, :pages],
            max_length=max_length,
            closing_rows={
                ratio: on_device(_closing(family, rows, first, ratio)) for ratio in self.ratios
            },
            kept_rows={ring: on_device(_kept(counts, first, ring)) for ring in self.ring_lengths},
            sample_rows=on_device(sampled_rows(rows)),
            since=on_device(since) if any(since) else None,
        )

    def by_row(self, inputs: RowInputs, shape: Shape) -> Segment:
        """The same for made rows, of values that are on the device alone and in shapes that hang on
        none of them: each row is a sequence of its own, which is drawn from. A row sees all that
        lies in front of its position, whoever stored it, so who its sequence is does not matter."""
        slots, positions = inputs.slots, self.lengths[inputs.slots] + inputs.offsets
        known, last = inputs.tokens, self.last_tokens[slots]
        row = torch.arange(shape.rows, device=slots.device)
        pages = -(-shape.context // PAGE_TOKENS)
        return Segment(
            family="step",
            token_ids=torch.where(known == LAST_SAMPLED, last, known),
            positions=positions,
            sequence=row,
            slots=slots,
            starts=positions,
            counts=(1,) * shape.rows,
            first_rows=row,
            page_table=self.page_table[slots, :pages],
            max_length=shape.context,
            closing_rows=dict.fromkeys(self.ratios, row),
            kept_rows=dict.fromkeys(self.ring_lengths, row),
            sample_rows=row,
        )

    def _tokens(
        self,
        rows: Sequence[Rows],
        slots: Tensor,
        sequence: Tensor,
        on_device: Callable[[list[int]], Tensor],
    ) -> Tensor:
        known = on_device([token for r in rows for token in r.tokens])
        if not any(LAST_SAMPLED in r.tokens for r in rows):
            return known
        return torch.where(known == LAST_SAMPLED, self.last_tokens[slots[sequence]], known)


def sampled_rows(rows: Sequence[Rows]) -> list[int]:
    """Those of all rows whose logits are drawn from."""
    found: list[int] = []
    end = 0
    for r in rows:
        end += len(r.tokens)
        if r.sample:
            found += range(end - 1 - r.proposed, end)
    return found


def _closing(family: Family, rows: Sequence[Rows], first: Sequence[int], ratio: int) -> list[int]:
    """Rows that may be the last of a group. The start of given rows is exact; that of made rows is
    a bound, so each of them is a candidate and the device decides."""
    if family == "step":
        return list(range(first[-1] + len(rows[-1].tokens)))
    return [
        f + i
        for r, f in zip(rows, first, strict=True)
        for i in range((-r.start - 1) % ratio, len(r.tokens), ratio)
    ]


def _kept(counts: Sequence[int], first: Sequence[int], ring: int) -> list[int]:
    """The last `ring` rows of each sequence: earlier ones would be overwritten by them."""
    return [
        f + i
        for f, count in zip(first, counts, strict=True)
        for i in range(max(0, count - ring), count)
    ]
