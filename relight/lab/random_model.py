"""Networks of any size with random weights and full caches, made on the device. Knows no file and
no timing.

Values are of the sizes that a checkpoint has, so that nothing overflows and routing varies: a
device may be faster on zeros than on numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import log2, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relight.base.headers import StoredTensor
from relight.base.official import V4_FLASH, V41_FLASH, schedule
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, DraftSpec, ModelConfig
from relight.base.tensors import TensorSpec, backbone_tensors
from relight.cache.pool import Blocks, Pool
from relight.kernels import store
from relight.kernels.rows import Rows
from relight.lab.randomise import FP4_SIGMA, FP8_SIGMA, mean_and_sigma, random_bytes
from relight.model.network import AnyWeights
from relight.model.source import STORED_AS, WeightSource
from relight.model.weights import Loaded
from relight.model.weights_v41 import LoadedV41

CHUNK_ROWS = 2**15
NO_DRAFT = DraftSpec("none")
BACK_ROLES = (0, 2, 2, 1, 1, 1, 1)
"""Ratios of a V4.1 with every role: sliding; full; reuse; full with candidates; reuse; reindex
inside candidates; reuse."""


def cut(config: ModelConfig, num_layers: int) -> ModelConfig:
    """The same widths with fewer layers, no draft and no n-gram tables. V4: CSA and HCA in turn.
    V4.1: seven layers of every role, since layers read from each other."""
    if config.generation == "v4":
        layers = schedule(tuple((4, 128)[i % 2] for i in range(num_layers)), num_hash=0)
        return replace(config, layers=layers, draft=NO_DRAFT)
    assert config.candidates is not None
    layers = csa2_schedule(BACK_ROLES, kv_sources=(1, 3), index_sources=(1, 3, 5), engram_rows={})
    blocks = config.candidates
    return replace(
        config,
        layers=layers,
        draft=NO_DRAFT,
        engram=None,
        vision=None,
        candidates=CandidateSpec(3, blocks.topk_blocks, blocks.block_size),
    )


NARROW: Mapping[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_heads": 4,
    "head_dim": 128,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 64,
    "num_experts": 8,
    "experts_per_token": 2,
    "moe_intermediate_size": 128,
    "index_heads": 4,
    "index_topk": 32,
}
"""For a processor: every op, at a thousandth of the size."""

SIZES: Mapping[str, ModelConfig] = {"v4-flash": V4_FLASH, "v4.1-flash": V41_FLASH}


def narrow(config: ModelConfig) -> ModelConfig:
    blocks = config.candidates and replace(config.candidates, topk_blocks=16)
    return replace(config, **NARROW, candidates=blocks)


class RandomSource(WeightSource):
    """Makes tensors instead of reading them."""

    def __init__(self, device: torch.device, specs: Mapping[str, TensorSpec]) -> None:
        super().__init__(device)
        self._specs = specs
        self._generator = torch.Generator().manual_seed(1)

    def tensor(self, stored: StoredTensor) -> Tensor:
        spec = self._specs[stored.name]
        if spec.dtype in ("I8", "F8_E4M3"):
            codes = torch.randint(0, 256, spec.shape, dtype=torch.uint8, device=self.device)
            return codes if spec.dtype == "I8" else _finite(codes)
        if spec.dtype == "F8_E8M0":
            middle = self._middle(spec)
            shape = spec.shape
            return torch.randint(middle - 1, middle + 2, shape, dtype=torch.uint8,
                                 device=self.device)  # fmt: skip
        if spec.dtype in ("BF16", "F32"):
            mean, sigma = mean_and_sigma(spec)
            values = torch.randn(spec.shape, device=self.device).mul_(sigma).add_(mean)
            return values.to(STORED_AS[spec.dtype])
        return random_bytes(spec, spec.shape, self._specs, self._generator).to(self.device)

    def fill(self, tensor: Tensor, stored: StoredTensor) -> None:
        tensor.copy_(self.tensor(stored))

    def _middle(self, spec: TensorSpec) -> int:
        """The scale that gives a matrix of K columns values of about 1/sqrt(K)."""
        weight = self._specs[spec.name.removesuffix("scale") + "weight"]
        packed = weight.dtype == "I8"
        columns = weight.shape[-1] * (2 if packed else 1)
        return 127 + round(-log2((FP4_SIGMA if packed else FP8_SIGMA) * sqrt(columns)))


def _finite(codes: Tensor) -> Tensor:
    """Without the two codes of E4M3 that are NaN."""
    return torch.where((codes & 127) == 127, codes & 128, codes)


def random_weights(config: ModelConfig, device: torch.device) -> AnyWeights:
    specs = {spec.name: spec for spec in backbone_tensors(config)}
    stored = {
        name: StoredTensor(name, spec.dtype, spec.shape, Path(), 0, spec.nbytes)
        for name, spec in specs.items()
    }
    source = RandomSource(device, specs)
    if config.generation == "v4":
        return Loaded(config, stored, source).model()
    classes = torch.zeros(config.vocab_size, dtype=torch.int64, device=device)
    return LoadedV41(config, stored, source, "device").network(classes)


def fill_caches(pool: Pool) -> None:
    """All rows of pages and rings with values near one."""
    for blocks in (pool.pages, pool.slots):
        for rows in _rows_of(blocks):
            for at in range(0, rows.count, CHUNK_ROWS):
                index = torch.arange(at, min(at + CHUNK_ROWS, rows.count), device=pool.device)
                values = torch.randn(len(index), rows.format.dim, device=pool.device)
                store.put(rows, index, values)


def _rows_of(blocks: Blocks) -> Iterator[Rows]:
    for field in blocks.spec.fields:
        data, scales = blocks.data(field), blocks.scales(field)
        for layer in range(len(field.layers)):
            yield Rows(field.format, data[:, layer], scales[:, layer])
