"""Text and state are the same with guesses or without, on real, tiny models: whatever is guessed,
and with the models' own drafts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.errors import BadSetting
from relight.base.official import V4_FLASH, V4_FLASH_DSPARK
from relight.base.settings import Settings
from relight.base.types import Constraint, Request, SamplingParams
from relight.cache.layout import DRAFT, layout
from relight.engine.assemble import assemble, choose_numerics
from relight.engine.drafting import choose_drafting
from relight.engine.guides import Guides
from relight.engine.loop import Loop
from relight.engine.plan import Draw
from relight.engine.proposer import DraftProposer
from relight.engine.runner import Runner
from relight.engine.speculate import Speculation
from relight.engine.steps import InTurn, Overlapped
from relight.model import source
from relight.model.inputs import Segment
from relight.text.tokenizer import Tokenizer
from tests.engine.real import words, write_checkpoint
from tests.model.harness import GOLDEN, Driver

VOCAB = 320
State = dict[str, Tensor]

REQUESTS = tuple(
    Request(
        id=f"r{number}",
        prompt=tuple(words(f"guessed {number}", length)),
        sampling=SamplingParams(seed=number, max_tokens=count, **options),  # type: ignore[arg-type]
    )
    for number, (length, count, options) in enumerate(
        [
            (1, 18, {"temperature": 0.0}),
            (120, 18, {}),  # over the end of a page, sampled
            (130, 12, {"temperature": 0.0, "logprobs": 2}),
            (126, 14, {"temperature": 0.7, "top_p": 0.9, "stop_token_ids": tuple(range(20))}),
            (5, 8, {"presence_penalty": 0.5}),
            (40, 9, {"logit_bias": ((7, 2.0),), "min_tokens": 4, "stop_token_ids": (7, 8)}),
            (33, 10, {"frequency_penalty": 0.4, "repetition_penalty": 1.2, "temperature": 0.8}),
            (20, 12, {"think_budget": 5, "think_close": 9}),
        ]
    )
)
"""A mixed batch: greedy and sampled, with all that a draw may hang on."""

TINY = Tokenizer.load(GOLDEN / "text")
MARK = TINY.special
WORDS = "start: /[a-z ]{3,9}/"
FORMS = tuple(
    Request(
        id=f"f{number}",
        prompt=tuple(words(f"form {number}", length)),
        sampling=SamplingParams(
            seed=number,
            max_tokens=16,
            stop_token_ids=(MARK.eos,),
            logit_bias=((MARK.think_close, 4.0),),
            temperature=temperature,
        ),
        constraint=constraint,
    )
    for number, (length, temperature, constraint) in enumerate(
        [
            (9, 1.0, Constraint(grammar=WORDS)),
            (30, 1.0, Constraint(grammar=WORDS, after=MARK.think_close, banned=(MARK.eos,))),
            (127, 0.0, Constraint(grammar=WORDS, after=MARK.think_close, banned=(MARK.eos,))),
            (12, 1.0, None),
        ]
    )
)
"""Answers whose tokens a grammar masks, from the first on or from a token on."""


class Eyes(Driver):
    """Sees the state of an engine's slots."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.pool, self.config = runner, runner.pool, runner.model.config
        self.lengths: dict[int, int] = {}

    def length(self, slot: int) -> int:
        return self.lengths[slot]

    def look(self, slot: int, length: int) -> State:
        """What later rows read of the first `length` tokens."""
        self.lengths[slot] = length
        state = self.readable(slot)
        if self.runner.proposer is not None and any(
            field.name == DRAFT for field in self.pool.layout.slot.fields
        ):
            kept = range(max(0, length - self.config.window), length)
            for stage in range(self.config.draft.num_stages):
                state[f"{DRAFT}.{stage}"] = self._ring(DRAFT, stage, slot, kept)
        return state


class Scripted:
    """Guesses what is known to follow where `is_right` says so, and another token elsewhere."""

    def __init__(self, depth: int, is_right: Callable[[int], bool]) -> None:
        self.depth = depth
        self.is_right = is_right
        self.loop: Loop | None = None
        self.texts: dict[str, list[int]] = {}

    def keep(self, taps: Tensor, segment: Segment) -> None:
        assert taps.shape[0] == segment.num_rows

    def propose(
        self, slots: Tensor, positions: Tensor, anchors: Tensor, draws: Sequence[Draw]
    ) -> tuple[Tensor, Tensor]:
        assert self.loop is not None
        by_slot = {s.slot: s.request for s in self.loop._scheduler.running}
        guesses = []
        for slot, position, anchor in zip(
            slots.tolist(), positions.tolist(), anchors.tolist(), strict=True
        ):
            request = by_slot[slot]
            text = [*request.prompt, *self.texts[request.id]]
            assert position + 1 >= len(text) or text[position + 1] == anchor
            row = (text[position + 2 :] + [9] * self.depth)[: self.depth]
            guesses.append(
                [t if self.is_right(position + i) else (t + 1) % VOCAB for i, t in enumerate(row)]
            )
        sure = torch.ones(len(guesses), self.depth, device=slots.device)
        return torch.tensor(guesses, device=slots.device), sure


class Run:
    """An engine that ran requests to their ends: texts, and the state after each step."""

    def __init__(
        self,
        checkpoint: Path,
        device: str,
        script: Scripted | None = None,
        texts: dict[str, list[int]] | None = None,
        *,
        look: bool = True,
        requests: Sequence[Request] = REQUESTS,
        **more: object,
    ) -> None:
        spec = layout(open_model(checkpoint).config, choose_numerics("auto", torch.device(device)))
        options = {
            "overlap": "off",
            "graphs": "off",
            "max_step_tokens": 100,
            "num_slots": 4,
            **more,
        }
        settings = Settings(
            model=str(checkpoint),
            device=device,
            max_context=384,
            cache_bytes=13 * max(1, spec.page.bytes),
            step_target=0,
            **options,  # type: ignore[arg-type]
        )
        self.loop, self.info = assemble(settings, lambda done, total: None)
        self.loop._guides = Guides(lambda: TINY, VOCAB)
        steps = self.loop._steps
        assert isinstance(steps, (InTurn, Overlapped))
        assert isinstance(steps._runner, Runner)
        self.runner = steps._runner
        self.scheduler = self.loop._scheduler
        if script is not None:
            script.loop, script.texts = self.loop, texts or {}
            self.runner.proposer = script
            self.scheduler.speculation = Speculation(script.depth)
        self.texts: dict[str, list[int]] = {request.id: [] for request in requests}
        self.finishes: dict[str, str] = {}
        self.scores: dict[str, list[object]] = {request.id: [] for request in requests}
        self.states: dict[tuple[str, int], State] = {}
        self.num_steps = 0
        eyes = Eyes(self.runner)
        for request in requests:
            self.loop.add(request)
        while not self.loop.idle:
            for delta in self.loop.step():
                self.texts[delta.id] += delta.tokens
                self.scores[delta.id] += delta.logprobs
                if delta.finish:
                    self.finishes[delta.id] = delta.finish
            self.num_steps += 1
            for s in self.scheduler.running if look else ():
                if not s.in_flight and s.computed >= s.num_prompt:
                    self.states[s.request.id, s.computed] = eyes.look(s.slot, s.computed)

    def assert_equals(self, other: "Run") -> None:
        assert self.texts == other.texts
        assert self.finishes == other.finishes
        assert self.scores == other.scores
        common = self.states.keys() & other.states.keys()
        assert len(common) >= len(self.texts) or not self.states
        for key in common:
            ours, theirs = self.states[key], other.states[key]
            for name in ours.keys() & theirs.keys():
                assert torch.equal(ours[name], theirs[name]), (key, name)


PATTERNS: dict[str, Callable[[int], bool]] = {
    "none": lambda position: False,
    "all": lambda position: True,
    "alternating": lambda position: position % 2 == 0,
    "random": lambda position: random.Random(position).random() < 0.7,
}


@dataclass(frozen=True)
class Plain:
    """A checkpoint on a device, and what came of it without guesses."""

    checkpoint: Path
    device: str
    wanted: Run

    def run(self, script: Scripted | None = None, **more: Any) -> Run:
        return Run(self.checkpoint, self.device, script, self.wanted.texts, **more)


def plain_run(name: str, device: str, folders: pytest.TempPathFactory) -> Plain:
    checkpoint = write_checkpoint(folders.mktemp(name), name)
    return Plain(checkpoint, device, Run(checkpoint, device))


@pytest.fixture(scope="module", params=["v4", "v41"])
def plain(
    request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory
) -> Plain:
    return plain_run(request.param, device, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_of_guesses_changes_texts_or_state(plain: Plain, pattern: str) -> None:
    """Tokens, ends, log probabilities, and every byte that a later row reads."""
    wanted = plain.wanted
    for depth in {"none": [15], "all": [4, 15], "alternating": [7], "random": [11]}[pattern]:
        found = plain.run(Scripted(depth, PATTERNS[pattern]))
        found.assert_equals(wanted)
        assert found.scheduler.speculation is not None
        tally = found.scheduler.speculation.tally
        assert len(tally.drafted) == depth
        assert (sum(tally.accepted) > 0) == (pattern != "none")
        if pattern == "all":
            assert found.num_steps < wanted.num_steps


def test_no_pattern_of_guesses_changes_texts_where_steps_overlap(plain: Plain) -> None:
    """And where pages are scarce, so that requests give way."""
    script = Scripted(6, PATTERNS["random"])
    found = plain.run(script, look=False, overlap="on", admit_output=1, num_slots=6)
    assert found.texts == plain.wanted.texts
    assert found.scores == plain.wanted.scores


@pytest.mark.slow
def test_no_pattern_of_guesses_changes_what_a_grammar_lets_through(plain: Plain) -> None:
    """Before it begins and inside of it."""
    forms = replace(plain, wanted=plain.run(requests=FORMS))
    wanted = forms.wanted
    for pattern in ("all", "random"):
        script = Scripted(5, PATTERNS[pattern])
        found = forms.run(script, requests=FORMS)
        found.assert_equals(wanted)
        assert found.scheduler.speculation is not None
        assert sum(found.scheduler.speculation.tally.accepted) > 0
    assert set(wanted.finishes.values()) == {"stop", "length"}


@pytest.fixture(scope="module", params=["v4_dspark", "v41"])
def drafted(
    request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory
) -> Plain:
    return plain_run(request.param, device, tmp_path_factory)


@pytest.mark.slow
def test_no_draft_changes_texts_or_state(drafted: Plain) -> None:
    """With the checkpoint's own draft, at its trained length, a shorter and a longer one; what the
    draft itself remembers is equal, too."""
    wanted = drafted.wanted
    first = None
    for depth, threshold, chunk in ((5, 0.0, 100), (0, 0.5, 33), (15, 0.0, 200)):
        found = drafted.run(
            spec="dspark", spec_k=depth, spec_threshold=threshold, max_step_tokens=chunk
        )
        found.assert_equals(wanted)
        first = first or found
        found.assert_equals(first)
        assert any(name.startswith(DRAFT) for name in next(iter(found.states.values())))
        assert found.scheduler.speculation is not None
        tally = found.scheduler.speculation.tally
        assert len(tally.drafted) == depth or not depth
        predicted, measured = (
            dict(rows)["weights: draft"] for rows in (found.info.memory, found.info.measured)
        )
        assert measured == pytest.approx(predicted, rel=0.01)
        beyond = [note for note in found.info.notes if "beyond the 5 tokens" in note]
        assert bool(beyond) == (depth > 5)
        assert isinstance(found.runner.proposer, DraftProposer)
        block = found.runner.proposer._draft.config.draft.block_size
        assert block == max(depth, 5), "one block, never a second"
        name = drafted.checkpoint.name
        print(f"{name} k {depth}: drafted {tally.drafted}, accepted {tally.accepted}")


def test_without_speculation_no_tensor_of_a_draft_is_read(
    drafted: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    do = source._do

    def watched(job: source.Job, *rest: Any) -> None:
        names.append(job.stored.name)
        do(job, *rest)

    monkeypatch.setattr(source, "_do", watched)
    run = drafted.run(look=False, requests=REQUESTS[:1])
    assert len(names) > 20
    assert not [name for name in names if name.startswith("mtp.")]
    assert run.runner.proposer is None
    assert all(field.name != DRAFT for field in run.runner.pool.layout.slot.fields)
    assert "draft off" in run.info.operator
    drafted.run(look=False, requests=REQUESTS[:1], spec="dspark")
    assert [name for name in names if name.startswith("mtp.")]


def test_a_checkpoint_without_a_dspark_draft_is_refused_by_name() -> None:
    settings = Settings(spec="dspark")
    with pytest.raises(BadSetting, match=r"the preview's MTP block \(mtp\.0\)") as caught:
        choose_drafting(V4_FLASH, settings)
    assert caught.value.param == "spec"
    found = choose_drafting(V4_FLASH_DSPARK, settings)
    assert found is not None
    assert found.depth == 5
    assert found.nbytes == pytest.approx(166_878_536_440 - 159_609_485_896, rel=0.6)
    assert choose_drafting(V4_FLASH, Settings()) is None
