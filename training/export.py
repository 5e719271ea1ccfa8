"""Writes trained parameters in the official layout, and reads them back for comparison. Knows no
trainer."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import INDEX_NAME, open_model
from relight.base.config import ModelConfig
from relight.base.config_json import config_json
from relight.base.tensors import TensorSpec, backbone_tensors
from relight.kernels.codec import ceil_power_of_two, e4m3_encode, e8m0_decode, fp4_quantise
from relight.model.weights import load_weights
from training.model import Parameters, official, split_name
from training.network import FLOAT32, grid_of

SHARD_BYTES = 12 * 2**20
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}


def export(config: ModelConfig, parameters: Parameters, folder: Path) -> int:
    """Writes config, generation config, shards, index and hashes beside the tokenizer that is there
    already. Returns the bytes of all files."""
    tensors = {name: p.detach().cpu() for name, p in official(config, parameters)}
    shards: list[list[tuple[TensorSpec, bytes]]] = [[]]
    size = 0
    for spec, data in _stored(config, tensors):
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
    _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(folder / "config.json", config_json(config))
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    _write_json(folder / "generation_config.json", {**ends, "do_sample": False})
    files = sorted(path for path in folder.iterdir() if path.name != "hashes.json")
    _write_json(
        folder / "hashes.json",
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    )
    return sum(path.stat().st_size for path in folder.iterdir())


def _stored(config: ModelConfig, tensors: dict[str, Tensor]) -> Iterator[tuple[TensorSpec, bytes]]:
    scale = torch.empty(0)
    for spec in backbone_tensors(config):
        if spec.name.endswith(".scale"):
            stored = scale  # of the matrix just before
        elif spec.dtype == "I8":
            stored, scale = fp4_quantise(tensors[spec.name])
        elif spec.dtype == "F8_E4M3":
            stored, scale = fp8_tiles_stored(tensors[spec.name], config.fp8_block)
        else:
            stored = tensors[spec.name]
            if not spec.name.endswith(FLOAT32):
                stored = grid_of(spec.name)(stored)
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
    """The stacked parameters that the shards decode to, by way of the engine's own loader."""
    model = open_model(folder)
    weights = load_weights(model, torch.device("cpu"))
    found: dict[str, Tensor] = {}
    for layer, part in zip(model.config.layers, weights.layers, strict=True):
        prefix = f"layers.{layer.index}."
        for name, hyper in (("attn", part.hyper_attention), ("ffn", part.hyper_ffn)):
            for field in ("fn", "base", "scale"):
                found[f"{prefix}hc_{name}_{field}"] = getattr(hyper, field)
        found[f"{prefix}attn_norm.weight"] = part.attention_norm
        found[f"{prefix}ffn_norm.weight"] = part.ffn_norm
        attention, ffn = part.attention, part.ffn
        for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
            found[f"{prefix}attn.{name}.weight"] = getattr(attention, name).decode()
        for name in ("q_norm", "kv_norm"):
            found[f"{prefix}attn.{name}.weight"] = getattr(attention, name)
        found[f"{prefix}attn.attn_sink"] = attention.sink
        compressors = [("attn.compressor", attention.compressor)]
        if attention.indexer:
            index = f"{prefix}attn.indexer."
            found[f"{index}wq_b.weight"] = attention.indexer.wq_b.decode()
            found[f"{index}weights_proj.weight"] = attention.indexer.weights_proj.decode()
            compressors.append(("attn.indexer.compressor", attention.indexer.compressor))
        for name, compressor in compressors:
            if compressor:
                found[f"{prefix}{name}.wkv.weight"] = compressor.wkv.decode()
                found[f"{prefix}{name}.wgate.weight"] = compressor.wgate.decode()
                found[f"{prefix}{name}.ape"] = compressor.ape
                found[f"{prefix}{name}.norm.weight"] = compressor.norm
        found[f"{prefix}ffn.gate.weight"] = ffn.router.gate.decode()
        if ffn.router.bias is not None:
            found[f"{prefix}ffn.gate.bias"] = ffn.router.bias
        if ffn.router.table is not None:
            found[f"{prefix}ffn.gate.tid2eid"] = ffn.router.table
        for name in ("w1", "w2", "w3"):
            found[f"{prefix}ffn.shared_experts.{name}.weight"] = getattr(ffn.shared, name).decode()
            stack = getattr(ffn.experts, name)
            for expert in range(model.config.num_experts):
                found[f"{prefix}ffn.experts.{expert}.{name}.weight"] = stack.expert(expert).decode()
    for name in ("fn", "base", "scale"):
        found[f"hc_head_{name}"] = getattr(weights, f"hc_head_{name}")
    found["norm.weight"] = weights.norm
    found["embed.weight"], found["head.weight"] = weights.embed.float(), weights.head.decode()
    return model.config, stack_official(model.config, found, device)


def stack_official(
    config: ModelConfig, tensors: dict[str, Tensor], device: torch.device
) -> Parameters:
    """The inverse of `official`."""
    parts: dict[str, dict[int, list[Tensor]]] = {}
    stacked: Parameters = {}
    for spec in backbone_tensors(config):
        if spec.name.endswith(".scale"):
            continue
        if not spec.name.startswith("layers."):
            stacked[spec.name] = tensors[spec.name].to(device)
            continue
        name, place, _ = split_name(config, spec.name)
        parts.setdefault(name, {}).setdefault(place, []).append(tensors[spec.name])
    for name, layers in parts.items():
        whole = [
            torch.stack(layer) if ".experts." in name else layer[0] for layer in layers.values()
        ]
        stacked[name] = torch.stack(whole).to(device)
    return stacked
