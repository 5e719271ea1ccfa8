"""Recorded steps of made rows. Knows no model and no device.

A step of few rows is thousands of launches of some microseconds, more than a host can make in the
time that the device needs for them; a recording is launched by one call. It is of a fixed shape: so
many rows, of sequences up to such a length. A step takes the smallest that holds it, and one that
none holds runs eagerly. Either way its bits are the same, since those of a row hang neither on how
many rows there are nor on how many entries could have been listed.

Rows of padding are copies of the last row: they compute and write what it does, bit for bit, so
they leave nothing that is not there without them, and need no expert that it does not need.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relight.engine.plan import Rows
from relight.engine.table import Table
from relight.kernels.record import Recorder, Replay

MOST_ROWS = 64
"""Wider steps run eagerly: their time is no longer that of their launches."""

SHORT = 2048
"""Tokens of the shortest context: up to here V4 attends to every entry and selects none."""

CONTEXT_STEP = 4
"""From one length to the next: what is listed for a row is at most so many times what it has."""


class Shape(NamedTuple):
    """Rows of a recording, and the largest position of any, plus one."""

    rows: int
    context: int


def shapes(num_slots: int, verify: int, max_context: int) -> list[Shape]:
    """What to record where so many sequences run, each with `verify` rows at most in a usual step:
    powers of two and `verify`, times a few lengths of context."""
    most = min(num_slots * verify, MOST_ROWS)
    enough = {verify, *(2**n for n in range((most - 1).bit_length() + 1))}
    widest = min(width for width in enough if width >= most)
    widths = [width for width in enough if width <= widest]
    contexts = [SHORT]
    while contexts[-1] < max_context:
        contexts.append(contexts[-1] * CONTEXT_STEP)
    contexts[-1] = max_context
    return [Shape(rows, context) for rows in sorted(widths) for context in contexts]


class RowInputs(NamedTuple):
    """Columns [rows] int64 of what differs from one replay to the next."""

    slots: Tensor
    offsets: Tensor  # rows of its sequence in front of it, in this step
    tokens: Tensor  # as in `Rows`
    counts: Tensor  # rows of its sequence in this step


Step = Callable[[RowInputs, Shape], Tensor]
"""One step on the device alone, without a look at a value; gives the logits of all rows."""


class Graphs:
    """Inputs and logits lie at the same place for all recordings. `logits` [most_rows, V]: of the
    rows of the last step that was replayed."""

    def __init__(self, most_rows: int, vocab_size: int, device: torch.device) -> None:
        self.logits = torch.zeros((most_rows, vocab_size), device=device)
        self._inputs = Table(most_rows, len(RowInputs._fields), device)
        self._recorded: dict[Shape, Replay] = {}
        self.num_replays = 0

    @property
    def shapes(self) -> list[Shape]:
        return sorted(self._recorded)

    def record(self, shape: Shape, step: Step, recorder: Recorder) -> None:
        """Runs rows of slot 0 that count for nothing. Raises as `Recorder.record`."""

        def run() -> None:
            columns = self._inputs.columns(shape.rows)
            self.logits[: shape.rows] = step(RowInputs(*columns), shape)

        self._inputs.clear()
        self._recorded[shape] = recorder.record(run)

    def run(self, rows: Sequence[Rows]) -> bool:
        """Runs one step; False if no recording holds it."""
        lines = [
            (r.slot, offset, token, len(r.tokens))
            for r in rows
            for offset, token in enumerate(r.tokens)
        ]
        length = max(r.start + len(r.tokens) for r in rows)
        fitting = (s for s in self._recorded if s.rows >= len(lines) and s.context >= length)
        shape = min(fitting, default=None)
        if shape is None:
            return False
        self._inputs.fill(lines, shape.rows)
        self._recorded[shape]()
        self.num_replays += 1
        return True
