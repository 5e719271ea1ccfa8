"""The network of a model: the one place where V4 and V4.1 are told apart. Knows no cache."""

import torch

from relight.base.checkpoint import OpenModel
from relight.base.config import ModelConfig
from relight.base.numerics import Numerics
from relight.model.ngram_table import Where
from relight.model.source import Progress
from relight.model.transformer import Transformer
from relight.model.transformer_v41 import TransformerV41
from relight.model.weights import ModelWeights, load_weights
from relight.model.weights_v41 import ModelWeightsV41, load_v41

AnyWeights = ModelWeights | ModelWeightsV41
Network = Transformer | TransformerV41


def load(
    model: OpenModel,
    device: torch.device,
    *,
    engram: Where = "device",
    threads: int = 4,
    progress: Progress | None = None,
) -> AnyWeights:
    """Brings the backbone of a checked checkpoint to `device`, except n-gram tables that are to lie
    elsewhere; see `weights.load_weights`."""
    if model.config.generation == "v4.1":
        return load_v41(model, device, engram, threads, progress)
    return load_weights(model, device, threads=threads, progress=progress)


def network(config: ModelConfig, weights: AnyWeights, numerics: Numerics) -> Network:
    if isinstance(weights, ModelWeightsV41):
        return TransformerV41(config, weights, numerics)
    return Transformer(config, weights, numerics)
