"""Builds an engine out of settings: device, weights, memory, scheduler. Knows no request.

All that is decided at load is decided here, once, and reported in `EngineInfo`.
"""

import hashlib
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from relight.base.checkpoint import open_model
from relight.base.config import ModelConfig
from relight.base.errors import BadSetting, CannotFit
from relight.base.numerics import OFFICIAL, OFFICIAL_BF16, REFERENCE, Numerics
from relight.base.official import check_official_numerics
from relight.base.packaged import model_folder
from relight.base.settings import Settings
from relight.base.types import EngineInfo, SamplingParams, TableReads
from relight.cache.blocks import BlockPool
from relight.cache.layout import PAGE_TOKENS, Layout, layout
from relight.cache.pool import Pool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.bounded import NAMES, replay_notes, replay_rows
from relight.engine.capacity import capacity
from relight.engine.drafting import (
    Drafting,
    build_proposer,
    build_speculation,
    choose_drafting,
    drafting_notes,
)
from relight.engine.fast import bind_kernels, chosen_kernels, give_kernels
from relight.engine.graphs import shapes
from relight.engine.guides import Guides
from relight.engine.loop import Loop
from relight.engine.memory import (
    UNPACKED,
    check_weights_fit,
    check_weights_fit_in_ram,
    model_notes,
    room_to_unpack,
    scratch_bytes,
    setting_notes,
    state_rows,
    weight_notes,
    weight_rows,
)
from relight.engine.openmp import choose_threads
from relight.engine.plan import Draw, PageWrite, Rows, SetLength, StepPlan
from relight.engine.recording import Recorded, choose_recorder, record_steps
from relight.engine.runner import Runner
from relight.engine.sampler import count_bytes
from relight.engine.scheduler import Limits, Scheduler
from relight.engine.steps import InTurn, Overlapped
from relight.kernels.device import (
    architecture,
    available_bytes,
    free_bytes,
    has_native_bf16,
    memory_added,
)
from relight.kernels.select import Selection
from relight.kernels.unpack import unpack
from relight.model.network import AnyWeights, load, network
from relight.model.weights_v41 import ModelWeightsV41
from relight.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) while weights are read."""

LAYOUT_VERSION = 1
"""Part of the operator identity: raised when the bytes of pages or records change meaning."""


def assemble(settings: Settings, progress: Progress) -> tuple[Loop, EngineInfo]:
    """An engine that is ready to take requests. Raises `BadSetting`, `BadConfig`, `BadCheckpoint`
    or `CannotFit`, each with the remedy."""
    folder = model_folder(settings.model)
    model = open_model(folder)
    config = model.config
    device = choose_device(settings.device)
    numerics = choose_numerics(settings.numerics, device)
    if numerics.quantised:
        check_official_numerics(config)
    drafting = choose_drafting(config, settings)
    rows_replayed = replay_rows(config, settings)
    torch.set_num_threads(choose_threads(settings.threads, torch.get_num_threads()))
    spec = layout(config, numerics, draft=drafting is not None)
    counts = count_bytes(settings.num_slots, config.vocab_size)
    notes = check_memory(config, spec, settings, device, counts, drafting)
    kernels = chosen_kernels(settings.kernels, device, settings.kernel_cache)
    recorder, recording_notes = choose_recorder(settings, config, device)
    weights = load(model, device, engram=settings.engram, progress=progress)
    weights, selection, kernel_notes = give_kernels(kernels, weights, device)
    packed_bytes, unpacked_bytes = weights.nbytes, 0
    if device.type == "cpu":
        room = room_beside_state(config, spec, settings, device, counts)
        weights, unpacked_bytes = unpack(weights, room)
    fitted = capacity(config, spec, settings, free_bytes(device) - counts)
    pool = Pool(
        config,
        numerics,
        device,
        num_pages=fitted.num_pages,
        num_slots=fitted.num_slots,
        num_records=fitted.num_records,
        draft=drafting is not None,
    )
    proposer = None
    if drafting:
        bind = partial(bind_kernels, kernels, selection)
        proposer = build_proposer(model, drafting, weights, pool, numerics, bind)
    runner = Runner(
        network(config, weights, numerics),
        pool,
        max_context=fitted.max_context,
        proposer=proposer,
    )
    # A processor reads only the experts that it needs: one row does not bring all weights in.
    wanted = 1 if device.type == "cpu" else settings.max_step_tokens
    rows = min(wanted, fitted.max_context - 1)
    scratch = warm_up(runner, config, rows)
    recorded = Recorded()
    if recorder is not None:
        verify = 1 + (drafting.depth if drafting else 0)
        usual = shapes(fitted.num_slots, verify, fitted.max_context)
        insist = settings.graphs == "on"
        recorded = record_steps(runner, recorder, usual, insist=insist, scratch=scratch)
    operator = identity(folder, numerics, device, settings, selection)
    index = PrefixIndex(
        BlockPool(fitted.num_pages),
        RecordPool(fitted.num_records),
        operator,
        reuse_generated=settings.reuse_generated == "on",
    )
    limits = Limits(
        num_slots=fitted.num_slots,
        max_context=fitted.max_context,
        max_step_tokens=settings.max_step_tokens,
        admit_output=settings.admit_output,
        # A server counts what waits or runs, and refuses before an answer begins. What it lets in
        # may all wait here for a moment, or for want of pages.
        max_queue=settings.num_slots + settings.max_queue,
        vocab_size=config.vocab_size,
        prefix_cache=settings.prefix_cache == "on",
        step_target_s=settings.step_target / 1000 or math.inf,
        replay_rows=rows_replayed,
    )
    info = EngineInfo(
        model=settings.served_name or Path(settings.model).resolve().name,
        max_context=fitted.max_context,
        num_slots=fitted.num_slots,
        num_pages=fitted.num_pages - 1,
        operator=operator,
        memory=(
            *weight_rows(config, settings.engram),
            *([("weights: draft", drafting.nbytes)] if drafting else []),
            *([(UNPACKED, unpacked_bytes)] if unpacked_bytes else []),
            *state_rows(spec, fitted, counts),
            (f"scratch of a step of {rows:,} rows, about", scratch_bytes(config, rows, 1)),
        ),
        measured=(
            ("weights", packed_bytes),
            *([("weights: draft", proposer.nbytes)] if proposer else []),
            *([(UNPACKED, weights.nbytes - packed_bytes)] if unpacked_bytes else []),
            ("pages, rings and records", pool.nbytes),
            ("counts for penalties", runner.sampler.counts.nbytes),
            (f"added by a first step of {rows:,} rows", scratch),
            *([(f"{recorded.count} recorded steps", recorded.nbytes)] if recorder else []),
        ),
        notes=(
            *notes,
            *model_notes(config, settings),
            *replay_notes(config, settings),
            *drafting_notes(config, settings, drafting),
            *kernel_notes,
            *recording_notes,
            *recorded.notes,
            *setting_notes(settings, spec, fitted),
        ),
    )
    steps = Overlapped(runner) if settings.overlap == "on" else InTurn(runner)
    guides = Guides(
        lambda: Tokenizer.load(folder, trust=settings.trust_tokenizer), config.vocab_size
    )
    scheduler = Scheduler(limits, index, build_speculation(drafting, settings, folder))
    tables = table_reads(weights) if settings.engram != "device" else None
    return Loop(scheduler, steps, guides=guides, tables=tables), info


def table_reads(weights: AnyWeights) -> Callable[[], TableReads] | None:
    """Tells what was read of n-gram tables; None for a model without any."""
    if not isinstance(weights, ModelWeightsV41):
        return None
    reads = weights.reads
    return lambda: TableReads(
        rows=reads.rows, hits=reads.hits, bytes_read=reads.bytes_read, errors=reads.errors
    )


def check_memory(
    config: ModelConfig,
    spec: Layout,
    settings: Settings,
    device: torch.device,
    counts: int,
    drafting: Drafting | None,
) -> tuple[str, ...]:
    """Before minutes are spent on reading weights: raises `CannotFit` if they or what is needed
    beside them will not fit, else returns what there is to say of them."""
    notes: tuple[str, ...] = ()
    draft = drafting.nbytes if drafting else 0
    if device.type == "cpu":
        available = available_bytes() - draft
        taken = check_weights_fit_in_ram(config, available, settings.engram)
        notes = weight_notes(config, available, settings.engram)
    else:
        taken = check_weights_fit(config, free_bytes(device) - draft, settings.engram)
    capacity(config, spec, settings, free_bytes(device, taken + draft) - counts)
    for note in notes:
        log.warning("%s", note)
    return notes


def room_beside_state(
    config: ModelConfig, spec: Layout, settings: Settings, device: torch.device, counts: int
) -> int:
    """What weights may take decoded: nothing where what was asked for would not fit beside it."""
    room = room_to_unpack(available_bytes())
    try:
        capacity(config, spec, settings, free_bytes(device, room) - counts)
    except CannotFit:
        return 0
    return room


def choose_device(name: str) -> torch.device:
    """The torch device of a setting; `auto` is the accelerator where there is one."""
    if name == "auto":
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()  # the meta device makes tensors and has no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadSetting(
            f"device is {name!r}, which torch cannot use here ({reason}): "
            "name one that `relight doctor` lists, or auto",
            param="device",
        ) from error
    return device


def choose_numerics(name: str, device: torch.device) -> Numerics:
    """bf16 between ops where the hardware has it, as the official code; float32 elsewhere."""
    if name == "reference":
        return REFERENCE
    return OFFICIAL_BF16 if has_native_bf16(device) else OFFICIAL


def identity(
    folder: Path,
    numerics: Numerics,
    device: torch.device,
    settings: Settings,
    selection: Selection,
) -> str:
    """What computed a state, so that no state is reused across weights, numerics or kernels.

    Weights are known by the hash of the config and of every file's name, size and header: hashing
    all bytes would take minutes, and a checkpoint that was edited in place keeps neither.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    tokenizer = folder / "tokenizer.json"  # classes of n-grams are made of it
    if tokenizer.is_file():
        digest.update(tokenizer.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            head = file.read(8)
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
            digest.update(head + file.read(int.from_bytes(head, "little")))
    parts = (
        f"weights {digest.hexdigest()[:16]}",
        f"numerics {numerics.name}",
        f"kernels {selection}",
        f"device {architecture(device)}",
        f"torch {torch.__version__}",
        "ranks 1",
        f"draft {settings.spec}",
        f"replay {NAMES[settings.replay]}",
        f"layout {LAYOUT_VERSION}",
    )
    return "; ".join(parts)


def warm_up(runner: Runner, config: ModelConfig, rows: int) -> int:
    """Reads a prompt of so many tokens, as a first request would, and returns the bytes that this
    took. What it leaves in slot and pages means nothing. Raises `CannotFit`."""
    device = runner.pool.device
    draw = Draw(0, rows, SamplingParams(max_tokens=1, temperature=0.0))
    plan = StepPlan(
        step=-1,
        lengths=(SetLength(0, 0),),
        pages=(PageWrite(0, 0, tuple(range(1, 1 - (-rows // PAGE_TOKENS)))),),
        given=(Rows(0, 0, (0,) * rows, sample=True),),
        draws=(draw,),
    )
    try:
        return memory_added(device, lambda: runner.execute(plan))
    except torch.OutOfMemoryError as error:
        about = scratch_bytes(config, rows, 1)
        raise CannotFit(
            f"a step of {rows:,} tokens, which takes about {about:,} bytes for a while, does not "
            f"fit beside weights and state ({free_bytes(device):,} are free): set max_step_tokens "
            f"to {max(1, rows // 2)} or less, or lower cache_bytes",
            param="max_step_tokens",
        ) from error
