"""Executes step plans: the one place where a plan meets the model, the pool and the sampler.
Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relight.base.numerics import Family
from relight.cache.layout import PAGE_TOKENS
from relight.cache.pool import Pool
from relight.engine.batch import BatchBuilder
from relight.engine.plan import Draw, Drawn, Rows, StepPlan
from relight.engine.sampler import Sampled, Sampler, read
from relight.kernels.device import download, upload
from relight.model.state import layer_states
from relight.model.network import Network


@dataclass(frozen=True, slots=True)
class Launched:
    """What a step draws, on its way to the host; there once `ready` has come."""

    sampled: Sampled
    ready: torch.Event | None


class Runner:
    """Runs plans in the order in which they are given. Lengths, last tokens and page tables live on
    the device and change only here."""

    def __init__(self, model: Network, pool: Pool, *, max_context: int) -> None:
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

    def execute(self, plan: StepPlan) -> list[Drawn]:
        """Runs one step to its end."""
        return self.read(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched | None:
        """Puts one step on the device; what it draws, in the order of `plan.draws`, is `read`."""
        self._prepare(plan)
        segments: tuple[tuple[Family, tuple[Rows, ...]], ...] = (
            ("step", plan.made),
            ("prefill", plan.given),
        )
        logits = [self._forward(family, rows) for family, rows in segments if rows]
        sampled = self._draw(plan.draws, torch.cat(logits)) if plan.draws else None
        for move in plan.takes:
            self.pool.take_record(move.slot, move.record, move.boundary)
        return None if sampled is None else self._send(sampled)

    def read(self, launched: Launched | None) -> list[Drawn]:
        """Waits for the draws of a step, and for no step that was launched after it."""
        if launched is None:
            return []
        if launched.ready is not None:
            launched.ready.synchronize()
        return read(launched.sampled)

    def _send(self, sampled: Sampled) -> Launched:
        if self.lengths.device.type == "cpu":
            return Launched(sampled, None)
        scores = sampled.scores
        if scores is not None:
            own, ids, top = (download(t) for t in (scores.own, scores.top_ids, scores.top))
            scores = replace(scores, own=own, top_ids=ids, top=top)
        sent = Sampled(download(sampled.tokens), sampled.asked, scores)
        ready = torch.Event(self.lengths.device)
        ready.record()
        return Launched(sent, ready)

    def _prepare(self, plan: StepPlan) -> None:
        device = self.lengths.device
        if plan.lengths:
            slots = upload([change.slot for change in plan.lengths], device)
            self.lengths[slots] = upload([change.length for change in plan.lengths], device)
        self.sampler.set_counts(plan.counts)
        for write in plan.pages:
            last = write.first + len(write.pages)
            self.page_table[write.slot, write.first : last] = upload(write.pages, device)
        for move in plan.restores:
            self.pool.restore_record(move.slot, move.record, move.boundary)

    def _forward(self, family: Family, rows: Sequence[Rows]) -> Tensor:
        segment = self.batch.segment(family, rows)
        logits = self.model.forward(segment, self.states)
        counts = upload([len(r.tokens) for r in rows], self.lengths.device)
        self.lengths[segment.slots] += counts
        return logits

    def _draw(self, draws: Sequence[Draw], logits: Tensor) -> Sampled:
        sampled = self.sampler.draw(draws, logits, self.last_tokens)
        slots = upload([draw.slot for draw in draws], logits.device)
        # What was not drawn must not be looked up as a token: the sequence ends, its mates go on.
        self.last_tokens[slots] = sampled.tokens.clamp(min=0)
        return sampled
