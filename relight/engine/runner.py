"""Executes step plans: the one place where a plan meets the model, the pool and the sampler.
Decides nothing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relight.base.errors import Unavailable
from relight.base.numerics import Family
from relight.cache.layout import PAGE_TOKENS
from relight.cache.pool import Pool
from relight.engine.batch import BatchBuilder, sampled_rows
from relight.engine.bounded import part
from relight.engine.graphs import MOST_ROWS, Graphs, RowInputs, Shape
from relight.engine.plan import Draw, Result, Rows, StepPlan
from relight.engine.proposer import Guesses, Proposer, propose
from relight.engine.sampler import Sampled, Sampler, read
from relight.kernels.device import answers, download, upload
from relight.kernels.record import Recorder
from relight.model.inputs import Segment
from relight.model.network import Network
from relight.model.state import layer_states
from relight.model.transformer_v41 import TransformerV41


@dataclass(frozen=True, slots=True)
class Launched:
    """What a step draws and guesses, on its way to the host. The step has ended, and that is there,
    once `ready` has come."""

    sampled: Sampled | None
    ready: torch.Event | None
    guesses: Guesses | None = None


class Runner:
    """Runs plans in the order in which they are given. Lengths, last tokens and page tables live on
    the device and change only here. Raises what ops raise, `Unavailable` if the device is lost.
    Without a `proposer` no plan may ask for guesses."""

    def __init__(
        self, model: Network, pool: Pool, *, max_context: int, proposer: Proposer | None = None
    ) -> None:
        device, slots = pool.device, pool.slots.count
        self.model = model
        self.pool = pool
        self.proposer = proposer
        self.states = layer_states(model.config, pool)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.last_tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        pages = -(-max_context // PAGE_TOKENS)
        self.page_table = torch.zeros((slots, pages), dtype=torch.int64, device=device)
        fast = model.weights.ops.sample
        self.sampler = Sampler(slots, model.config.vocab_size, device, fast)
        self.batch = BatchBuilder(model.config, self.lengths, self.last_tokens, self.page_table)
        self.graphs: Graphs | None = None

    def record(self, shape: Shape, recorder: Recorder) -> None:
        """From now on steps of made rows that fit in such a shape are replayed. Before any plan is
        run: what it leaves in slot 0 means nothing. Raises as `Recorder.record`."""
        if self.graphs is None:
            vocab = self.model.config.vocab_size
            self.graphs = Graphs(MOST_ROWS, vocab, self.pool.device)
        self.lengths.zero_()
        self.page_table.zero_()
        with torch.inference_mode():
            self.graphs.record(shape, self._recorded, recorder)

    def execute(self, plan: StepPlan) -> list[Result]:
        """Runs one step to its end."""
        return self.read(self.launch(plan))

    def launch(self, plan: StepPlan) -> Launched:
        """Puts one step on the device; what came of it is `read`."""
        with self._faults(), torch.inference_mode():
            return self._launch(plan)

    def read(self, launched: Launched) -> list[Result]:
        """Waits for a step, and for none that was launched after it; returns what it drew and what
        it guessed."""
        with self._faults():
            if launched.ready is not None:
                launched.ready.synchronize()
            results: list[Result] = []
            if launched.sampled is not None:
                results += read(launched.sampled)
            if launched.guesses is not None:
                results += launched.guesses.read()
            return results

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if answers(self.pool.device):
                raise
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise Unavailable(f"the device is lost: {reason}; start the engine again") from error

    def _launch(self, plan: StepPlan) -> Launched:
        self._prepare(plan)
        heads, given = part(plan.given)
        if heads:
            self._encode(heads)
        segments: tuple[tuple[Family, Sequence[Rows]], ...] = (
            ("step", plan.made),
            ("prefill", given),
        )
        logits = [self._forward(family, rows) for family, rows in segments if rows]
        sampled = self._draw(plan.draws, torch.cat(logits)) if plan.draws else None
        for move in plan.takes:
            self.pool.take_record(move.slot, move.record, move.boundary)
        return self._send(sampled, self._propose(plan, sampled))

    def _propose(self, plan: StepPlan, sampled: Sampled | None) -> Guesses | None:
        if self.proposer is None or sampled is None:
            return None
        rows = (*plan.made, *plan.given)
        return propose(self.proposer, rows, plan.draws, sampled.tokens, self.lengths)

    def _send(self, sampled: Sampled | None, guesses: Guesses | None) -> Launched:
        """A step that draws nothing is waited for as well: else nobody knew how long it took, and
        a long prompt would be launched to its end."""
        device = self.pool.device
        if device.type == "cpu":
            return Launched(sampled, None, guesses)
        if sampled is not None:
            scores = sampled.scores
            if scores is not None:
                own, ids, top = (download(t) for t in (scores.own, scores.top_ids, scores.top))
                scores = replace(scores, own=own, top_ids=ids, top=top)
            sampled = Sampled(download(sampled.tokens), sampled.asked, scores)
        guesses = None if guesses is None else guesses.download()
        ready = torch.Event(device)
        ready.record()
        return Launched(sampled, ready, guesses)

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
        if family == "step" and self.graphs is not None:
            logits = self.graphs.run(rows)
            if logits is not None:
                return _drawn_from(rows, logits)
        segment = self.batch.segment(family, rows)
        logits = self._pass(segment)
        self._advance(segment)
        return logits

    def _encode(self, rows: Sequence[Rows]) -> None:
        assert isinstance(self.model, TransformerV41), "a plan for another model"
        segment = self.batch.segment("prefill", rows)
        self.model.encode(segment, self.states)
        self._advance(segment)

    def _advance(self, segment: Segment) -> None:
        self.lengths[segment.slots] += upload(segment.counts, self.lengths.device)

    def _recorded(self, inputs: RowInputs, shape: Shape) -> Tensor:
        ends = self.lengths[inputs.slots] + inputs.counts
        logits = self._pass(self.batch.by_row(inputs, shape))
        self.lengths[inputs.slots] = ends  # rows of one slot write the same
        return logits

    def _pass(self, segment: Segment) -> Tensor:
        """Logits of the segment's sample rows; a draft keeps what it reads of all rows."""
        taps: list[Tensor] | None = None if self.proposer is None else []
        logits = self.model.forward(segment, self.states, taps)
        if self.proposer is not None and taps:
            self.proposer.keep(torch.cat(taps, dim=1), segment)
        return logits

    def _draw(self, draws: Sequence[Draw], logits: Tensor) -> Sampled:
        sampled = self.sampler.draw(draws, logits, self.last_tokens)
        slots = upload([draw.slot for draw in draws], logits.device)
        # Of several draws for one slot any may stay: what counts is told with the next row.
        # What was not drawn must not be looked up as a token: the sequence ends, its mates go on.
        self.last_tokens[slots] = sampled.tokens.clamp(min=0)
        return sampled


def _drawn_from(rows: Sequence[Rows], logits: Tensor) -> Tensor:
    wanted = sampled_rows(rows)
    if len(wanted) == logits.shape[0]:
        return logits
    return logits[upload(wanted, logits.device)]
