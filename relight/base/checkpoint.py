"""Finds every tensor of a checkpoint folder and checks it against the table. Reads the index and
headers only; knows no tensor's values and no torch.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from relight.base.config import ModelConfig, ParsedConfig, read_config
from relight.base.errors import BadCheckpoint
from relight.base.files import read_regular
from relight.base.headers import FETCH, StoredTensor, fault, parse_json, read_header
from relight.base.tensors import VISION_PREFIXES, TensorSpec, backbone_tensors

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
DRAFT_PREFIX = "mtp."
SHOWN_FAULTS = 8  # of one kind of message; the rest is counted


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class CheckedTensors:
    """What the backbone reads, by name, and what is there besides (drafts under `mtp.`, what only
    images need) and is not read."""

    used: Mapping[str, StoredTensor]
    skipped: tuple[StoredTensor, ...]

    @property
    def used_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.used.values())

    @property
    def skipped_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.skipped)


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A checkpoint folder whose headers were read and agree with its config.json."""

    parsed: ParsedConfig
    checkpoint: Checkpoint
    tensors: CheckedTensors

    @property
    def config(self) -> ModelConfig:
        return self.parsed.config


def open_model(folder: Path) -> OpenModel:
    """Reads config.json, the index and all headers. Raises BadConfig and BadCheckpoint.

    A config.json that does not tell the format of the experts gets the one that they are stored in.
    """
    if not folder.is_dir():
        raise fault(folder, "is not a folder", "the folder of a checkpoint", "give another one")
    parsed = read_config(folder)
    checkpoint = read_checkpoint(folder)
    if "expert_dtype" in parsed.assumed:
        parsed = replace(parsed, config=_with_stored_experts(parsed.config, checkpoint))
    return OpenModel(parsed, checkpoint, check_against(checkpoint, parsed.config))


def _with_stored_experts(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    expert = checkpoint.tensors.get("layers.0.ffn.experts.0.w1.weight")
    stored_as_fp8 = expert is not None and expert.dtype == "F8_E4M3"
    return replace(config, expert_format="fp8") if stored_as_fp8 else config


def read_checkpoint(folder: Path) -> Checkpoint:
    """Locates every tensor of the shards in `folder` and checks that index and shards agree."""
    index_file = folder / INDEX_NAME
    if index_file.is_file():
        weight_map = _read_index(index_file)
    elif (folder / SINGLE_NAME).is_file():
        tensors = read_header(folder / SINGLE_NAME)
        return Checkpoint(folder, (folder / SINGLE_NAME,), tensors)
    else:
        shards = sorted(path.name for path in folder.glob("*.safetensors"))
        found = f"is missing beside {len(shards)} shards" if shards else "and shards are missing"
        raise fault(index_file, found, f"{INDEX_NAME} or one {SINGLE_NAME}", FETCH)
    listed: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        listed.setdefault(shard, set()).add(name)
    files = tuple(folder / shard for shard in sorted(listed))
    tensors = {}
    for file in files:
        header = read_header(file)
        _check_listed(file, header, listed[file.name], weight_map)
        tensors.update(header)
    return Checkpoint(folder, files, tensors)


def _read_index(file: Path) -> dict[str, str]:
    try:
        data = parse_json(file, read_regular(file))
    except OSError as error:
        raise fault(file, f"cannot be read ({error.strerror})", "a readable file", FETCH) from error
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise fault(file, "has no weight_map", "an object of tensor name to shard name", FETCH)
    for name, shard in weight_map.items():
        # What cannot be printed, as NUL and lone surrogates, no file system takes.
        named = isinstance(shard, str) and shard.isprintable() and "/" not in shard
        if not named or shard in ("", ".", ".."):
            raise fault(file, f"maps {name} to {shard!r}", "the name of a file beside it", FETCH)
    return weight_map


def _check_listed(
    file: Path, header: Mapping[str, StoredTensor], listed: set[str], weight_map: Mapping[str, str]
) -> None:
    lacking = sorted(listed - header.keys())
    if len(lacking) == len(listed):
        raise fault(
            file,
            f"holds none of the {len(listed)} tensors that {INDEX_NAME} places in it",
            f"the shard with {lacking[0]}",
            "this is a shard of another model; fetch the right one",
        )
    if lacking:
        raise fault(file, f"lacks {_first(lacking)}", f"what {INDEX_NAME} places in it", FETCH)
    surplus = sorted(header.keys() - listed)
    if surplus:
        elsewhere = weight_map.get(surplus[0])
        wanted = f"{surplus[0]} in {elsewhere}" if elsewhere else "no tensor that the index lacks"
        raise fault(
            file,
            f"holds {_first(surplus)} as well",
            f"{wanted}, as {INDEX_NAME} says",
            "a tensor may be in one shard only; fetch the index and this shard again",
        )


def check_against(checkpoint: Checkpoint, config: ModelConfig) -> CheckedTensors:
    """Compares names, dtypes and shapes with what `config` asks for. Raises BadCheckpoint."""
    stored = checkpoint.tensors
    wanted = {spec.name: spec for spec in backbone_tensors(config)}
    ignored = ignored_prefixes(config)
    skipped = tuple(t for t in stored.values() if t.name.startswith(ignored))
    _check_origin(checkpoint, wanted, ignored)
    faults = [
        f"{checkpoint.folder}: {name} is missing; wanted {spec.dtype} {list(spec.shape)}"
        for name, spec in wanted.items()
        if name not in stored
    ]
    faults += [
        f"{tensor.file}: {_differs(tensor, wanted[tensor.name])}"
        if tensor.name in wanted
        else f"{tensor.file}: {tensor.name} is extra; wanted no such tensor"
        for tensor in stored.values()
        if not tensor.name.startswith(ignored) and not _matches(tensor, wanted)
    ]
    if faults:
        shown = "; ".join(faults[:SHOWN_FAULTS])
        more = f"; and {len(faults) - SHOWN_FAULTS:,} more" if len(faults) > SHOWN_FAULTS else ""
        raise BadCheckpoint(
            f"{shown}{more}; use the config.json and the shards of one model, or fetch them again",
            param="model",
        )
    return CheckedTensors({name: stored[name] for name in wanted}, skipped)


def ignored_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """Of tensors that a backbone does not read; V4 has no tower for images that they may be of."""
    return (DRAFT_PREFIX, *(VISION_PREFIXES if config.generation == "v4.1" else ()))


def _check_origin(
    checkpoint: Checkpoint, wanted: Mapping[str, TensorSpec], ignored: tuple[str, ...]
) -> None:
    """A shard most of whose tensors do not fit comes from another model: said once, not a thousand
    times."""
    counts: Counter[Path] = Counter()
    misfits: dict[Path, list[StoredTensor]] = {}
    for tensor in checkpoint.tensors.values():
        if tensor.name.startswith(ignored):
            continue
        counts[tensor.file] += 1
        if not _matches(tensor, wanted):
            misfits.setdefault(tensor.file, []).append(tensor)
    for file, tensors in misfits.items():
        if len(tensors) < 2 or 2 * len(tensors) <= counts[file]:
            continue
        first = tensors[0]
        spec = wanted.get(first.name)
        detail = _differs(first, spec) if spec else f"{first.name} is extra"
        raise fault(
            file,
            f"is a shard of another model: {len(tensors):,} of its {counts[file]:,} tensors do not "
            f"fit config.json ({detail})",
            "shards that belong to config.json",
            "fetch the right shard or the right config.json",
        )


def _matches(tensor: StoredTensor, wanted: Mapping[str, TensorSpec]) -> bool:
    spec = wanted.get(tensor.name)
    return spec is not None and (spec.dtype, spec.shape) == (tensor.dtype, tensor.shape)


def _differs(tensor: StoredTensor, spec: TensorSpec) -> str:
    return (
        f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}; "
        f"wanted {spec.dtype} {list(spec.shape)}"
    )


def _first(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
