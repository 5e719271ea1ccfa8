import math

import pytest
import torch
from torch import Tensor

from relight.kernels.sample import (
    NOT_DRAWN,
    Adjustments,
    Bias,
    Penalties,
    Places,
    SampleParams,
    sample,
)
from relight.kernels.sample.adjust import allow, penalise
from relight.kernels.sample.reference import _adjusted
from relight.kernels.testing import assert_rows_invariant, num_draws

VOCAB = 70
NAN, INF = math.nan, math.inf


def params(count: int, device: str, temperature: float = 0.0, seed: int = 0) -> SampleParams:
    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((count,), value, dtype=dtype, device=device)

    whole, real = torch.int64, torch.float32
    return SampleParams(
        temperature=column(temperature, real),
        top_p=column(1, real),
        top_k=column(0, whole),
        min_p=column(0, real),
        seed=column(seed, whole),
        choice=column(0, whole),
        position=torch.arange(count, device=device),
    )


def random_adjustments(rows: Tensor, device: str) -> Adjustments:
    """All kinds at once, for the given rows."""
    count = len(rows)
    picked = torch.stack([torch.randperm(VOCAB)[:6] for _ in range(count)]).to(device)
    places = torch.arange(count, device=device).repeat_interleave(3)
    words = torch.randint(-(2**31), 2**31, (count, 3), dtype=torch.int32)
    return Adjustments(
        rows=rows,
        penalties=Penalties(
            repetition=(torch.rand(count) * 1.5 + 0.5).to(device),
            frequency=(torch.rand(count) * 4 - 2).to(device),
            presence=(torch.rand(count) * 4 - 2).to(device),
            counts=torch.randint(0, 4, (count, VOCAB), dtype=torch.int32).to(device),
        ),
        bias=Bias(
            Places(places, picked[:, :3].flatten()), (torch.rand(3 * count) * 200 - 100).to(device)
        ),
        banned=Places(places, picked[:, 3:].flatten()),
        allowed=words.to(device),
    )


def plain_python(logits: list[float], by: Adjustments, row: int) -> list[float]:
    """The definition, one logit at a time, in Python's numbers. No -0.0 in, so none out."""
    assert by.penalties
    assert by.bias
    assert by.banned
    assert by.allowed is not None
    counts = by.penalties.counts[row].tolist()
    repetition = by.penalties.repetition[row].item()
    frequency, presence = by.penalties.frequency[row].item(), by.penalties.presence[row].item()
    found = []
    for logit, count in zip(logits, counts, strict=True):
        if count:
            logit = logit / repetition if logit > 0 else logit * repetition
            logit -= frequency * count
            logit -= presence
        found.append(logit)
    for at, token, value in zip(
        by.bias.places.row.tolist(),
        by.bias.places.token.tolist(),
        by.bias.value.tolist(),
        strict=True,
    ):
        if at == row:
            found[token] += value
    for at, token in zip(by.banned.row.tolist(), by.banned.token.tolist(), strict=True):
        if at == row:
            found[token] = -INF
    words = by.allowed[row].tolist()
    return [
        logit if words[token // 32] >> (token % 32) & 1 else -INF
        for token, logit in enumerate(found)
    ]


def test_adjusted_logits_are_those_of_the_plain_definition(device: str) -> None:
    logits = (torch.randn(9, VOCAB) * 5).to(device)
    by = random_adjustments(torch.arange(9, device=device), device)
    found = _adjusted(logits, by)
    for row in range(9):
        wanted = torch.tensor(plain_python(logits[row].tolist(), by, row))
        assert torch.equal(found[row].cpu() > -INF, wanted > -INF)
        torch.testing.assert_close(found[row].cpu(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("repetition", "frequency", "presence", "wanted"),
    [
        (2.0, 0.0, 0.0, [1.0, -4.0, 2.0, -2.0]),
        (0.5, 0.0, 0.0, [4.0, -1.0, 2.0, -2.0]),
        (1.0, 0.5, 0.0, [1.5, -3.5, 2.0, -2.0]),
        (1.0, 0.0, 0.5, [1.5, -2.5, 2.0, -2.0]),
        (1.0, -0.5, -0.25, [2.75, -0.25, 2.0, -2.0]),
        (2.0, 0.5, 0.25, [0.25, -5.75, 2.0, -2.0]),
        (1.0, 0.0, 0.0, [2.0, -2.0, 2.0, -2.0]),
    ],
)
def test_penalties_of_tokens_made_once_thrice_and_never(
    device: str, repetition: float, frequency: float, presence: float, wanted: list[float]
) -> None:
    found = penalise(
        torch.tensor([[2.0, -2.0, 2.0, -2.0]], device=device),
        torch.tensor([[1, 3, 0, 0]], dtype=torch.int32, device=device),
        *(torch.tensor([x], device=device) for x in (repetition, frequency, presence)),
    )
    assert found.tolist() == [wanted]


def test_every_bit_of_a_mask_is_its_own_token(device: str) -> None:
    logits = torch.zeros(VOCAB, VOCAB, device=device)
    words = torch.zeros(VOCAB, 3, dtype=torch.int32)
    for token in range(VOCAB):
        bit = token % 32
        words[token, token // 32] = 1 << bit if bit < 31 else -(2**31)
    assert allow(logits, words.to(device)).argmax(1).tolist() == list(range(VOCAB))


def test_rows_without_adjustments_keep_their_bits_beside_rows_with_some(device: str) -> None:
    logits = (torch.randn(40, VOCAB) * 3).to(device)
    rows = torch.arange(0, 40, 3, device=device)
    plain = torch.ones(40, dtype=torch.bool)
    plain[rows.cpu()] = False
    found = _adjusted(logits, random_adjustments(rows, device))
    assert torch.equal(found[plain], logits[plain])
    for temperature in (0.0, 1.0):
        p = params(40, device, temperature)
        mixed = sample(logits, p, random_adjustments(rows, device))
        assert torch.equal(mixed[plain], sample(logits, p)[plain])


def test_an_adjusted_draw_does_not_depend_on_its_mates(device: str) -> None:
    count = 40
    by = random_adjustments(torch.arange(count, device=device), device)
    assert by.penalties
    assert by.bias
    assert by.banned
    penalties, bias, banned, allowed = by.penalties, by.bias, by.banned, by.allowed
    assert allowed is not None
    p = params(count, device, temperature=0.8)

    def op(logits: Tensor, row: Tensor) -> Tensor:
        names = SampleParams.__dataclass_fields__.keys() - {"drawn", "cut"}
        three = (row.unsqueeze(1) * 3 + torch.arange(3, device=device)).flatten()
        places = torch.arange(len(row), device=device).repeat_interleave(3)
        return sample(
            logits,
            SampleParams(**{name: getattr(p, name)[row] for name in names}),
            Adjustments(
                rows=torch.arange(len(row), device=device),
                penalties=Penalties(
                    penalties.repetition[row],
                    penalties.frequency[row],
                    penalties.presence[row],
                    penalties.counts[row],
                ),
                bias=Bias(Places(places, bias.places.token[three]), bias.value[three]),
                banned=Places(places, banned.token[three]),
                allowed=allowed[row],
            ),
        )

    inputs = {
        "logits": (torch.randn(count, VOCAB) * 4).to(device),
        "row": torch.arange(count, device=device),
    }
    assert_rows_invariant(op, inputs, "step")


def test_adjustments_come_before_the_temperature(device: str) -> None:
    """Two tokens; a bias of log 3 at temperature 2 makes odds of sqrt(3), not of 3."""
    count = num_draws(device)
    places = Places(torch.arange(count), torch.zeros(count, dtype=torch.int64))
    places = Places(places.row.to(device), places.token.to(device))
    by = Adjustments(
        rows=torch.arange(count, device=device),
        bias=Bias(places, torch.full((count,), math.log(3), device=device)),
    )
    tokens = sample(torch.zeros(count, 2, device=device), params(count, device, 2.0), by)
    share = math.sqrt(3) / (1 + math.sqrt(3))
    found = (tokens == 0).float().mean().item()
    assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / count)


def test_adjusted_draws_follow_the_adjusted_distribution(device: str) -> None:
    """Chi-square against the softmax of the adjusted logits; 99.9 % of such tests pass by chance,
    this one always, since the noise is fixed."""
    count, vocab = num_draws(device), 12
    logits = (torch.randn(1, vocab) * 1.5).expand(count, vocab).contiguous().to(device)
    ones = torch.ones(count, device=device)
    counts = torch.tensor([[0, 1, 2, 3] * 3], dtype=torch.int32).expand(count, vocab)
    rows = torch.arange(count, device=device)
    by = Adjustments(
        rows=rows,
        penalties=Penalties(ones * 1.3, ones * 0.4, ones * -0.7, counts.contiguous().to(device)),
        bias=Bias(Places(rows, torch.full_like(rows, 5)), ones * 1.5),
        banned=Places(rows, torch.full_like(rows, 7)),
    )
    tokens = sample(logits, params(count, device, 0.9, seed=3), by)
    share = (_adjusted(logits[:1], _first(by))[0].cpu().double() / 0.9).softmax(0)
    found = torch.bincount(tokens.cpu(), minlength=vocab).double()
    assert found[7] == 0
    live = share > 0
    wanted = share[live] * count
    statistic = ((found[live] - wanted) ** 2 / wanted).sum().item()
    assert statistic < 29.6, "the 99.9 % point of chi-square with 10 degrees of freedom"


def _first(by: Adjustments) -> Adjustments:
    """What adjusts row 0 alone."""
    assert by.penalties
    assert by.bias
    assert by.banned
    p, b, places = by.penalties, by.bias, by.bias.places
    return Adjustments(
        rows=by.rows[:1],
        penalties=Penalties(p.repetition[:1], p.frequency[:1], p.presence[:1], p.counts[:1]),
        bias=Bias(Places(places.row[:1], places.token[:1]), b.value[:1]),
        banned=Places(by.banned.row[:1], by.banned.token[:1]),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_number_gives_no_token_and_its_mates_draw_theirs(
    device: str, temperature: float
) -> None:
    logits = torch.randn(8, VOCAB).to(device)
    broken = logits.clone()
    broken[1, 3], broken[2, 0], broken[4], broken[6] = NAN, INF, -INF, NAN
    p = params(8, device, temperature)
    good = sample(logits, p)
    found = sample(broken, p)
    bad = [1, 2, 4, 6]
    assert found[bad].tolist() == [NOT_DRAWN] * 4
    fine = [0, 3, 5, 7]
    assert torch.equal(found[fine], good[fine])


def test_no_adjustment_hides_that_a_row_is_no_number(device: str) -> None:
    logits = torch.zeros(3, VOCAB, device=device)
    logits[0, 5], logits[1, 5] = NAN, INF
    rows = torch.arange(3, device=device)
    banned = Places(rows, torch.full_like(rows, 5))
    found = sample(logits, params(3, device), Adjustments(rows=rows, banned=banned))
    assert found.tolist() == [NOT_DRAWN, NOT_DRAWN, 0]


def test_a_row_of_which_everything_is_banned_gives_no_token(device: str) -> None:
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    nothing = torch.zeros(1, 3, dtype=torch.int32, device=device)
    by = Adjustments(rows=rows, allowed=nothing)
    for temperature in (0.0, 1.0):
        logits = torch.randn(2, VOCAB).to(device)
        tokens = sample(logits, params(2, device, temperature), by)
        assert tokens[0] == NOT_DRAWN
        assert tokens[1] >= 0
