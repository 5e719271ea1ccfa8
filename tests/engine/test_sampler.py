"""The sampler between steps: what it counts, and what a plan must tell it."""

import math
import random
from collections.abc import Sequence

import msgspec
import pytest
import torch
from torch import Tensor

from relight.base.types import EngineStats, Logprobs, SamplingParams, TokenDelta
from relight.engine.plan import Draw, Drawn, Scored, SetCounts
from relight.engine.sampler import Sampler, draw_tokens, read
from relight.engine.wire import FromEngine, Tokens
from tests.engine.sampling import alone

VOCAB = 40


def params(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=99, **fields)  # type: ignore[arg-type]


def sampler(slots: int = 4) -> Sampler:
    return Sampler(slots, VOCAB, torch.device("cpu"))


def logits_of(seed: object) -> Tensor:
    draw = random.Random(str(seed))
    return torch.tensor([draw.gauss(0, 3) for _ in range(VOCAB)])


def token_of(drawn: Drawn) -> int:
    return drawn if isinstance(drawn, int) else drawn.token


def step(one: Sampler, draws: Sequence[Draw], rows: Sequence[Tensor]) -> list[Drawn]:
    return read(one.draw(draws, torch.stack(list(rows))))


KINDS = [
    params(),
    params(temperature=0.0),
    params(temperature=0.0, frequency_penalty=0.8),
    params(presence_penalty=-1.5, seed=3),
    params(repetition_penalty=1.4, seed=4, top_p=0.9),
    params(temperature=0.0, repetition_penalty=0.7, frequency_penalty=-0.3, presence_penalty=2.0),
    params(logit_bias=((3, 4.5), (9, -100.0)), frequency_penalty=0.1),
    params(temperature=0.0, stop_token_ids=tuple(range(0, VOCAB, 2)), min_tokens=6),
    params(logprobs=3, top_k=5),
    params(logprobs=0, temperature=0.0, logit_bias=((1, 100.0),)),
    params(think_budget=0, think_close=7),
    params(forced=(5, 5, 39, 0, 7), stop_token_ids=(5, 7), min_tokens=9, logprobs=1),
    params(forced=(1,) * 12, temperature=0.0, logit_bias=((1, -100.0), (2, 50.0))),
    params(think_budget=5, think_close=8, temperature=0.0),
    params(think_budget=12, think_close=8, presence_penalty=0.5, logit_bias=((8, 9.0),)),
]


def test_many_sequences_draw_what_each_draws_alone() -> None:
    """In steps that hold some of them, in any order, after changes of slots in between."""
    pick = random.Random("mates")
    one = sampler(slots=2 * len(KINDS))
    slots = list(range(len(KINDS)))
    texts: list[list[int]] = [[] for _ in KINDS]
    one.set_counts([SetCounts(slot, ()) for slot in slots])
    while min(map(len, texts)) < 25:
        if pick.random() < 0.2:  # one of them loses its slot to noise and gets another
            row = pick.randrange(len(KINDS))
            one.counts[slots[row]].random_(0, 50)
            free = [slot for slot in range(2 * len(KINDS)) if slot not in slots]
            slots[row] = pick.choice(free)
            one.set_counts([SetCounts(slots[row], tuple(texts[row]))])
        rows = pick.sample(range(len(KINDS)), pick.randint(1, len(KINDS)))
        draws = [Draw(slots[r], 10 + len(texts[r]), KINDS[r], len(texts[r])) for r in rows]
        drawn = step(one, draws, [logits_of((r, len(texts[r]))) for r in rows])
        for row, result in zip(rows, drawn, strict=True):
            texts[row].append(token_of(result))
    for row, sampling in enumerate(KINDS):
        made: list[int] = []
        for count in range(25):
            logits = logits_of((row, count))
            made.append(alone(logits, sampling, made, position=10 + count))
        assert texts[row][:25] == made, sampling


def test_draws_without_penalties_are_those_of_the_op_and_count_nothing() -> None:
    plain = [Draw(i, 5 + i, params(seed=i, top_k=i), i) for i in range(4)]
    logits = torch.stack([logits_of(i) for i in range(4)])
    one = sampler()
    assert read(one.draw(plain, logits)) == draw_tokens(plain, logits).tolist()
    assert not one.counts.any()


def test_stop_tokens_are_banned_until_enough_tokens_are_made() -> None:
    logits = torch.zeros(VOCAB)
    logits[7] = 9.0
    banned = params(temperature=0.0, stop_token_ids=(7, 10**6), min_tokens=3)
    drawn = [step(sampler(), [Draw(0, 9, banned, made)], [logits])[0] for made in range(5)]
    assert drawn == [0, 0, 0, 7, 7]


def test_a_bias_on_a_token_that_the_model_does_not_have_changes_nothing() -> None:
    logits = logits_of("bias")
    biased = params(logit_bias=((VOCAB, 100.0), (10**6, 100.0)))
    assert step(sampler(), [Draw(0, 9, biased)], [logits]) == step(
        sampler(), [Draw(0, 9, params())], [logits]
    )


def test_log_probabilities_are_of_the_logits_before_everything_else() -> None:
    logits = logits_of("scores")
    wanted = torch.log_softmax(logits.double(), 0)
    asked = params(
        temperature=0.3, logit_bias=((5, 100.0),), frequency_penalty=2.0, top_k=1, logprobs=4
    )
    one = sampler()
    one.set_counts([SetCounts(2, (1, 1, 2))])
    [drawn] = step(one, [Draw(2, 9, asked, 3)], [logits])
    assert isinstance(drawn, Scored)
    assert drawn.token == 5
    assert drawn.logprobs.own == pytest.approx(wanted[5].item(), abs=1e-5)
    ids, values = zip(*drawn.logprobs.top, strict=True)
    assert list(ids) == wanted.topk(4).indices.tolist()
    assert values == pytest.approx(wanted.topk(4).values.tolist(), abs=1e-5)


def test_each_row_is_told_as_many_of_the_best_as_it_asked_for() -> None:
    draws = [
        Draw(0, 9, params(logprobs=2)),
        Draw(1, 9, params()),
        Draw(2, 9, params(logprobs=0)),
        Draw(3, 9, params(logprobs=20)),
    ]
    rows = [logits_of(i) for i in range(4)]
    together = step(sampler(), draws, rows)
    assert together == [step(sampler(), [d], [r])[0] for d, r in zip(draws, rows, strict=True)]
    found = [len(d.logprobs.top) if isinstance(d, Scored) else None for d in together]
    assert found == [2, None, 0, 20]


def test_the_log_of_nothing_is_a_finite_number() -> None:
    logits = torch.full((VOCAB,), -math.inf)
    logits[3] = 0.0
    [drawn] = step(sampler(), [Draw(0, 9, params(logprobs=2))], [logits])
    assert drawn == Scored(3, Logprobs(0.0, ((3, 0.0), (0, -9999.0))))


def test_log_probabilities_cross_a_process_boundary() -> None:
    delta = TokenDelta(id="a", tokens=(5,), logprobs=(Logprobs(-0.25, ((5, -0.25), (7, -9999.0))),))
    sent = msgspec.msgpack.encode(Tokens([delta], EngineStats()))
    assert msgspec.msgpack.decode(sent, type=FromEngine) == Tokens([delta], EngineStats())


@pytest.mark.parametrize("sampling", [params(), params(logprobs=2), params(presence_penalty=1.0)])
def test_a_row_that_is_no_number_gives_no_token_and_its_mates_go_on(
    sampling: SamplingParams,
) -> None:
    rows = [logits_of(i) for i in range(3)]
    draws = [Draw(i, 9, sampling) for i in range(3)]
    good = step(sampler(), draws, rows)
    rows[1] = torch.full((VOCAB,), math.nan)
    found = step(sampler(), draws, rows)
    assert token_of(found[1]) < 0
    assert [found[0], found[2]] == [good[0], good[2]]
