"""Compares the float32 network with transformers' DeepseekV4ForCausalLM, and with itself."""

import pytest
import torch

from relight.base.config import ModelConfig
from relight.model.reference import ReferenceModel, Trace
from tests.model.oracle import official_tensors, random_oracle, streams_and_logits, tiny_config

LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 255, 256, 257, 600)

CONFIGS = {
    "short HCA windows": tiny_config(),
    "clamped experts": tiny_config(swiglu_limit=0.5),
    "official window and ratios": tiny_config(hca_ratio=128, window=128),
    "no layer sees all": tiny_config(("csa/bias", "csa/hash", "csa/bias"), index_topk=3),
}


def random_ids(config: ModelConfig, *shape: int) -> torch.Tensor:
    return torch.randint(config.vocab_size, shape)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_every_layers_streams_equal_transformers(name: str) -> None:
    config = CONFIGS[name]
    oracle = random_oracle(config)
    model = ReferenceModel(config, official_tensors(oracle))
    for length in LENGTHS:
        ids = random_ids(config, 1, length)
        streams, logits = streams_and_logits(oracle, ids)
        trace = Trace()
        torch.testing.assert_close(model.forward(ids, trace), logits, rtol=0, atol=1e-4)
        for done, want in zip(trace.layers, streams, strict=True):
            torch.testing.assert_close(done.streams, want, rtol=0, atol=1e-4)
    assert 5 < logits.abs().max() < 12
