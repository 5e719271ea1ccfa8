"""Makes the network of a config in its training form. Knows no parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from training.network import Network
from training.network_v41 import NetworkV41

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def make_network(
    config: ModelConfig,
    dtype: torch.dtype,
    compile: Compile | None = None,
    classes: Tensor | None = None,
) -> Network:
    """`classes` [vocab]: what n-grams are made of, for V4.1."""
    if config.generation == "v4":
        return Network(config, dtype, compile)
    assert classes is not None
    return NetworkV41(config, dtype, compile, classes=classes)
