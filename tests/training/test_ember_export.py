"""What is exported is what was trained, and what the engine computes from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL
from relight.kernels.codec import fp4_round, fp8_round
from relight.model.weights import load_weights
from tests.model.harness import Driver
from training import quant
from training.export import export, read_back
from training.model import EMBER, initial
from training.network import Mode, Network

SMALL = replace(
    EMBER, vocab_size=96, num_experts=4, experts_per_token=2, index_topk=16, index_heads=32
)


def test_fused_roundings_equal_the_codec() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 256) * torch.logspace(-6, 3, 64)[:, None]
    x[0, :32] = 0
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(32)
    x = torch.cat([x, ties[None], -ties[None]])
    assert torch.equal(quant.fp8_rows(x, 128), fp8_round(x, 128))
    assert torch.equal(quant.fp4_rows(x), fp4_round(x))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ember")
    export(SMALL, initial(SMALL, 0, torch.device("cpu")), folder)
    return folder


def test_exported_weights_are_those_of_the_last_training_pass(exported: Path) -> None:
    parameters = initial(SMALL, 0, torch.device("cpu"))
    network = Network(SMALL)
    config, read = read_back(exported, torch.device("cpu"))
    assert config == SMALL
    trained = network.prepare(parameters, Mode(weights=True))
    for name, tensor in trained.items():
        assert torch.equal(read[name].to(tensor.dtype), tensor), name


def test_engine_computes_what_was_trained(exported: Path) -> None:
    """With all roundings on: those of the engine's cache are those of the training pass."""
    torch.manual_seed(1)
    ids = torch.randint(9, 96, (1, 384))
    model = open_model(exported)
    driver = Driver(model.config, load_weights(model, torch.device("cpu")), OFFICIAL, num_slots=1)
    served = driver.given(0, ids[0].tolist())
    network = Network(SMALL)
    mode = Mode(weights=True, activations=True)
    with torch.no_grad():
        weights = network.prepare(initial(SMALL, 0, torch.device("cpu")), mode)
        trained = network.logits(weights, network.forward(weights, ids, mode))
    error = (served - trained).abs().amax(-1) / trained.abs().amax()
    # Sums differ in their last bits; where that tips a rounding over, an untrained network carries
    # it on. Before the first such place the two are equal.
    assert error[:8].max() < 1e-5
    assert error.median() < 0.05
    assert (served.argmax(-1) == trained.argmax(-1)).float().mean() > 0.85
