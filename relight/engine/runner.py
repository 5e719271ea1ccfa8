"""Executes step plans: the one place where a plan meets the model, the pool and the sampler.
Decides nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.cache.layout import PAGE_TOKENS
from relight.cache.pool import Pool
from relight.engine.batch import BatchBuilder
from relight.engine.plan import Draw, Drawn, Rows, StepPlan
from relight.engine.sampler import Sampler, read
from relight.model.state import layer_states
from relight.model.transformer import Transformer


class Runner:
    """Runs plans in the order in which they are given. Lengths, last tokens and page tables live on
    the device and change only here."""

    def __init__(self, model: Transformer, pool: Pool, *, max_context: int) -> None:
        device, slots = pool.device, pool.slots.count
        self.model = model
        self.pool = pool
        self.states = layer_states(model.config, pool)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.last_tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        pages = -(-max_context // PAGE_TOKENS)
        self.page_table = torch.zeros((slots, pages), dtype=torch.int64, device=device)
        self.sampler = Sampler(slots, model.config.vocab_size, device)
        self.batch = BatchBuilder(model.config, self.lengths, self.last_tokens, self.page_table)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Drawn]:
        """Runs one step; returns what was drawn in the order of `plan.draws`."""
        self._prepare(plan)
        segments: tuple[tuple[Family, tuple[Rows, ...]], ...] = (
            ("step", plan.made),
            ("prefill", plan.given),
        )
        logits = [self._forward(family, rows) for family, rows in segments if rows]
        drawn = self._draw(plan.draws, torch.cat(logits)) if plan.draws else []
        for move in plan.takes:
            self.pool.take_record(move.slot, move.record, move.boundary)
        return drawn

    def _prepare(self, plan: StepPlan) -> None:
        for change in plan.lengths:
            self.lengths[change.slot] = change.length
        self.sampler.set_counts(plan.counts)
        for write in plan.pages:
            last = write.first + len(write.pages)
            self.page_table[write.slot, write.first : last] = torch.tensor(write.pages)
        for move in plan.restores:
            self.pool.restore_record(move.slot, move.record, move.boundary)

    def _forward(self, family: Family, rows: Sequence[Rows]) -> Tensor:
        segment = self.batch.segment(family, rows)
        logits = self.model.forward(segment, self.states)
        counts = torch.tensor([len(r.tokens) for r in rows], device=self.lengths.device)
        self.lengths[segment.slots] += counts
        return logits

    def _draw(self, draws: Sequence[Draw], logits: Tensor) -> list[Drawn]:
        sampled = self.sampler.draw(draws, logits)
        slots = torch.tensor([draw.slot for draw in draws], device=logits.device)
        # What was not drawn must not be looked up as a token: the sequence ends, its mates go on.
        self.last_tokens[slots] = sampled.tokens.clamp(min=0)
        return read(sampled)
