"""Batches from worker processes, drawn ahead of the trainer. Knows no torch.

A batch holds rows of one length. Which length comes next follows the run's progress, which workers
read from shared memory: long documents come in once short ones are understood.
"""

import hashlib
import multiprocessing
import queue
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relight.text.dialect import Encoding
from relight.text.tokenizer import Tokenizer
from training.rows import Row, RowMaker

Purpose = Literal["backbone", "draft"]
"""What is to learn from it."""

LENGTHS = (256, 512, 1024, 4096)
SHARES = ((0.0, (20, 40, 38, 2)), (0.25, (18, 26, 38, 18)), (0.5, (18, 22, 36, 24)))
"""From this progress on: percent of the tokens in rows of each length."""

DRAFT_SHARES = ((0.0, (20, 38, 40, 2)),)
DRAFT_KINDS = "aaaaalllltttttppp"
"""A draft is to guess what is said most, and reads a window only: chats and calls, and little of
what the backbone needs to learn to look back."""

AHEAD = 48
"""Batches that wait at most: 200 KB each."""


@dataclass(frozen=True, slots=True)
class Batch:
    ids: npt.NDArray[np.uint16]  # [rows, length + 1]
    tags: npt.NDArray[np.uint8]  # [rows, length]


def draw_batch(
    maker: RowMaker, rng: Random, progress: float, tokens: int, purpose: Purpose = "backbone"
) -> Batch:
    """Deterministic in its arguments."""
    table, draw = MIXES[purpose]
    shares = next(s for start, s in reversed(table) if progress >= start)
    length = rng.choices(LENGTHS, shares)[0]
    rows = [draw(maker, rng, length) for _ in range(max(tokens // length, 1))]
    return Batch(np.stack([row.ids for row in rows]), np.stack([row.tags for row in rows]))


def _draw_row(maker: RowMaker, rng: Random, length: int) -> Row:
    kind = rng.random()
    if length == 256:
        return (maker.recall_row if kind < 0.3 else maker.thinking_row)(rng, length)
    if length == 512:
        return (maker.recall_row if kind < 0.5 else maker.chat_row)(rng, length)
    if length == 1024 and kind < 0.62:
        return maker.tools_row(rng, length)
    if kind < (0.75 if length == 1024 else 0.15):
        return maker.recall_row(rng, length)
    if kind < 0.95:
        return maker.key_row(rng, length)
    return maker.chat_row(rng, length)


def _draw_draft_row(maker: RowMaker, rng: Random, length: int) -> Row:
    kind = rng.random()
    if length == 4096 and kind < 0.4:
        return maker.key_row(rng, length)
    if kind < 0.12:
        return maker.recall_row(rng, length)
    if length == 256:
        return maker.thinking_row(rng, length)
    if length == 1024 and kind < 0.9:
        return maker.tools_row(rng, length, asked=0.2)
    return maker.chat_row(rng, length, DRAFT_KINDS)


MIXES = {"backbone": (SHARES, _draw_row), "draft": (DRAFT_SHARES, _draw_draft_row)}


def _work(
    folder: Path,
    encoding: Encoding,
    seed: str,
    tokens: int,
    purpose: Purpose,
    progress: Any,
    batches: Any,
) -> None:
    maker = RowMaker(Tokenizer.load(folder), encoding)
    number = 0
    while True:
        batch = draw_batch(maker, Random(f"{seed} {number}"), progress.value, tokens, purpose)
        batches.put((batch.ids, batch.tags))
        number += 1


class Stream:
    """`num_workers` processes; `next` waits for a batch, `waited_s` sums up how long."""

    def __init__(
        self,
        folder: Path,
        encoding: Encoding,
        seed: int,
        tokens: int,
        num_workers: int,
        purpose: Purpose = "backbone",
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._progress = context.Value("d", 0.0)
        self._batches = context.Queue(AHEAD)
        self.waited_s = 0.0
        self._processes = [
            context.Process(
                target=_work,
                args=(
                    folder,
                    encoding,
                    f"{seed} {worker}",
                    tokens,
                    purpose,
                    self._progress,
                    self._batches,
                ),
                daemon=True,
            )
            for worker in range(num_workers)
        ]
        for process in self._processes:
            process.start()

    def next(self, progress: float) -> Batch:
        self._progress.value = progress
        start = time.monotonic()
        while True:
            try:
                ids, tags = self._batches.get(timeout=5)
                break
            except queue.Empty:
                if not any(process.is_alive() for process in self._processes):
                    raise RuntimeError("all data workers have died; see their output") from None
        self.waited_s += time.monotonic() - start
        return Batch(ids, tags)

    def close(self) -> None:
        """Ends the workers at once: they hold nothing but batches that nobody will read."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


def data_hash(folder: Path, encoding: Encoding, seed: int, purpose: Purpose = "backbone") -> str:
    """Of a few batches in every phase: the same recipe and tokenizer give the same one."""
    maker = RowMaker(Tokenizer.load(folder), encoding)
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes())
    for start, _ in MIXES[purpose][0]:
        for number in range(4):
            batch = draw_batch(maker, Random(f"{seed} 0 {number}"), start, 4096, purpose)
            digest.update(batch.ids.tobytes())
            digest.update(batch.tags.tobytes())
    return digest.hexdigest()
