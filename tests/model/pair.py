"""A network over cached state beside the float32 network without one. Knows neither by name."""

import random
from typing import Protocol

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.model.reference_parts import Trace
from tests.model.harness import Driver

TOLERANCE = 1e-4  # on logits of scale 7
NOISE = 5e-6  # of margins in float32: below it the two may choose apart


class Reference(Protocol):
    def forward(self, ids: Tensor, trace: Trace | None = None) -> Tensor: ...


class Pair:
    """The same weights as a cached model and as a reference."""

    def __init__(self, config: ModelConfig, driver: Driver, reference: Reference) -> None:
        self.config, self.driver, self.reference = config, driver, reference
        self.total = self.skipped = 0
        self._known: dict[tuple[int, ...], tuple[Tensor, Trace]] = {}

    def expected(self, tokens: tuple[int, ...]) -> tuple[Tensor, Trace]:
        """Logits and trace of a whole sequence."""
        if tokens not in self._known:
            trace = Trace()
            with torch.inference_mode():
                logits = self.reference.forward(torch.tensor(tokens), trace)
            self._known[tokens] = logits, trace
        return self._known[tokens]

    def check(self, got: Tensor, tokens: tuple[int, ...], start: int = 0) -> None:
        """Logits of rows `start` on. The first row that differs must be one whose choice of entries
        or experts hangs on the last digits; the rest of its sequence follows from it."""
        want, trace = self.expected(tokens)
        want = want[start : start + got.shape[0]]
        scale = max(1.0, float(want.abs().max()) / 7)
        difference = (got.cpu() - want).abs().amax(1)
        self.total += got.shape[0]
        wrong = (difference > TOLERANCE * scale).nonzero().flatten().tolist()
        if not wrong:
            return
        row = start + wrong[0]
        flipped = torch.stack(margins(trace)).amin(0)[: row + 1].min()
        assert flipped < NOISE, f"row {row} differs by {difference[wrong[0]]:.1e} at {flipped:.1e}"
        self.skipped += got.shape[0] - wrong[0]
        assert self.skipped < 0.15 * self.total, f"{self.skipped} rows hang on the last digits"

    def tokens(self, seed: int, count: int) -> tuple[int, ...]:
        draw = random.Random(seed)
        return tuple(draw.randrange(self.config.vocab_size) for _ in range(count))


def margins(trace: Trace) -> list[Tensor]:
    """Of every choice: experts, entries, and blocks of candidates if there are any."""
    found = [layer.routing.margin[0] for layer in trace.layers]
    for selection in (layer.selection for layer in trace.layers if layer.selection):
        found.append(selection.margin[0])
        if selection.candidate_margin is not None:
            found.append(selection.candidate_margin[0])
    return found
