"""The training form of the network is the network."""

from dataclasses import replace

import pytest
import torch

from relight.model.reference import ReferenceModel
from relight.model.reference_parts import sinkhorn as exact_sinkhorn
from training.functions import sinkhorn
from training.model import EMBER, initial, official
from training.network import Extras, Mode, Network

SMALL = replace(
    EMBER, vocab_size=96, num_experts=4, experts_per_token=2, index_topk=16, index_heads=32
)


@pytest.mark.parametrize("sparse", [True, False])
def test_network_equals_the_reference_model(sparse: bool) -> None:
    torch.manual_seed(0)
    config = SMALL if sparse else replace(SMALL, index_topk=1000)
    parameters = initial(config, 0, torch.device("cpu"))
    for name, tensor in parameters.items():
        if tensor.is_floating_point():
            spread = 0.3 if "bias" in name or "norm" in name or "sink" in name else 0.05
            tensor.data.add_(torch.randn_like(tensor), alpha=spread)
    ids = torch.randint(0, 96, (2, 384))
    network = Network(config)
    weights = network.prepare(parameters, Mode())
    with torch.no_grad():
        extras = Extras(torch.ones(768, dtype=torch.bool))
        hidden = network.forward(weights, ids, Mode(sparse=sparse), extras)
        found = network.logits(weights, hidden).view(2, 384, -1)
        wanted = ReferenceModel(config, dict(official(config, parameters))).forward(ids)
    assert (found - wanted).abs().max() < 2e-4 * wanted.abs().max()
    assert len(extras.index_losses) == 3


def test_short_sinkhorn_gradient_is_close_to_the_exact_one() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 4, 4) + 3 * torch.eye(4)
    wanted = torch.randn(50, 4, 4)
    grads = []
    for function in (sinkhorn, exact_sinkhorn):
        x = logits.clone().requires_grad_()
        mix = function(x, 20, 1e-6)
        (mix * wanted).sum().backward()
        grads.append((mix.detach(), x.grad))
    assert torch.allclose(grads[0][0], grads[1][0], atol=1e-6)
    assert (grads[0][1] - grads[1][1]).norm() < 0.15 * grads[1][1].norm()
