"""Recorded draws: the bits of the sampler's own, in any company, whatever a draw may hang on."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from relight.base.types import SamplingParams
from relight.engine.draws import KINDS, Kind, RecordedDraws, kind_of
from relight.engine.plan import Draw, Mask, SetCounts
from relight.engine.sampler import Sampler, read
from relight.engine.scores import MOST_TOLD
from relight.kernels.testing import assert_bits_equal
from tests.engine.tape import Operations, recorder_of

VOCAB, ROWS, SLOTS = 72, 16, 12
NAN, INF = math.nan, math.inf


def params(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=99, **fields)  # type: ignore[arg-type]


SAMPLINGS = [
    params(),
    params(temperature=0.0),
    params(temperature=1e-38, min_p=0.3),
    params(temperature=1.7, seed=2**64 - 1, choice=3),
    params(top_p=0.8, seed=5),
    params(top_k=3, min_p=0.05, seed=-(2**63)),
    params(temperature=0.0, top_k=3),
    params(top_p=0.0),
    params(temperature=0.0, frequency_penalty=0.8),
    params(presence_penalty=-1.5, repetition_penalty=1.4),
    params(repetition_penalty=0.7, frequency_penalty=-0.3, top_k=20),
    params(think_budget=6, think_close=7),
    params(logit_bias=((3, 4.5), (9, -100.0))),
    params(stop_token_ids=(1, 2, 3), min_tokens=4, frequency_penalty=0.1),
    params(forced=(5, 5, 39), temperature=0.0),
    params(logprobs=3),
    params(logprobs=MOST_TOLD + 1, temperature=0.0),
    params(logprobs=0, top_p=0.5, presence_penalty=0.5),
]


class Both:
    """A sampler, and another one behind recordings, in the same state."""

    def __init__(self, device: str, counts: Sequence[int]) -> None:
        self.device = torch.device(device)
        self.logits = torch.zeros((ROWS, VOCAB), device=device)
        self.plain, self.inner = (Sampler(SLOTS, VOCAB, self.device) for _ in range(2))
        self.last, self.inner_last = (
            torch.zeros(SLOTS, dtype=torch.int64, device=device) for _ in range(2)
        )
        self.recorded = RecordedDraws(self.inner, self.logits, self.inner_last)
        source = recorder_of(device)
        with torch.inference_mode():
            for count in counts:
                self.recorded.record(count, source)
        noise = torch.randint(-9, 9, self.plain.counts.shape, dtype=torch.int32)
        for sampler in (self.plain, self.inner):
            sampler.counts.copy_(noise)
        for last in (self.last, self.inner_last):
            last.copy_(torch.arange(SLOTS))

    def set_counts(self, change: SetCounts) -> None:
        for sampler in (self.plain, self.inner):
            sampler.set_counts([change])

    @torch.inference_mode()
    def step(self, draws: Sequence[Draw], rows: Sequence[int], logits: Tensor) -> list[object]:
        """Both draw alike, and leave the same behind."""
        self.logits.copy_(logits)
        self.logits[[row for row in range(ROWS) if row not in rows]] = NAN
        wanted = self.plain.draw(draws, self.logits[list(rows)], self.last)
        found = self.recorded.draw(draws, rows)
        assert_bits_equal(found.tokens, wanted.tokens, str(draws))
        told = read(found)
        assert told == read(wanted)
        penalised = sorted({draw.slot for draw in draws if draw.sampling.penalised})
        assert_bits_equal(self.inner.counts[penalised], self.plain.counts[penalised])
        counted = sorted({draw.slot for draw in draws if draw.sampling.counted})
        assert_bits_equal(self.inner.counts[counted] > 0, self.plain.counts[counted] > 0)
        slots = Counter(draw.slot for draw in draws)
        alone = [slot for slot in range(SLOTS) if slots[slot] < 2]  # of several any may stay
        assert_bits_equal(self.inner_last[alone], self.last[alone])
        self.inner_last.copy_(self.last)
        return list(told)


def some_logits(pick: random.Random) -> Tensor:
    logits = torch.tensor([[pick.gauss(0, 3) for _ in range(VOCAB)] for _ in range(ROWS)])
    if pick.random() < 0.5:
        logits[pick.randrange(ROWS), pick.randrange(VOCAB)] = pick.choice((NAN, INF, -INF))
    if pick.random() < 0.3:
        logits = logits.round()  # ties
    if pick.random() < 0.2:
        logits[pick.randrange(ROWS)] = -INF
    return logits


def some_mask(pick: random.Random) -> Mask | None:
    def words() -> bytes:
        return pick.randbytes(4 * -(-VOCAB // 32))

    kind = pick.random()
    if kind < 0.6:
        return None
    if kind < 0.8:
        return Mask(words())
    return Mask(words(), after=pick.randrange(SLOTS), otherwise=pick.choice((b"", words())))


def some_draws(
    pick: random.Random, samplings: Sequence[SamplingParams], made: list[int]
) -> tuple[list[Draw], list[int]]:
    """Of some slots: a draw, or several with guesses, from rows in ascending order that leave
    others out."""
    draws: list[Draw] = []
    for slot in pick.sample(range(SLOTS), pick.randint(1, 8)):
        sampling, mask = samplings[slot], some_mask(pick)
        guesses = 0 if sampling.penalised else pick.choice((0, 0, 0, 1, 2))
        if guesses and mask is not None:
            mask = Mask(mask.allowed)
        for place in range(1 + guesses):
            if len(draws) < ROWS:
                draws.append(
                    Draw(slot, 50 + made[slot] + place, sampling, made[slot] + place, mask)
                )
        made[slot] += 1
    return draws, sorted(pick.sample(range(ROWS), len(draws)))


@pytest.mark.parametrize("seed", range(6))
def test_any_draws_are_those_of_the_sampler(device: str, seed: int) -> None:
    """Many steps of mixed company, with padding, ties, masks, rows that are no numbers, counts that
    are noise, and draws that are in no recording."""
    pick = random.Random(seed)
    both = Both(device, (1, 2, 4, 8, 16))
    for _ in range(3):
        samplings, made = pick.choices(SAMPLINGS, k=SLOTS), [0] * SLOTS
        for slot, sampling in enumerate(samplings):
            if sampling.counted:
                both.set_counts(SetCounts(slot, tuple(pick.choices(range(VOCAB), k=4))))
        for _ in range(10):
            both.step(*some_draws(pick, samplings, made), some_logits(pick))
    assert both.recorded.num_replays > 30
    assert both.recorded.scores.num_replays > 0


def test_the_end_of_a_budget_hangs_on_nothing_that_its_step_draws_behind_it(device: str) -> None:
    """The draw behind it closes thinking by itself, as its own guess has it."""
    both, sampling = Both(device, (4,)), params(temperature=0.0, think_budget=4, think_close=7)
    both.set_counts(SetCounts(3, (1, 2)))
    logits = torch.zeros((ROWS, VOCAB))
    logits[2:, 7] = 1.0
    draws = [Draw(3, 20 + place, sampling, 4 + place) for place in range(3)]
    mate = Draw(1, 9, params(temperature=0.0))
    assert both.step([mate, *draws], (0, 1, 2, 3), logits) == [0, 7, 7, 7]
    assert both.recorded.num_replays == 1


def test_what_is_not_recorded_is_drawn_eagerly(device: str) -> None:
    pick, made = random.Random(9), [0] * SLOTS
    both = Both(device, (2,))
    for slot in range(SLOTS):
        both.set_counts(SetCounts(slot, ()))
    for _ in range(12):
        both.step(*some_draws(pick, SAMPLINGS, made), some_logits(pick))
    assert both.recorded.num_replays > 0


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        ({}, Kind(False, False)),
        ({"temperature": 0.0, "top_k": 5}, Kind(False, False)),
        ({"min_p": 0.1, "logprobs": 5, "think_budget": 9}, Kind(False, False)),
        ({"top_k": 5}, Kind(False, True)),
        ({"top_p": 0.9, "presence_penalty": 1.0}, Kind(True, True)),
        ({"think_budget": 3}, None),
        ({"logit_bias": ((1, 1.0),)}, None),
        ({"min_tokens": 4}, None),
        ({"forced": (1, 2, 3, 4)}, None),
    ],
)
def test_each_draw_is_of_a_kind(sampling: dict[str, object], kind: Kind | None) -> None:
    draw = Draw(0, 9, params(**sampling), made=3)
    assert kind_of(draw) == kind
    if kind is not None:
        masked = Draw(0, 9, params(**sampling), made=3, mask=Mask(b"\xff" * 12))
        assert kind_of(masked) == Kind(True, kind.cut)
        assert kind in KINDS


@torch.inference_mode()
def test_plain_draws_are_a_copy_and_a_recording() -> None:
    both = Both("cpu", (4,))
    draws = [Draw(slot, 9, params(seed=slot, temperature=slot % 2), 0) for slot in range(4)]
    with Operations() as eager:
        both.plain.draw(draws, both.logits[:4], both.last)
    with Operations() as recorded:
        both.recorded.draw(draws, range(4))
    assert eager.count > 60
    assert recorded.count == 1
