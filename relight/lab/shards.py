"""Lays a checkpoint out in shards: sizes, headers, index. Knows no values: files are made at their
full size and sparse, and whoever has the bytes writes them in place.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relight.base.checkpoint import INDEX_NAME
from relight.base.config import ModelConfig
from relight.base.config_json import config_json
from relight.base.errors import BadSetting
from relight.base.tensors import DTYPE_BYTES, TensorSpec


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a tensor go."""

    spec: TensorSpec
    file: Path
    offset: int


class ShardFiles:
    """Writes into files of full size, from any thread. A context that closes them."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._descriptors: dict[Path, int] = {}
        for place in places:
            if place.file not in self._descriptors:
                self._descriptors[place.file] = os.open(place.file, os.O_WRONLY)

    def __enter__(self) -> "ShardFiles":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def write(self, place: Place, start: int, data: memoryview) -> None:
        """Puts `data` at byte `start` of the tensor."""
        descriptor, done = self._descriptors[place.file], 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], place.offset + start + done)


@contextmanager
def new_checkpoint(folder: Path, config: ModelConfig, *, force: bool) -> Iterator[None]:
    """Around the writing of a checkpoint: config.json comes last, so that a folder which has it is
    complete, and a writer that fails leaves no shard behind. `force` overwrites a checkpoint."""
    if (folder / "config.json").exists() and not force:
        raise BadSetting(
            f"{folder}: holds a checkpoint already; wanted an empty folder; give another one or "
            "--force to overwrite it",
            param="folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    _remove_checkpoint(folder)
    try:
        yield
    except BaseException:
        _remove_checkpoint(folder)
        raise
    _write_json(folder / "config.json", config_json(config))


def _remove_checkpoint(folder: Path) -> None:
    shards = folder.glob("model*.safetensors")
    for file in (folder / "config.json", folder / INDEX_NAME, *shards):
        file.unlink(missing_ok=True)


def create_shards(folder: Path, specs: Iterable[TensorSpec]) -> dict[str, Place]:
    """Makes shards and index for `specs`: one shard for the embedding, for each layer, for the head
    and for each draft stage, as the published checkpoints have them."""
    groups: dict[tuple[int, int], list[TensorSpec]] = {}
    for spec in specs:
        groups.setdefault(_group(spec.name), []).append(spec)
    places: dict[str, Place] = {}
    for number, key in enumerate(sorted(groups), start=1):
        file = folder / f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        for place in _create_shard(file, groups[key]):
            places[place.spec.name] = place
    index = {
        "metadata": {"total_size": sum(place.spec.nbytes for place in places.values())},
        "weight_map": {name: places[name].file.name for name in sorted(places)},
    }
    _write_json(folder / INDEX_NAME, index)
    return places


def _group(name: str) -> tuple[int, int]:
    first, second, *_ = name.split(".") if "." in name else (name, "")
    if first == "layers":
        return 1, int(second)
    if first == "mtp":
        return 3, int(second)
    return (0, 0) if first == "embed" else (2, 0)


def _create_shard(file: Path, specs: list[TensorSpec]) -> list[Place]:
    """Wide types come first, so that every tensor is aligned to its own width."""
    ordered = sorted(specs, key=lambda spec: -DTYPE_BYTES[spec.dtype])
    entries: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    begins, end = [], 0
    for spec in ordered:
        begins.append(end)
        end += spec.nbytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": (begins[-1], end),
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + end)
    start = 8 + len(header)
    return [Place(spec, file, start + begin) for spec, begin in zip(ordered, begins, strict=True)]


def _write_json(file: Path, data: object) -> None:
    file.write_text(json.dumps(data, indent=1) + "\n")
