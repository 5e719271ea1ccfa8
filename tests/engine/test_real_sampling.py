"""Penalties, bias, bans and log probabilities on the real model, through the real loop."""

import math
from pathlib import Path

import pytest

from tests.engine.real import RealEngine, words, write_checkpoint
from tests.engine.sampling import alone

KINDS: list[dict[str, object]] = [
    {},
    {"temperature": 0.0, "frequency_penalty": 1.2},
    {"presence_penalty": 1.5, "logprobs": 3},
    {"repetition_penalty": 1.8, "seed": 11, "logit_bias": ((5, 2.0), (9, -4.0))},
    {"temperature": 0.0, "stop_token_ids": tuple(range(160)), "min_tokens": 20},
    {"think_budget": 9, "think_close": 200},
]
MADE = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def test_sequences_that_lose_their_slots_draw_by_their_own_history(
    checkpoint: Path, device: str
) -> None:
    """Two pages each and few pages in all: the youngest give way and start over, and their counts
    must be those of the tokens that they had made."""
    engine = RealEngine(checkpoint, device, pages=6, slots=6, admit_output=1, prefix_cache="off")
    ids = [
        engine.add(words(f"prompt {i}", 110), max_tokens=MADE, **kind)
        for i, kind in enumerate(KINDS)
    ]
    engine.run()
    assert engine.scheduler.num_preemptions
    assert any(change.tokens for plan in engine.plans for change in plan.counts)
    for id in ids:
        answer, request = engine.answers[id], engine.requests[id]
        for made, logits in enumerate(answer.logits):
            before = answer.tokens[:made]
            position = len(request.prompt) + made
            row = logits.to(engine.runner.lengths.device)
            wanted = alone(row, request.sampling, before, position=position)
            assert answer.tokens[made] == wanted, (id, made)
    assert len(engine.answers[ids[4]].tokens) >= 20


def test_a_damaged_weight_ends_the_requests_that_need_it_and_no_others(
    checkpoint: Path, device: str
) -> None:
    engine = RealEngine(checkpoint, device)
    token = 300
    fine = [t for t in words("fine", 140) if t != token]
    sick = [*fine[:135], token, *fine[:5]]
    bias = ((token, -100.0),)
    before = engine.ask(fine, max_tokens=6, logit_bias=bias, salt="alone")
    weights = engine.runner.model.weights
    embed = weights.embed.clone()  # its bytes may be those of the file
    embed[token] = math.nan
    object.__setattr__(weights, "embed", embed)
    ids = [
        engine.add(fine, max_tokens=6, logit_bias=bias),
        engine.add(sick, max_tokens=6, logit_bias=bias),
    ]
    engine.run()
    assert engine.answers[ids[0]].tokens == before.tokens
    assert engine.answers[ids[0]].finish == "length"
    assert engine.answers[ids[1]].tokens == []
    assert engine.answers[ids[1]].finish == "error"
    engine.check_all_given_back()


def test_what_was_drawn_has_the_same_logits_when_it_is_made_again_by_force(
    checkpoint: Path, device: str
) -> None:
    engine = RealEngine(checkpoint, device)
    prompt = words("scored", 140)
    drawn = engine.ask(prompt, max_tokens=12, seed=5, salt="drawn")
    again = engine.ask(
        prompt, max_tokens=14, seed=9, salt="again", forced=tuple(drawn.tokens), logprobs=2
    )
    assert again.tokens[:12] == drawn.tokens
    assert len(again.tokens) == 14
    for one, other in zip(drawn.logits, again.logits, strict=False):
        assert (one == other).all()
