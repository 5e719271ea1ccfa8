"""Rewrites a model of unpacked weights in the official layout. Knows no model code.

The official layout holds most matrices in FP8 or FP4 and most vectors in BF16. Weights that came
from an official checkpoint lie on those grids, and converting them loses nothing. Others are
refused unless rounding is asked for; then each part's loss is reported: near 2.7 % for FP8 and 12 %
for FP4 on normal weights. Scales follow the official rule, 2^ceil(log2(amax / 448)) a tile for FP8
(128 × 128 in V4, 32 × 32 in V4.1, 32 values of a row in n-gram tables) and 2^ceil(log2(amax / 6))
for 32 columns of a row for FP4, which never clips.

V4 may have the names that transformers writes. V4.1 must have official names. Its draft is kept,
and what only images need is left out.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import read_checkpoint
from relight.base.config import ModelConfig, ParsedConfig, parse_config
from relight.base.errors import BadCheckpoint, BadConfig, BadSetting
from relight.base.headers import StoredTensor
from relight.base.tensors import (
    ENGRAM_BLOCK,
    VISION_PREFIXES,
    Part,
    TensorSpec,
    backbone_tensors,
    model_tensors,
)
from relight.kernels.codec import Fp4Weight, fp4_quantise
from relight.lab.shards import Place, ShardFiles, create_shards, new_checkpoint
from relight.lab.tiles import fp8_tiles, fp8_untile
from relight.lab.transformers_form import Origin, official_fields, official_origins, origins
from relight.model.source import WeightSource, byte_view

V41_QUANTISATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [32, 32],
    "expert_dtype": "fp4",
}

SOURCE_DTYPES = ("F32", "BF16", "F16", "I64")


@dataclass(frozen=True, slots=True)
class Loss:
    """The worst tensor of a part: |rounded - given| / |given|, each a root mean square."""

    part: Part
    worst_tensor: str
    relative_rms: float


@dataclass(frozen=True, slots=True)
class Converted:
    folder: Path
    num_tensors: int
    nbytes: int
    losses: tuple[Loss, ...]
    unknown_fields: tuple[str, ...]
    left_out: int
    """Tensors of a draft (V4) or of what only images need (V4.1)."""


def convert(
    source: Path,
    folder: Path,
    *,
    quantise: bool = False,
    force: bool = False,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Reads `source`, a folder of unpacked weights, and writes `folder`.

    `quantise` allows rounding. `threads` 0 is one a core. Raises BadConfig, BadCheckpoint and
    BadSetting, and leaves no half of a checkpoint then.
    """
    if source.resolve() == folder.resolve():
        raise BadSetting(
            f"{folder}: is the source as well; wanted another folder; give an empty one",
            param="folder",
        )
    parsed = _read_config(source)
    checkpoint = read_checkpoint(source)
    if packed := [t for t in checkpoint.tensors.values() if t.dtype == "F8_E8M0"]:
        raise BadCheckpoint(
            f"{packed[0].file}: {packed[0].name} is F8_E8M0, so the weights are packed already; "
            "wanted float weights; use the folder as it is",
            param="source",
        )
    is_v4 = parsed.config.generation == "v4"
    specs = list((backbone_tensors if is_v4 else model_tensors)(parsed.config))
    stored = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if not (
            "mtp." in name if is_v4 else name.removeprefix("model.").startswith(VISION_PREFIXES)
        )
    }
    found = _locate(source, specs, stored, origins if is_v4 else official_origins)
    with new_checkpoint(folder, parsed.config, force=force):
        converter = _Converter(parsed.config, create_shards(folder, specs), found, quantise)
        losses = converter.run(threads or os.cpu_count() or 1, progress)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
    return Converted(
        folder,
        len(specs),
        sum(spec.nbytes for spec in specs),
        losses,
        parsed.unknown,
        left_out=len(checkpoint.tensors) - len(stored),
    )


def _read_config(source: Path) -> ParsedConfig:
    file = source / "config.json"
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"{file}: {getattr(error, 'strerror', None) or error}; wanted the config.json of a "
            "saved model; give its folder",
            param="source",
        ) from error
    if not isinstance(data, dict):
        raise BadConfig(f"{file}: is no JSON object; wanted one; save the model again")
    if "text_config" not in data:
        return parse_config(official_fields(data), str(file))
    parsed = parse_config({**data, "quantization_config": V41_QUANTISATION}, str(file))
    return replace(parsed, config=replace(parsed.config, vision=None))


@dataclass(frozen=True, slots=True)
class _Found:
    stored: StoredTensor
    origin: Origin


def _locate(
    source: Path,
    specs: Iterable[TensorSpec],
    stored: Mapping[str, StoredTensor],
    origins: Callable[[str], Iterable[Origin]],
) -> dict[str, _Found]:
    """The source of every tensor but scales. All that is missing, extra or mis-shaped is named."""
    found: dict[str, _Found] = {}
    faults: list[str] = []
    for spec in specs:
        if spec.dtype == "F8_E8M0":
            continue
        places = list(origins(spec.name))
        origin = next((place for place in places if place.name in stored), None)
        if origin is None:
            names = " or ".join(place.name for place in places)
            faults.append(f"{source}: {spec.name} is missing; wanted {names}")
            continue
        found[spec.name] = _Found(stored[origin.name], origin)
        faults += _misfit(spec, found[spec.name])
    used = {each.stored.name for each in found.values()}
    faults += [
        f"{tensor.file}: {name} is extra; wanted no such tensor"
        for name, tensor in stored.items()
        if name not in used
    ]
    if faults:
        shown, rest = faults[:8], len(faults) - 8
        more = f"; and {rest:,} more" if rest > 0 else ""
        raise BadCheckpoint(f"{'; '.join(shown)}{more}; save the model again", param="source")
    return found


def _misfit(spec: TensorSpec, found: _Found) -> list[str]:
    stored, origin = found.stored, found.origin
    rows, *rest = _value_shape(spec)
    shape = (rows * origin.parts, *rest)
    actual = stored.shape if origin.expert is None else stored.shape[1:]
    wanted = ("I64",) if spec.dtype == "I64" else SOURCE_DTYPES[:3]
    if actual == shape and stored.dtype in wanted:
        return []
    return [
        f"{stored.file}: {stored.name} is {stored.dtype} {list(stored.shape)}; wanted "
        f"{' or '.join(wanted)} {list(shape)}{'' if origin.expert is None else ' an expert'}"
    ]


def _value_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Shape before packing: a byte of I8 holds two values of a row."""
    return (spec.shape[0], 2 * spec.shape[1]) if spec.dtype == "I8" else spec.shape


class _Converter:
    def __init__(
        self,
        config: ModelConfig,
        places: Mapping[str, Place],
        found: Mapping[str, _Found],
        quantise: bool,
    ) -> None:
        self._block = config.fp8_block
        self._places, self._found, self._quantise = places, found, quantise

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> tuple[Loss, ...]:
        total = sum(place.spec.nbytes for place in self._places.values())
        done, worst = 0, dict[Part, Loss]()
        with (
            WeightSource(torch.device("cpu")) as source,
            ShardFiles(self._places.values()) as files,
            ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool,
        ):

            def one(name: str) -> tuple[int, Loss | None]:
                return self._convert(name, source, files)

            for nbytes, loss in pool.map(one, self._found):
                done += nbytes
                if loss and loss.relative_rms > 0:
                    worst[loss.part] = max(
                        loss, worst.get(loss.part, loss), key=lambda each: each.relative_rms
                    )
                if progress:
                    progress(done, total)
        return tuple(worst.values())

    def _convert(
        self, name: str, source: WeightSource, files: ShardFiles
    ) -> tuple[int, Loss | None]:
        place, found = self._places[name], self._found[name]
        values = _slice(source.mapped(found.stored), found.origin)
        stored, rounded = _encode(place.spec, values, self._block)
        loss = None
        if rounded is not None:
            loss = Loss(place.spec.part, name, _relative_rms(values, rounded))
            if loss.relative_rms > 0 and not self._quantise:
                raise BadCheckpoint(
                    f"{found.stored.file}: {found.stored.name} loses {loss.relative_rms:.2%} when "
                    f"stored as {place.spec.dtype}; wanted values that the official layout holds "
                    "exactly; give --quantise to round them",
                    param="quantise",
                )
        places = [place, *([self._places[_scale_name(name)]] if len(stored) == 2 else [])]
        for target, data in zip(places, stored, strict=True):
            assert data.nbytes == target.spec.nbytes, target.spec.name
            files.write(target, 0, byte_view(data))
        return sum(data.nbytes for data in stored), loss


def _slice(tensor: Tensor, origin: Origin) -> Tensor:
    if origin.expert is None:
        return tensor
    rows = tensor.shape[1] // origin.parts
    return tensor[origin.expert, origin.part * rows : (origin.part + 1) * rows]


def _scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def _encode(
    spec: TensorSpec, values: Tensor, block: int
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The stored tensors (data, and scales of a quantised matrix) and the float32 values that they
    stand for; None where nothing is rounded by its kind."""
    match spec.dtype:
        case "I64":
            return (values.contiguous(),), None
        case "F32":
            return (values.float().contiguous(),), None
        case "BF16":
            stored = values.to(torch.bfloat16).contiguous()
            return (stored,), stored.float()
        case "I8":
            data, scale = fp4_quantise(values)
            return (data.contiguous(), scale.contiguous()), Fp4Weight(data, scale).decode()
        case _:
            tile = (1, ENGRAM_BLOCK) if ".engram.embed." in spec.name else (block, block)
            data, scale = fp8_tiles(values.float(), tile)
            return (data, scale), fp8_untile(data, scale, tile)


def _relative_rms(given: Tensor, rounded: Tensor) -> float:
    given = given.float()
    norm = float(given.norm())
    return float((given - rounded).norm()) / norm if norm else 0.0
