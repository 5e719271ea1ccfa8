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
from relight.engine.draws import RecordedDraws
from relight.engine.graphs import MOST_ROWS, Graphs, RowInputs, Shape
from relight.engine.guesses import RecordedGuesses
from relight.engine.plan import Draw, Result, Rows, StepPlan
from relight.engine.proposer import DraftProposer, Guesses, Proposer, propose
from relight.engine.sampler import Sampled, Sampler, read
from relight.kernels.device import answers, download, make_current, upload
from relight.kernels.record import Recorder
from relight.model.inputs import Segment
from relight.model.network import Network
from relight.model.state import layer_states
from relight.model.transformer_v41 import TransformerV41


@dataclass(frozen=True, slots=True)
class Launched:
    """What a step draws and guesses, on its way to the host. The step has ended, and that is there,
    once `ready` has come. `sampled`: of made rows in front of that of given ones."""

    sampled: Sequence[Sampled]
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
        self.draws: RecordedDraws | None = None
        self.guesses: RecordedGuesses | None = None

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

    def record_behind(self, count: int, recorder: Recorder) -> None:
        """The same for so many draws from recorded steps, and guesses for so many sequences."""
        assert self.graphs is not None, "no step was recorded"
        if self.draws is None:
            self.draws = RecordedDraws(self.sampler, self.graphs.logits, self.last_tokens)
            if isinstance(self.proposer, DraftProposer):
                self.guesses = RecordedGuesses(self.proposer, self.lengths)
        self.lengths.zero_()
        with torch.inference_mode():
            self.draws.record(count, recorder)
            if self.guesses is not None:
                self.guesses.record(count, recorder)

    def execute(self, plan: StepPlan) -> list[Result]:
        """Runs one step to its end."""
        return self.read(self.launch(plan))

    def launch(self, plan: StepPlan) -> Launched:
        """Puts one step on the device; what came of it is `read`. Any thread may call it."""
        with self._faults(), torch.inference_mode():
            make_current(self.pool.device)
            return self._launch(plan)

    def read(self, launched: Launched) -> list[Result]:
        """Waits for a step, and for none that was launched after it; returns what it drew and what
        it guessed."""
        with self._faults():
            if launched.ready is not None:
                launched.ready.synchronize()
            results: list[Result] = []
            for sampled in launched.sampled:
                results += read(sampled)
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
        sampled = self._compute(plan)
        for move in plan.takes:
            self.pool.take_record(move.slot, move.record, move.boundary)
        return self._send(sampled, self._propose(plan, sampled))

    def _compute(self, plan: StepPlan) -> list[Sampled]:
        """Runs the rows and draws from them: from those of a recorded step by recordings, from all
        others together."""
        heads, given = part(plan.given)
        if heads:
            self._encode(heads)
        sampled, draws, logits = [], plan.draws, []
        if plan.made and self.graphs is not None and self.graphs.run(plan.made):
            rows = sampled_rows(plan.made)
            if rows:
                sampled.append(self._draw_replayed(draws[: len(rows)], rows))
            draws = draws[len(rows) :]
        elif plan.made:
            logits.append(self._forward("step", plan.made))
        if given:
            logits.append(self._forward("prefill", given))
        if draws:
            sampled.append(self._draw(draws, _joined(logits)))
        return sampled

    def _propose(self, plan: StepPlan, sampled: Sequence[Sampled]) -> Guesses | None:
        if self.proposer is None or not sampled:
            return None
        rows, drawn = (*plan.made, *plan.given), _joined([one.tokens for one in sampled])
        guesses = None
        if self.guesses is not None:
            guesses = self.guesses.propose(rows, plan.draws, drawn)
        return guesses or propose(self.proposer, rows, plan.draws, drawn, self.lengths)

    def _send(self, sampled: Sequence[Sampled], guesses: Guesses | None) -> Launched:
        """A step that draws nothing is waited for as well: else nobody knew how long it took, and
        a long prompt would be launched to its end."""
        device = self.pool.device
        sampled = [_downloaded(one) for one in sampled]
        guesses = None if guesses is None else guesses.download()
        ready = None
        if device.type != "cpu":
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
        return self.sampler.draw(draws, logits, self.last_tokens)

    def _draw_replayed(self, draws: Sequence[Draw], rows: Sequence[int]) -> Sampled:
        """From rows of the step that was replayed."""
        assert self.graphs is not None, "no step was recorded"
        if self.draws is None:
            return self._draw(draws, self.graphs.logits[upload(rows, self.pool.device)])
        return self.draws.draw(draws, rows)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _downloaded(sampled: Sampled) -> Sampled:
    scores = sampled.scores
    if scores is not None:
        own, ids, top = (download(t) for t in (scores.own, scores.top_ids, scores.top))
        scores = replace(scores, own=own, top_ids=ids, top=top)
    return Sampled(download(sampled.tokens), sampled.asked, scores)
