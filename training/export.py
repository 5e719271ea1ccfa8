"""Writes trained parameters in the official layout, and reads them back for comparison. Knows no
trainer."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import INDEX_NAME, OpenModel, open_model
from relight.base.config import ModelConfig
from relight.base.config_json import config_json
from relight.base.tensors import ENGRAM_BLOCK, TensorSpec, backbone_tensors, draft_tensors
from relight.kernels.codec import (
    Fp8Weight,
    ceil_power_of_two,
    e4m3_encode,
    e8m0_decode,
    fp4_dequantise,
    fp4_quantise,
    fp8_dequantise,
    fp8_quantise,
)
from relight.model.source import WeightSource
from training.model import Parameters, official, split_name
from training.network import FLOAT32, grid_of

SHARD_BYTES = 12 * 2**20
DRAFT_SHARD = "draft.safetensors"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}


def export(config: ModelConfig, parameters: Parameters, folder: Path) -> int:
    """Writes config, generation config, shards, index and hashes beside the tokenizer that is there
    already. Returns the bytes of all files."""
    shards: list[list[tuple[TensorSpec, bytes]]] = [[]]
    size = 0
    for spec, data in _stored(config, parameters, backbone_tensors(config)):
        if size + len(data) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((spec, data))
        size += len(data)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_safetensors(folder / file, shard)
        weight_map |= {spec.name: file for spec, _ in shard}
    total = sum(spec.nbytes for shard in shards for spec, _ in shard)
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    _write_json(folder / "generation_config.json", {**ends, "do_sample": False})
    return _finish(config, folder, weight_map, total)


def export_draft(config: ModelConfig, parameters: Parameters, folder: Path) -> int:
    """Adds the draft that `config` describes to a checkpoint: a shard of its own, and new config,
    index and hashes. Other files stay as they are. Returns the bytes of the shard."""
    tensors = list(_stored(config, parameters, draft_tensors(config)))
    _write_safetensors(folder / DRAFT_SHARD, tensors)
    index = json.loads((folder / INDEX_NAME).read_text("utf-8"))
    names = {name: file for name, file in index["weight_map"].items() if file != DRAFT_SHARD}
    total = sum(spec.nbytes for spec in backbone_tensors(config))
    total += sum(spec.nbytes for spec, _ in tensors)
    _finish(config, folder, names | {spec.name: DRAFT_SHARD for spec, _ in tensors}, total)
    return (folder / DRAFT_SHARD).stat().st_size


def _finish(config: ModelConfig, folder: Path, weight_map: dict[str, str], total: int) -> int:
    _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(folder / "config.json", config_json(config))
    files = sorted(path for path in folder.iterdir() if path.name != "hashes.json")
    _write_json(
        folder / "hashes.json",
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    )
    return sum(path.stat().st_size for path in folder.iterdir())


def _stored(
    config: ModelConfig, parameters: Parameters, specs: Iterable[TensorSpec]
) -> Iterator[tuple[TensorSpec, bytes]]:
    specs = list(specs)
    tensors = {name: p.detach().cpu() for name, p in official(config, parameters, specs)}
    scale = torch.empty(0)
    for spec in specs:
        if spec.name.endswith(".scale"):
            stored = scale  # of the matrix just before
        elif spec.dtype == "I8":
            stored, scale = fp4_quantise(tensors[spec.name])
        elif spec.is_table:
            stored, scale = fp8_quantise(tensors[spec.name], ENGRAM_BLOCK)
        elif spec.dtype == "F8_E4M3":
            stored, scale = fp8_tiles_stored(tensors[spec.name], config.fp8_block)
        else:
            stored = tensors[spec.name]
            if not spec.name.endswith(FLOAT32):
                stored = grid_of(spec.name, config.fp8_block)(stored)
            stored = stored.to(DTYPES[spec.dtype])
        assert stored.shape == spec.shape, f"{spec.name}: {tuple(stored.shape)}"
        yield spec, stored.contiguous().view(torch.uint8).numpy().tobytes()


def fp8_tiles_stored(w: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """E4M3 codes [N, K] and one UE8M0 byte per block × block values."""
    rows, columns = w.shape
    padded = torch.nn.functional.pad(w, (0, -columns % block, 0, -rows % block))
    tiles = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block))
    scale = ceil_power_of_two(tiles.abs().amax((1, 3)).clamp(min=1e-4) * (1.0 / 448.0))
    factors = e8m0_decode(scale).repeat_interleave(block, 0).repeat_interleave(block, 1)
    return e4m3_encode(w / factors[:rows, :columns]), scale


def _write_safetensors(file: Path, tensors: list[tuple[TensorSpec, bytes]]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for spec, data in tensors:
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(data for _, data in tensors)


def _write_json(file: Path, data: object) -> None:
    file.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def read_back(folder: Path, device: torch.device) -> tuple[ModelConfig, Parameters]:
    """The config, and the stacked parameters that the backbone's shards decode to."""
    model = open_model(folder)
    return model.config, _read(model, backbone_tensors(model.config), device)


def read_draft(folder: Path, device: torch.device) -> Parameters:
    """Likewise, of the draft."""
    model = open_model(folder)
    return _read(model, draft_tensors(model.config), device)


def _read(model: OpenModel, specs: Iterable[TensorSpec], device: torch.device) -> Parameters:
    specs = list(specs)
    files = {**model.tensors.used, **{tensor.name: tensor for tensor in model.tensors.skipped}}
    with WeightSource(torch.device("cpu")) as source:
        stored = {spec.name: source.tensor(files[spec.name]) for spec in specs}
        source.run(1)
    decoded = {
        spec.name: _decoded(spec, stored, model.config.fp8_block)
        for spec in specs
        if not spec.name.endswith(".scale")
    }
    return stack_official(model.config, decoded, device)


def _decoded(spec: TensorSpec, stored: dict[str, Tensor], block: int) -> Tensor:
    data, scale = stored[spec.name], stored.get(spec.name.removesuffix(".weight") + ".scale")
    if spec.dtype == "I64":
        return data
    if scale is None:
        return data.float()
    if spec.dtype == "I8":
        return fp4_dequantise(data, scale)
    if spec.is_table:
        return fp8_dequantise(data, scale)
    return Fp8Weight(data, scale, block).decode()


def stack_official(
    config: ModelConfig, tensors: dict[str, Tensor], device: torch.device
) -> Parameters:
    """The inverse of `official`: tensors by official name in the order of the table."""
    singles: Parameters = {}
    parts: dict[str, dict[int, list[Tensor]]] = {}
    for official_name, tensor in tensors.items():
        name, place, _ = split_name(config, official_name)
        if place is None:
            singles[name] = tensor.to(device)
        else:
            parts.setdefault(name, {}).setdefault(place, []).append(tensor)
    stacked = {
        name: torch.stack(
            [torch.stack(some) if ".experts." in name else some[0] for some in layers.values()]
        ).to(device)
        for name, layers in parts.items()
    }
    return singles | stacked
