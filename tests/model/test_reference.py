"""Compares the float32 network with transformers' DeepseekV4ForCausalLM, and with itself."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from relight.base.config import ModelConfig
from relight.model.reference import ReferenceModel, Trace
from relight.model.reference_parts import take_best
from tests.model.oracle import official_tensors, random_oracle, streams_and_logits, tiny_config

LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 255, 256, 257, 600)

CONFIGS = {
    "short HCA windows": tiny_config(),
    "clamped experts": tiny_config(swiglu_limit=0.5),
    "official window and ratios": tiny_config(hca_ratio=128, window=128),
    "few entries selected": tiny_config(("csa/bias", "csa/hash", "csa/bias"), index_topk=3),
}


def random_ids(config: ModelConfig, *shape: int) -> Tensor:
    return torch.randint(config.vocab_size, shape)


def random_model(config: ModelConfig) -> ReferenceModel:
    return ReferenceModel(config, official_tensors(random_oracle(config)))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_every_layers_streams_equal_transformers(name: str) -> None:
    config = CONFIGS[name]
    oracle = random_oracle(config)
    model = ReferenceModel(config, official_tensors(oracle))
    for length in LENGTHS:
        ids = random_ids(config, 1, length)
        streams, logits = streams_and_logits(oracle, ids)
        trace = Trace()
        assert_close(model.forward(ids, trace), logits, rtol=0, atol=1e-4)
        for done, want in zip(trace.layers, streams, strict=True):
            assert_close(done.streams, want, rtol=0, atol=1e-4)
    assert 5 < logits.abs().max() < 12  # of the scale that the tolerance is meant for


def test_gradients_equal_transformers() -> None:
    """Where selections pass none: the indexer and the router's bias have no gradient in either."""
    config = tiny_config()
    oracle = random_oracle(config)
    ids = random_ids(config, 2, 70)
    tensors = {
        name: tensor.detach().clone().requires_grad_(tensor.is_floating_point())
        for name, tensor in official_tensors(oracle).items()
    }
    ReferenceModel(config, tensors).forward(ids).square().mean().backward()
    oracle(input_ids=ids, use_cache=False).logits.square().mean().backward()

    wanted = official_tensors(
        oracle, {name: p.grad for name, p in oracle.named_parameters() if p.grad is not None}
    )
    got = {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}
    assert got.keys() == wanted.keys()
    assert not [name for name in got if "indexer" in name or name.endswith("gate.bias")]
    for name, gradient in got.items():
        error = (gradient - wanted[name]).abs().max()
        assert error < 1e-4 * wanted[name].abs().max() + 1e-8, name


def test_a_position_sees_nothing_after_itself() -> None:
    config = tiny_config()
    model = random_model(config)
    ids = random_ids(config, 150)
    whole = model.forward(ids)
    for length in (1, 3, 4, 16, 17, 31, 32, 33, 149):
        assert_close(model.forward(ids[:length]), whole[:length], rtol=0, atol=2e-5)


def test_sequences_of_a_batch_do_not_meet() -> None:
    config = tiny_config()
    model = random_model(config)
    ids = random_ids(config, 3, 70)
    together = model.forward(ids)
    for logits, sequence in zip(together, ids, strict=True):
        assert_close(logits, model.forward(sequence), rtol=0, atol=2e-5)


def test_selected_entries_are_the_best_complete_ones() -> None:
    config = tiny_config(index_topk=5)
    trace = Trace()
    random_model(config).forward(random_ids(config, 90), trace)
    for spec, done in zip(config.layers, trace.layers, strict=True):
        assert (done.selection is not None) == (spec.attention == "csa")
        if done.selection is None:
            continue
        for position, entries in enumerate(done.selection.entries[0].tolist()):
            complete = (position + 1) // spec.ratio
            scores = done.selection.scores[0, position]
            ranked = sorted(range(complete), key=lambda entry: (-float(scores[entry]), entry))
            best = sorted(ranked[:5])
            assert entries == best + [-1] * (len(entries) - len(best))
            assert done.selection.mask[0, position].nonzero().flatten().tolist() == best


def test_equal_scores_are_taken_from_the_lowest_index_on() -> None:
    scores = torch.tensor([[0.0, 2.0, -0.0, 2.0, 0.0, 1.0]])
    indices, margin = take_best(scores, 4)
    assert indices.tolist() == [[1, 3, 5, 0]]
    assert margin.tolist() == [0.0]
    assert take_best(scores, 9)[0].tolist() == [[1, 3, 5, 0, 2, 4]]
    assert take_best(scores, 6)[1].tolist() == [float("inf")]


def test_every_tensor_matters() -> None:
    """An oracle that left one out would still agree with a network that does so, too."""
    config = tiny_config(swiglu_limit=0.5)
    model = random_model(config)
    ids = random_ids(config, 100)
    logits = model.forward(ids)
    for name, tensor in model.tensors.items():
        if ".experts." in name or not tensor.is_floating_point():
            continue
        changed = ReferenceModel(config, {**model.tensors, name: tensor + torch.randn_like(tensor)})
        assert (changed.forward(ids) - logits).abs().max() > 1e-2, name
