"""Random values for each kind of tensor of a checkpoint. Knows no file and no layout.

Everything is drawn as random bytes and looked up in tables of normal quantiles, which gives the
same bits on every machine and is as fast as a disk. Matrices get a standard deviation near
1/sqrt(K), so products keep the size of their inputs.
"""

import functools
from collections.abc import Mapping
from math import gcd, log2, prod, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from relight.base.tensors import TensorSpec
from relight.kernels.codec import e4m3_encode

FP8_SIGMA = 128.0
"""In units of the scale. The largest of 256 quantiles is 2.9 sigma, 370, in the top octave of
E4M3's 448: the scale is then the one that the official quantiser would choose."""

FP4_SIGMA = 2.93
"""Root mean square of the sixteen E2M1 values: sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8)."""

MEAN_AND_SIGMA: Mapping[str, tuple[float, float]] = {
    "attn_sink": (0.0, 1.0),
    "ape": (0.0, 0.5),
    "gate.bias": (0.0, 0.05),
    "gate.bias_vl": (0.0, 0.05),
    "norm.weight": (1.0, 0.1),
    "enorm.weight": (1.0, 0.1),
    "hnorm.weight": (1.0, 0.1),
    "q_weight": (1.0, 0.1),
    "k_weight": (1.0, 0.1),
    "hc_attn_base": (0.0, 0.5),
    "hc_ffn_base": (0.0, 0.5),
    "hc_head_base": (0.0, 0.5),
    "hc_attn_scale": (0.5, 0.1),
    "hc_ffn_scale": (0.5, 0.1),
    "hc_head_scale": (0.5, 0.1),
    "embed.weight": (0.0, 1.0),
}
"""By the end of the name, for what is not a matrix of standard deviation 1/sqrt(K)."""

HEAD_GAIN = 2.5
"""Logits of this standard deviation: a clear favourite, and others within reach of sampling."""


def random_bytes(
    spec: TensorSpec,
    shape: tuple[int, ...],
    specs: Mapping[str, TensorSpec],
    generator: torch.Generator,
) -> Tensor:
    """Rows of a tensor in its stored form, for the next `shape` values of the generator.

    `specs` tells how the matrix that belongs to a scale is stored.
    """
    if spec.dtype == "I8":  # all sixteen E2M1 codes, evenly
        return _bytes(prod(shape), generator).view(shape)
    if spec.dtype == "F8_E4M3":
        return _fp8_table().index_select(0, _bytes(prod(shape), generator).int()).view(shape)
    if spec.dtype == "F8_E8M0":
        return _scales(spec, shape, specs, generator)
    if spec.dtype == "I64":
        return _expert_table(shape, _num_experts(spec, specs), generator)
    mean, sigma = mean_and_sigma(spec)
    index = _bytes(2 * prod(shape), generator).view(torch.int16).int() + 32768
    values = _normal_table().index_select(0, index).mul_(sigma).add_(mean).view(shape)
    return values.to(torch.bfloat16) if spec.dtype == "BF16" else values


def _bytes(count: int, generator: torch.Generator) -> Tensor:
    words = torch.empty(-(-count // 8), dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)  # all 64 bits
    return words.view(torch.uint8)[:count]


def _quantiles(count: int) -> Tensor:
    normal = NormalDist()
    return torch.tensor([normal.inv_cdf((i + 0.5) / count) for i in range(count)])


@functools.cache
def _normal_table() -> Tensor:
    return _quantiles(65536)


@functools.cache
def _fp8_table() -> Tensor:
    return e4m3_encode(_quantiles(256) * FP8_SIGMA)


def mean_and_sigma(spec: TensorSpec) -> tuple[float, float]:
    for ending, values in MEAN_AND_SIGMA.items():
        if spec.name.endswith(ending):
            return values
    gain = HEAD_GAIN if spec.name == "head.weight" else 1.0
    return 0.0, gain / sqrt(spec.shape[-1])


def _scales(
    spec: TensorSpec,
    shape: tuple[int, ...],
    specs: Mapping[str, TensorSpec],
    generator: torch.Generator,
) -> Tensor:
    """UE8M0 bytes around the one that gives the matrix 1/sqrt(K), or an n-gram table 1: half of
    them, a quarter of them twice and a quarter of them half of it."""
    weight = specs[spec.name.removesuffix("scale") + "weight"]
    packed = weight.dtype == "I8"
    sigma = FP4_SIGMA if packed else FP8_SIGMA
    columns = weight.shape[-1] * (2 if packed else 1)
    summed = 1 if spec.name.endswith("engram.embed.scale") else columns
    middle = 127 + round(-log2(sigma * sqrt(summed)))
    steps = torch.tensor([-1, 0, 0, 1])
    choice = _bytes(prod(shape), generator).int() & 3
    return (steps.index_select(0, choice) + middle).to(torch.uint8).view(shape)


def _num_experts(spec: TensorSpec, specs: Mapping[str, TensorSpec]) -> int:
    return specs[spec.name.removesuffix("tid2eid") + "weight"].shape[0]


def _expert_table(shape: tuple[int, ...], experts: int, generator: torch.Generator) -> Tensor:
    """Distinct experts for each token: a random start, then steps of a random stride that does not
    come back within a row."""
    rows, chosen = shape
    strides = torch.tensor(
        [s for s in range(1, max(experts, 2)) if experts // gcd(experts, s) >= chosen]
    )
    words = _bytes(16 * rows, generator).view(torch.int64).view(2, rows) & (2**62 - 1)
    start, stride = words[0] % experts, strides[words[1] % len(strides)]
    return (start[:, None] + stride[:, None] * torch.arange(chosen)) % experts
