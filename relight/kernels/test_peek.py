"""Ops give the same bits where nobody looks at values: on any device but a processor. Here a
processor does as if it were one."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from relight.base.formats import float_row, index_row, kv_row
from relight.kernels import index, peek, store
from relight.kernels.attend import Keys, attend
from relight.kernels.codec import StackedFp4
from relight.kernels.experts import Experts, experts
from relight.kernels.experts import reference as experts_reference
from relight.kernels.rows import Rows
from relight.kernels.sample import SampleParams, sample
from relight.kernels.sample import reference as sample_reference
from relight.kernels.testing import FAMILIES, assert_bits_equal

COUNTS = [[3, 0, 17], [1], [0], [20, 1]]
"""Rows of each sequence of a call."""


Check = Callable[[Callable[[], Tensor]], None]


@pytest.fixture
def assert_looking_is_free(monkeypatch: pytest.MonkeyPatch) -> Check:
    def check(run: Callable[[], Tensor]) -> None:
        wanted = run()
        with monkeypatch.context() as patch:
            for module in (peek, experts_reference, sample_reference):
                patch.setattr(module, "looks_are_free", lambda x: False)
            found = run()
        assert_bits_equal(found, wanted)

    return check


def rows_of(values: Tensor, packed: bool) -> Rows:
    dim = values.shape[1]
    rows = Rows.empty(kv_row(dim, 64) if packed else float_row(dim), len(values), values.device)
    store.put(rows, torch.arange(len(values)), values)
    return rows


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_attention(assert_looking_is_free, family, count: int) -> None:
    window, entries = (rows_of(torch.randn(n, 128), True) for n in (90, 300))
    q, sink = torch.randn(count, 5, 128), torch.randn(5)
    near = torch.randint(-1, 90, (count, 128))
    near[:, 64:] = -1
    far = torch.randint(-1, 300, (count, 192))
    far[: count // 2] = -1
    for list_of_entries in (far, far[:, :0]):
        assert_looking_is_free(
            lambda listed=list_of_entries: attend(
                q, Keys(window, near, entries, listed), sink, 0.1, family, torch.bfloat16
            )
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("k", [8, 600])
def test_the_indexer(assert_looking_is_free, family, counts: list[int], k: int) -> None:
    """Rows that see nothing, less than k, and more; what none sees is NaN."""
    total = sum(counts)
    rows = Rows.empty(index_row(32), 3 * 700, torch.device("cpu"))
    places = torch.randperm(3 * 700).view(3, 700)[: len(counts)]
    store.put(rows, torch.arange(3 * 700), torch.randn(3 * 700, 32))
    visible = torch.tensor([0, 3, 8, 9, 640, 100])[torch.arange(total) % 6]
    unseen = places[:, 640:].flatten()
    rows.scale[0, unseen] = 255
    sequence = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    q, weights = torch.randn(total, 4, 32), torch.randn(total, 4)
    asked = index.Asked(q, weights, rows, places, counts, sequence, visible, family)
    assert_looking_is_free(lambda: index.select(asked, k))
    assert_looking_is_free(lambda: index.scores(asked))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 9, 150])
@pytest.mark.parametrize("chosen", [6, 4], ids=["all", "some"])
def test_experts(assert_looking_is_free, family, count: int, chosen: int) -> None:
    """Of 150 rows some 75 choose an expert: three tiles, the last of them part full."""

    def stack(outputs: int, inputs: int) -> StackedFp4:
        data = torch.randint(256, (6, outputs, inputs // 2), dtype=torch.uint8)
        scale = torch.randint(120, 130, (6, outputs, inputs // 32), dtype=torch.uint8)
        return StackedFp4(data, scale)

    stacks = Experts(stack(128, 128), stack(128, 128), stack(128, 128))
    ids = torch.rand(count, chosen).argsort(dim=1)[:, :3].sort(dim=1).values
    x, weights = torch.randn(count, 128), torch.rand(count, 3)
    assert_looking_is_free(
        lambda: experts(x, ids, weights, stacks, 7.0, family, True, torch.bfloat16)
    )


def test_draws(assert_looking_is_free) -> None:
    """Flat rows and peaked ones: the cut lies behind the tokens that are tried first, or not."""
    count, vocab = 6, 3000
    logits = torch.randn(count, vocab) * torch.tensor([0.1, 5.0]).repeat(3).unsqueeze(1)
    numbers = torch.arange(count)
    params = SampleParams(
        temperature=torch.ones(count),
        top_p=torch.tensor([0.9, 0.9, 1.0, 0.5, 0.99, 0.2]),
        top_k=torch.tensor([0, 0, 1500, 20, 0, 2000]),
        min_p=torch.zeros(count),
        seed=numbers,
        choice=numbers,
        position=numbers,
        drawn=numbers[:0],
        cut=numbers,
    )
    assert_looking_is_free(lambda: sample(logits, params))
    kinds = replace(params, temperature=numbers % 3 / 2, drawn=None, cut=None)
    for some in (kinds, replace(kinds, cut=numbers[3:])):
        assert_looking_is_free(lambda some=some: sample(logits, some))
