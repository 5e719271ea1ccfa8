"""Decides whether steps are recorded, and has them recorded at start. Knows no request."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from relight.base.config import ModelConfig
from relight.base.errors import BadSetting, CannotFit
from relight.base.settings import Settings
from relight.engine.graphs import Shape
from relight.engine.runner import Runner
from relight.kernels.device import answers
from relight.kernels.record import Recorder, is_out_of_memory, recorder

log = logging.getLogger(__name__)

SHARE = 2
"""Recordings get one part in so many of the memory that is free when all else is there, what the
largest step takes for a while too."""

PATIENCE_S = 30.0
"""How long a start may take longer for it, unless recording was asked for: where ops run their
torch definitions, a wide step is a million launches. Looked at between recordings; none is cut
short."""


@dataclass(frozen=True, slots=True)
class Recorded:
    count: int = 0
    nbytes: int = 0
    notes: tuple[str, ...] = ()


def choose_recorder(
    settings: Settings, config: ModelConfig, device: torch.device
) -> tuple[Recorder | None, tuple[str, ...]]:
    """What records, None if nothing is to be recorded, and what there is to say of it. Raises
    BadSetting if it was asked for and cannot be."""
    if settings.graphs == "off":
        return None, ()
    reason = objection(settings, config, device)
    if not reason:
        return recorder(device), ()
    if settings.graphs == "on":
        raise BadSetting(f"graphs is on, and {reason}; set graphs to auto or off", param="graphs")
    return None, (f"steps are not recorded: {reason}",) if device.type == "cuda" else ()


def objection(settings: Settings, config: ModelConfig, device: torch.device) -> str:
    """Why steps of made rows cannot be recorded; empty if they can."""
    if device.type != "cuda":
        return f"steps on {device.type} cannot be recorded, only those on cuda"
    if config.engram is not None and settings.engram != "device":
        return (
            f"engram is {settings.engram}: rows of n-gram tables that are not on the device are "
            "looked up by the host in each step"
        )
    return ""


def record_steps(
    runner: Runner,
    recorder: Recorder,
    wanted: Sequence[Shape],
    *,
    insist: bool,
    scratch: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Recorded:
    """Records them in turn, and tells the log of it. Where memory or patience ends, those that are
    there serve and other steps run eagerly; with `insist` neither does, and it raises CannotFit, or
    BadSetting where a step cannot be recorded at all. `scratch`: bytes that an eager step takes for
    a while, which are free now."""
    begun, begun_s = recorder.free_bytes(), clock()
    room = max(0, begun - scratch)
    taken, behind = 0, True
    notes: list[str] = []

    def objection_to(record: Callable[[], None], what: str) -> str:
        """Records it, or says why not."""
        try:
            record()
        except RuntimeError as error:
            return _objection(error, what, begun - taken, runner, insist)
        return ""

    for number, shape in enumerate(wanted, 1):
        reason = "" if insist else _enough(taken, room, clock() - begun_s)
        what = f"a step of {shape.rows} rows of up to {shape.context:,} tokens"
        reason = reason or objection_to(partial(runner.record, shape, recorder), what)
        if reason:
            notes.append(_left(shape, reason))
            break
        last = number == len(wanted) or wanted[number].rows != shape.rows
        if last and behind:
            what = f"what comes behind a step of {shape.rows} rows"
            reason = objection_to(partial(runner.record_behind, shape.rows, recorder), what)
            behind = not reason
        if reason:
            notes.append(f"draws and guesses are not all recorded and run eagerly: {reason}")
        taken = max(0, begun - recorder.free_bytes())
        if last:
            log.info(
                "recorded steps of %d rows: %d of %d recordings, %s bytes",
                *(shape.rows, number, len(wanted), f"{taken:,}"),
            )
    for note in notes:
        log.warning("%s", note)
    done = [] if runner.graphs is None else runner.graphs.shapes
    return Recorded(len(done), taken, (*_summary(done), *notes))


def _enough(taken: int, room: int, took_s: float) -> str:
    if taken > room // SHARE or not room:
        return f"the recordings take {taken:,} of {room:,} bytes that are free beside any step"
    if took_s > PATIENCE_S:
        return f"recording took {took_s:.0f} s (graphs on records all)"
    return ""


def _objection(error: RuntimeError, what: str, free: int, runner: Runner, insist: bool) -> str:
    """Why recording ended. Raises it with the remedy if the user insists, and what is no fault of
    recording."""
    if is_out_of_memory(error):
        if insist:
            raise CannotFit(
                f"graphs is on, and recording {what} did not fit beside weights and state "
                f"({free:,} bytes were free): set graphs to auto, which records what fits, lower "
                "cache_bytes, or lower max_context or num_slots, which need fewer recordings",
                param="graphs",
            ) from error
        return f"recording {what} did not fit ({free:,} bytes were free)"
    if not answers(runner.pool.device):
        raise error
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if insist:
        raise BadSetting(
            f"graphs is on, and {what} cannot be recorded ({reason}): set graphs to auto or off",
            param="graphs",
        ) from error
    return f"{what} cannot be recorded ({reason})"


def _left(shape: Shape, reason: str) -> str:
    return f"steps of {shape.rows} rows and more are not all recorded and run eagerly: {reason}"


def _summary(done: Sequence[Shape]) -> tuple[str, ...]:
    if not done:
        return ()
    widths = sorted({shape.rows for shape in done})
    return (
        f"{len(done)} steps are recorded: of {', '.join(map(str, widths))} rows, "
        f"of up to {max(shape.context for shape in done):,} tokens",
    )
