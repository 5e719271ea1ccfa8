"""Properties of the float32 network of V4.1, which no other implementation computes here."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from relight.base.engram import table_rows
from relight.base.official import V41_FLASH
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, DraftSpec, EngramSpec, ModelConfig
from relight.base.tensors import backbone_tensors
from relight.model.reference_parts import Trace
from relight.model.reference_v41 import ReferenceV41

ENGRAM = EngramSpec(
    max_ngram=4, heads=2, head_dim=32, vocab_size=50, pad_token_id=2, compressed_vocab=90
)
ROWS = table_rows(ENGRAM, 2)

CONFIG = replace(
    V41_FLASH,
    vocab_size=96,
    hidden_size=32,
    num_heads=2,
    head_dim=32,
    rope_dim=8,
    q_lora_rank=32,
    o_groups=2,
    o_lora_rank=16,
    window=16,
    max_position=4096,
    num_experts=6,
    experts_per_token=2,
    moe_intermediate_size=32,
    index_heads=16,
    index_dim=32,
    index_topk=6,
    layers=csa2_schedule(
        (0, 2, 2, 1, 1, 1, 1), (1, 3), (1, 3, 5), dict(zip((0, 4), ROWS, strict=True))
    ),
    draft=DraftSpec("none"),
    candidates=CandidateSpec(source=3, topk_blocks=4, block_size=2),
    engram=ENGRAM,
    vision=None,
)


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """By official names, of a size at which no part drowns the others."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in backbone_tensors(config):
        if spec.name.endswith(".scale"):
            continue
        shape = (spec.shape[0], 2 * spec.shape[1]) if spec.dtype == "I8" else spec.shape
        values = torch.randn(shape, generator=generator)
        if "norm" in spec.name or spec.name.endswith(("_scale", "q_weight", "k_weight")):
            values = 1 + 0.2 * values
        elif not spec.name.endswith(("_base", "sink", "bias", "bias_vl", "embed.weight")):
            values = 1.4 * values * shape[-1] ** -0.5
        tensors[spec.name] = values
    return tensors


def token_classes(config: ModelConfig) -> Tensor:
    return torch.arange(config.vocab_size) % 90


@pytest.fixture(scope="module")
def model() -> ReferenceV41:
    return ReferenceV41(CONFIG, random_tensors(CONFIG), token_classes(CONFIG))


def random_ids(*shape: int) -> Tensor:
    return torch.randint(CONFIG.vocab_size, shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_position_sees_nothing_after_itself(model: ReferenceV41) -> None:
    """Odd lengths end inside a group of 2, short ones before the first n-gram is full."""
    ids = random_ids(150)
    whole = model.forward(ids)
    for length in (1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 127, 149):
        assert_close(model.forward(ids[:length]), whole[:length], rtol=0, atol=5e-5)


@torch.no_grad()
def test_sequences_of_a_batch_do_not_meet(model: ReferenceV41) -> None:
    ids = random_ids(3, 70)
    for logits, sequence in zip(model.forward(ids), ids, strict=True):
        assert_close(logits, model.forward(sequence), rtol=0, atol=5e-5)


@torch.no_grad()
def test_layers_choose_the_best_of_what_they_may(model: ReferenceV41) -> None:
    trace = Trace()
    model.forward(random_ids(90), trace)
    published = trace.layers[3].selection
    assert published is not None
    assert published.candidates is not None
    restricted = 0
    for spec, done in zip(CONFIG.layers, trace.layers, strict=True):
        assert (done.selection is not None) == (spec.attention in ("full", "reindex"))
        assert (done.memory.compressed is not None) == (spec.attention == "full")
        if done.selection is None:
            continue
        for position, entries in enumerate(done.selection.entries[0].tolist()):
            allowed = range((position + 1) // spec.ratio)
            scores = done.selection.scores[0, position].tolist()
            if spec.attention == "reindex":
                inside = [e for e in allowed if published.candidates[0, position, e // 2]]
                restricted += len(inside) < len(allowed)
                allowed = inside  # type: ignore[assignment]
            best = sorted(sorted(allowed, key=lambda entry: (-scores[entry], entry))[:6])
            assert entries == best + [-1] * (len(entries) - len(best))
    assert restricted > 70


@torch.no_grad()
def test_candidates_hold_the_newest_entry_and_the_best_blocks(model: ReferenceV41) -> None:
    trace = Trace()
    model.forward(random_ids(61), trace)
    published = trace.layers[3].selection
    assert published is not None
    assert published.candidates is not None
    for position in range(61):
        scores = published.scores[0, position, : position + 1]
        worth = [float(block.max()) for block in scores.split(2)]
        worth[position // 2] = float("inf")
        best = sorted(range(len(worth)), key=lambda block: (-worth[block], block))[:4]
        assert published.candidates[0, position].nonzero().flatten().tolist() == sorted(best)


@torch.no_grad()
def test_reuse_layers_read_what_their_sources_chose(model: ReferenceV41) -> None:
    """Another choice of layer 5 changes layers 5 and 6, and none before."""
    ids = random_ids(90)
    first, second = Trace(), Trace()
    model.forward(ids, first)
    name = "layers.5.attn.indexer.wq_b.weight"
    changed = {**model.tensors, name: -model.tensors[name]}
    ReferenceV41(CONFIG, changed, token_classes(CONFIG)).forward(ids, second)
    same = [
        torch.equal(a.streams, b.streams) for a, b in zip(first.layers, second.layers, strict=True)
    ]
    assert same == [True] * 5 + [False] * 2


@torch.no_grad()
def test_every_tensor_matters_but_the_bias_for_images(model: ReferenceV41) -> None:
    ids = random_ids(40)
    logits = model.forward(ids)
    for name, tensor in model.tensors.items():
        if ".experts." in name:
            continue
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))
        changed = ReferenceV41(
            CONFIG, {**model.tensors, name: tensor + noise}, token_classes(CONFIG)
        )
        change = (changed.forward(ids) - logits).abs().max()
        assert (change == 0) if "bias_vl" in name else (change > 1e-2), name


@torch.no_grad()
def test_empty_tables_leave_the_streams_as_they_are(model: ReferenceV41) -> None:
    """Then a gate opens on nothing."""
    ids = random_ids(40)
    empty = {
        name: torch.zeros_like(tensor) if "engram.embed" in name else tensor
        for name, tensor in model.tensors.items()
    }
    layers = tuple(replace(layer, engram_rows=0) for layer in CONFIG.layers)
    without = replace(CONFIG, layers=layers)
    got = ReferenceV41(CONFIG, empty, token_classes(CONFIG)).forward(ids)
    assert_close(got, ReferenceV41(without, empty, token_classes(CONFIG)).forward(ids))


@torch.no_grad()
def test_n_grams_reach_three_tokens_back_and_no_further(model: ReferenceV41) -> None:
    layer = CONFIG.layers[4]
    ids = random_ids(1, 12)
    rows = model.hashes.rows(layer, ids)
    for back in range(1, 6):
        other = ids.clone()
        other[0, 11 - back] = (other[0, 11 - back] + 1) % 90
        changed = (model.hashes.rows(layer, other) != rows)[0, 11].view(3, 2).any(dim=-1).tolist()
        assert changed == [back <= order for order in (1, 2, 3)]


def test_gradients_reach_all_but_what_only_chooses(model: ReferenceV41) -> None:
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in model.tensors.items()}
    logits = ReferenceV41(CONFIG, tensors, token_classes(CONFIG)).forward(random_ids(2, 70))
    logits.square().mean().backward()
    tensors = {name: t for name, t in tensors.items() if ".experts." not in name}  # some are idle
    without = {name for name, tensor in tensors.items() if tensor.grad is None}
    assert without == {name for name in tensors if ".indexer." in name or "gate.bias" in name}
    assert all(t.grad is None or t.grad.isfinite().all() for t in tensors.values())
