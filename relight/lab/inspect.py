"""Describes a checkpoint from its config.json and headers: kind, layers, tensors and bytes by part.
Reads no tensor and needs no torch, so it answers for 160 GB in a second or two.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table

from relight.base.checkpoint import DRAFT_PREFIX, OpenModel, open_model
from relight.base.official import official_name
from relight.base.tensors import backbone_tensors


@dataclass(frozen=True, slots=True)
class PartSize:
    part: str
    num_tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` prints; `as_json` has the same names. Bytes are those of the tensors."""

    folder: str
    model: str
    num_layers: int
    attention: dict[str, int]
    routing: dict[str, int]
    draft: str
    num_draft_stages: int
    expert_format: str
    max_position: int
    num_shards: int
    parts: tuple[PartSize, ...]
    num_tensors: int
    nbytes: int
    skipped: tuple[PartSize, ...]
    skipped_tensors: int
    skipped_bytes: int
    unknown_fields: tuple[str, ...]
    assumed_fields: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def inspect(folder: Path) -> Inspection:
    """Raises BadConfig and BadCheckpoint as the loader's header pass does, which this is."""
    return _describe(open_model(folder))


def _describe(model: OpenModel) -> Inspection:
    config = model.config
    tensors: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for spec in backbone_tensors(config):
        tensors[spec.part] += 1
        sizes[spec.part] += spec.nbytes
    return Inspection(
        folder=str(model.checkpoint.folder),
        model=official_name(config) or f"{config.generation.upper()}, not of a published size",
        num_layers=config.num_layers,
        attention=dict(Counter(layer.attention for layer in config.layers)),
        routing=dict(Counter(layer.routing for layer in config.layers)),
        draft=config.draft.kind,
        num_draft_stages=config.draft.num_stages,
        expert_format=config.expert_format,
        max_position=config.max_position,
        num_shards=len(model.checkpoint.files),
        parts=tuple(PartSize(part, tensors[part], sizes[part]) for part in tensors),
        num_tensors=len(model.tensors.used),
        nbytes=model.tensors.used_bytes,
        skipped=_skipped(model),
        skipped_tensors=len(model.tensors.skipped),
        skipped_bytes=model.tensors.skipped_bytes,
        unknown_fields=model.parsed.unknown,
        assumed_fields=model.parsed.assumed,
    )


def _skipped(model: OpenModel) -> tuple[PartSize, ...]:
    """What the backbone does not read: the draft, and in V4.1 what only images need."""
    parts = {"mtp.*": 0, "vision": 0} if model.config.vision else {"mtp.*": 0}
    sizes: Counter[str] = Counter(parts)
    counts: Counter[str] = Counter(parts)
    for tensor in model.tensors.skipped:
        part = "mtp.*" if tensor.name.startswith(DRAFT_PREFIX) else "vision"
        counts[part] += 1
        sizes[part] += tensor.nbytes
    return tuple(PartSize(part, counts[part], sizes[part]) for part in counts)


def render(inspection: Inspection) -> Group:
    """The tables that `relight inspect` prints."""
    facts = Table(show_header=False, box=None)
    has_vision = any(part.part == "vision" for part in inspection.skipped)
    for name, value in (
        ("model", inspection.model),
        ("folder", inspection.folder),
        ("layers", f"{inspection.num_layers}: {_counts(inspection.attention)}"),
        ("routing", _counts(inspection.routing)),
        ("experts", f"{inspection.expert_format.upper()}"),
        ("context", f"{inspection.max_position:,} tokens"),
        ("draft", _draft(inspection)),
        *((("images", "refused, the tower is not loaded"),) if has_vision else ()),
        ("shards", f"{inspection.num_shards}"),
        ("unknown fields", ", ".join(inspection.unknown_fields) or "none"),
        ("assumed fields", ", ".join(inspection.assumed_fields) or "none"),
    ):
        facts.add_row(name, value)
    return Group(facts, _sizes(inspection))


def show(inspection: Inspection, console: Console) -> None:
    console.print(render(inspection))


def _sizes(inspection: Inspection) -> Table:
    table = Table("part", box=None)
    table.add_column("tensors", justify="right")
    table.add_column("bytes", justify="right")
    table.add_column("GB", justify="right")
    for part in inspection.parts:
        table.add_row(part.part, *_size(part.num_tensors, part.nbytes))
    table.add_section()
    table.add_row("loaded", *_size(inspection.num_tensors, inspection.nbytes))
    for part in inspection.skipped:
        is_optional = part.part == "mtp.*" and inspection.draft == "dspark"
        name = "with --spec dspark" if is_optional else "skipped"
        table.add_row(f"{name} ({part.part})", *_size(part.num_tensors, part.nbytes))
    total = inspection.num_tensors + inspection.skipped_tensors
    table.add_row("in the files", *_size(total, inspection.nbytes + inspection.skipped_bytes))
    return table


def _size(num_tensors: int, nbytes: int) -> tuple[str, str, str]:
    return f"{num_tensors:,}", f"{nbytes:,}", f"{nbytes / 1e9:,.2f}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _draft(inspection: Inspection) -> str:
    if inspection.draft == "none":
        return "none"
    use = "loaded with --spec dspark" if inspection.draft == "dspark" else "never loaded"
    stages = (
        "1 stage" if inspection.num_draft_stages == 1 else f"{inspection.num_draft_stages} stages"
    )
    return f"{inspection.draft}, {stages}, {use}"
