import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from relight.kernels.sample import SampleParams, sample
from relight.kernels.sample.reference import NARROW, gumbel, hash_bits, keep, uniform
from relight.kernels.testing import assert_bits_equal, assert_rows_invariant, num_draws

VOCAB = 2 * NARROW + 77


def params(count: int, device: str, **columns: object) -> SampleParams:
    """Plain sampling at temperature 1 but for `columns`: a value, or one a row."""
    given = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 0,
        "choice": 0,
        "position": torch.arange(count),
        **columns,
    }
    whole = ("top_k", "seed", "choice", "position")
    return SampleParams(
        **{
            name: torch.as_tensor(value, dtype=torch.int64 if name in whole else torch.float32)
            .expand(count)
            .contiguous()
            .to(device)
            for name, value in given.items()
        }
    )


def kept(logits: Tensor, **columns: object) -> list[list[int]]:
    """The tokens of each row that a cut leaves."""
    p = params(len(logits), str(logits.device), **columns)
    scaled = (logits - logits.amax(1, keepdim=True)) / p.temperature.unsqueeze(1)
    left = keep(scaled, p.top_p, p.top_k, p.min_p) > float("-inf")
    return [torch.where(row)[0].tolist() for row in left]


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def splitmix(x: int) -> int:
    """The finaliser in Python's integers."""
    wide = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & wide
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wide
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wide
    return x ^ (x >> 31)


EXTREMES = (0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF)


def test_the_hash_wraps_as_64_bit_integers_do(device: str) -> None:
    columns = torch.cartesian_prod(*[torch.tensor(EXTREMES)] * 3).to(device)
    found = hash_bits(columns[:, 0], columns[:, 1], columns[:, 2], 5).cpu()
    wide = 1 << 64
    for row, (seed, choice, position) in zip(found, columns.tolist(), strict=True):
        key = splitmix((splitmix((splitmix(seed % wide) + choice) % wide) + position) % wide)
        wanted = [splitmix((key + token) % wide) for token in range(5)]
        assert [value % wide for value in row.tolist()] == wanted


def test_splitmix_is_the_published_generator() -> None:
    """The first output of SplitMix64 with seed 0, as Java's SplittableRandom gives it."""
    assert splitmix(0) == 0xE220A8397B1DCDAF


def test_the_noise_is_inside_the_open_interval_for_all_bits(device: str) -> None:
    bits = torch.tensor([0, 1, (1 << 24) - 1, 1 << 24, 2**63 - 1, -(2**63), -1], device=device)
    found = uniform(bits)
    assert bool((found > 0).all())
    assert bool((found < 1).all())
    noise = -torch.log(-torch.log1p(-found))
    assert bool(noise.isfinite().all())


def test_the_noise_is_gumbel_distributed(device: str) -> None:
    columns = [
        torch.arange(40, device=device),
        *[torch.zeros(40, dtype=torch.int64).to(device)] * 2,
    ]
    noise = gumbel(*columns, 10_000).double()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    edges = torch.tensor([-1.0, 0, 1, 2, 4, 8], dtype=torch.float64, device=device)
    for edge in edges:
        below = (noise <= edge).double().mean().item()
        assert below == pytest.approx(math.exp(-math.exp(-edge.item())), abs=0.004)


@pytest.mark.parametrize("column", ["seed", "choice", "position"])
def test_draws_follow_the_probabilities_over_each_counter(device: str, column: str) -> None:
    """Chi-square with 6 degrees of freedom: 22.5 has a chance of 0.1 %. The draw is fixed."""
    probability = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.04, 0.01])
    count = num_draws(device)
    logits = probability.log().expand(count, -1).contiguous().to(device)
    p = params(count, device, **{"position": 5, column: torch.arange(count)})
    found = sample(logits, p).cpu().bincount(minlength=7)
    wanted = probability * count
    assert float(((found - wanted) ** 2 / wanted).sum()) < 22.5


def test_draws_of_neighbouring_positions_are_independent(device: str) -> None:
    """Chi-square of the pairs (token at p, token at p + 1) with 15 degrees of freedom: 37.7 has a
    chance of 0.1 %."""
    count = num_draws(device)
    logits = torch.zeros(count, 4, device=device)
    found = sample(logits, params(count, device, seed=3)).cpu()
    pairs = (found[:-1] * 4 + found[1:]).bincount(minlength=16).double()
    wanted = (count - 1) / 16
    assert float(((pairs - wanted) ** 2 / wanted).sum()) < 37.7


def test_temperature_sharpens_and_flattens(device: str) -> None:
    count = num_draws(device)
    logits = torch.tensor([[1.0, 0.0]]).repeat(count, 1).to(device)
    for temperature in (0.25, 0.5, 1.0, 2.0):
        tokens = sample(logits, params(count, device, temperature=temperature, seed=1))
        wanted = 1 / (1 + math.exp(-1 / temperature))
        assert (tokens == 0).float().mean().item() == pytest.approx(wanted, abs=0.012)


def test_temperature_zero_takes_the_best_and_of_equals_the_lowest(device: str) -> None:
    logits = torch.randn(6, VOCAB).to(device)
    logits[1, [2000, 70, 1500]] = 50.0
    logits[2] = 0.0
    logits[3, :9] = float("-inf")
    found = sample(logits, params(6, device, temperature=0.0, seed=torch.arange(6)))
    assert found[1:3].tolist() == [70, 0]
    assert torch.equal(found, (logits == logits.amax(1, keepdim=True)).int().argmax(1))


def test_a_tiny_temperature_is_greedy_and_does_not_overflow(device: str) -> None:
    logits = (torch.randn(20, 500) * 100).to(device)
    for temperature in (1e-6, 1e-30, 1e-38):
        found = sample(logits, params(20, device, temperature=temperature))
        assert torch.equal(found, logits.argmax(1))


def test_top_k_one_and_a_tiny_top_p_and_min_p_one_are_greedy(device: str) -> None:
    logits = torch.randn(50, VOCAB).to(device)
    for cut in ({"top_k": 1}, {"top_p": 1e-7}, {"top_p": 0.0}, {"min_p": 1.0}):
        assert torch.equal(sample(logits, params(50, device, **cut)), logits.argmax(1)), cut


def test_top_k_keeps_the_best_and_of_equals_the_lowest(device: str) -> None:
    logits = torch.tensor([[0.0, 2, 1, 1, 3, 1], [5.0] * 6]).to(device)
    assert kept(logits, top_k=4) == [[1, 2, 3, 4], [0, 1, 2, 3]]
    for off in (0, 6, 7, 10**9):
        assert kept(logits, top_k=off) == [[0, 1, 2, 3, 4, 5]] * 2


def test_top_p_keeps_the_smallest_set_that_holds_it(device: str) -> None:
    logits = logits_of(0.125, 0.5, 0.25, 0.125).to(device)
    for top_p, wanted in (
        (0.49, [1]),
        (0.5, [1]),
        (0.51, [1, 2]),
        (0.75, [1, 2]),
        (0.76, [0, 1, 2]),
        (0.88, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ):
        assert kept(logits, top_p=top_p) == [wanted], top_p


def test_min_p_is_relative_to_the_best(device: str) -> None:
    logits = logits_of(0.5, 0.3, 0.15, 0.05).to(device)
    for min_p, wanted in ((0.0, 4), (0.09, 4), (0.11, 3), (0.29, 3), (0.31, 2), (0.7, 1)):
        assert kept(logits, min_p=min_p) == [list(range(wanted))], min_p


def test_cuts_apply_in_order_and_top_p_counts_what_is_left(device: str) -> None:
    logits = logits_of(0.4, 0.3, 0.2, 0.06, 0.04).to(device)
    assert kept(logits, top_p=0.8) == [[0, 1, 2]]
    assert kept(logits, top_p=0.8, top_k=3) == [[0, 1, 2]], "0.7 of 0.9 is less than 0.8"
    assert kept(logits, top_p=0.75, top_k=3) == [[0, 1]], "0.7 of 0.9 is more than 0.75"
    assert kept(logits, top_p=0.75, min_p=0.4) == [[0, 1]]
    assert kept(logits, top_p=0.75) == [[0, 1, 2]]
    warm = kept(logits, top_p=0.75, temperature=10.0)
    assert warm == [[0, 1, 2, 3]], "after the temperature"


def test_a_cut_past_the_first_thousand_tokens_is_found(device: str) -> None:
    flat = torch.zeros(3, VOCAB, device=device)
    flat[1, 5] = -1.0
    flat[2] = torch.linspace(1, 0, VOCAB)
    count = 3 * NARROW // 2
    wanted = [list(range(count)), [t for t in range(count + 1) if t != 5], list(range(count))]
    assert kept(flat, top_k=count) == wanted
    share = (count - 0.5) / VOCAB
    assert kept(flat[:1], top_p=share) == [list(range(count))]
    for edge in (NARROW - 1, NARROW, NARROW + 1):
        assert kept(flat[:1], top_k=edge) == [list(range(edge))]
        assert kept(flat[:1], top_p=(edge - 0.5) / VOCAB) == [list(range(edge))]


def test_cuts_are_those_of_a_full_sort(device: str) -> None:
    logits = (torch.randn(40, VOCAB) * 3).to(device)
    logits = (logits * 8).round() / 8  # ties
    top_p, top_k, min_p = torch.rand(40), torch.randint(0, VOCAB, (40,)), torch.rand(40) ** 6
    top_k[::4] = 0
    found = kept(logits, top_p=top_p, top_k=top_k, min_p=min_p)
    for row in range(40):
        probability = logits[row].double().softmax(0).cpu()
        order = probability.sort(descending=True, stable=True).indices
        order = order[probability[order] >= min_p[row].double() * probability.max()]
        if top_k[row] > 0:
            order = order[: top_k[row]]
        share = probability[order] / probability[order].sum()
        before = share.cumsum(0) - share
        near = (before - top_p[row].double()).abs().min() < 1e-6
        order = order[before < top_p[row].double()]
        assert near or found[row] == order.sort().values.tolist(), row


def test_tokens_at_minus_infinity_are_never_drawn(device: str) -> None:
    logits = torch.zeros(500, 64, device=device)
    logits[:, 1::2] = float("-inf")
    for cut in ({}, {"top_p": 0.9}, {"top_k": 60}, {"temperature": 100.0}, {"temperature": 0.0}):
        assert bool((sample(logits, params(500, device, **cut)) % 2 == 0).all()), cut


def test_a_draw_does_not_depend_on_its_mates(device: str) -> None:
    count = 70
    mixed = {
        "temperature": torch.rand(count) * (torch.arange(count) % 5 > 0),
        "top_p": torch.where(torch.arange(count) % 3 == 0, torch.ones(count), torch.rand(count)),
        "top_k": torch.randint(0, VOCAB, (count,)) * (torch.arange(count) % 2),
        "min_p": torch.rand(count) ** 8,
        "seed": torch.randint(-(2**62), 2**62, (count,)),
        "choice": torch.randint(0, 4, (count,)),
    }
    p = params(count, device, **mixed)
    inputs = {
        "logits": (torch.randn(count, VOCAB) * 4).to(device),
        "row": torch.arange(count, device=device),
    }

    def op(logits: Tensor, row: Tensor) -> Tensor:
        names = SampleParams.__dataclass_fields__.keys() - {"drawn", "cut"}
        return sample(logits, SampleParams(**{name: getattr(p, name)[row] for name in names}))

    assert_rows_invariant(op, inputs, "step")


def test_rows_that_are_told_are_those_that_are_looked_up(device: str) -> None:
    count = 30
    p = params(
        count,
        device,
        temperature=torch.arange(count) % 3 / 2,
        top_p=torch.where(torch.arange(count) % 2 == 0, 1.0, 0.5),
        top_k=torch.arange(count) % 5 * 3,
    )
    logits = torch.randn(count, VOCAB).to(device)
    cut = [i for i in range(count) if i % 3 and (i % 2 or i % 5)]
    drawn = [i for i in range(count) if i % 3 and i not in cut]
    told = replace(
        p, drawn=torch.tensor(drawn, device=device), cut=torch.tensor(cut, device=device)
    )
    assert len(drawn) > 1 < len(cut)
    assert torch.equal(sample(logits, told), sample(logits, p))


def test_equal_counters_draw_equal_tokens_and_others_do_not(device: str) -> None:
    logits = torch.zeros(200, VOCAB, device=device)
    base = sample(logits, params(200, device, seed=7))
    assert torch.equal(sample(logits, params(200, device, seed=7)), base)
    for other in ({"seed": 8}, {"seed": 7, "choice": 1}, {"seed": 7, "position": 5}):
        assert (sample(logits, params(200, device, **other)) == base).float().mean() < 0.05


def test_noise_is_a_tokens_own_whatever_the_vocabulary(device: str) -> None:
    columns = [torch.tensor([3, 4], device=device)] * 3
    assert_bits_equal(gumbel(*columns, 1000)[:, :10].contiguous(), gumbel(*columns, 10))


def test_no_rows_draw_no_tokens(device: str) -> None:
    assert sample(torch.zeros(0, 50, device=device), params(0, device)).shape == (0,)
