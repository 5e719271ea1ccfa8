"""Draws the tokens of a plan: its parameters as columns beside the logits. Knows no model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from relight.engine.plan import Draw
from relight.kernels.sample import SampleParams, sample


def draw_tokens(draws: Sequence[Draw], logits: Tensor) -> Tensor:
    """One token [draws] int64 for each row of logits [draws, V]."""
    return sample(logits, sample_params(draws, logits.device))


def sample_params(draws: Sequence[Draw], device: torch.device) -> SampleParams:
    """The sampling parameters of `draws` as columns."""

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    params = [draw.sampling for draw in draws]
    return SampleParams(
        temperature=column([p.temperature for p in params], torch.float32),
        top_p=column([p.top_p for p in params], torch.float32),
        top_k=column([p.top_k for p in params], torch.int64),
        min_p=column([p.min_p for p in params], torch.float32),
        seed=column([_signed(p.seed) for p in params], torch.int64),
        choice=column([p.choice for p in params], torch.int64),
        position=column([draw.position for draw in draws], torch.int64),
    )


def _signed(seed: int) -> int:
    """Any integer seed as one that an int64 holds."""
    return (seed + 2**63) % 2**64 - 2**63
