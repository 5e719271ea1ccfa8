"""Runs an engine in this process, step by step, for checks. Knows no check."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from relight.base.config import read_config
from relight.base.errors import StepFailed
from relight.base.packaged import model_folder
from relight.base.settings import Settings
from relight.base.types import Request
from relight.cache.layout import layout
from relight.engine.assemble import assemble, choose_device, choose_numerics
from relight.engine.loop import Loop
from relight.lab.audit import Answer


class InProcess:
    def __init__(self, loop: Loop, vocab_size: int) -> None:
        self._loop = loop
        self.vocab_size = vocab_size

    @property
    def num_preemptions(self) -> int:
        return self._loop.stats().preemptions

    def run(self, requests: Sequence[Request]) -> list[Answer]:
        """Raises `StepFailed` if a request ends in an error."""
        tokens: dict[str, list[int]] = {request.id: [] for request in requests}
        cached: dict[str, int] = {}
        for request in requests:
            self._loop.add(request)
        while len(cached) < len(requests):
            for delta in self._loop.step():
                tokens[delta.id] += delta.tokens
                if delta.finish == "error":
                    raise StepFailed(delta.error or "a request failed")
                if delta.finish is not None:
                    cached[delta.id] = delta.num_cached
        return [Answer(tuple(tokens[r.id]), cached[r.id]) for r in requests]


@contextmanager
def start_in_process(settings: Settings, *, num_pages: int = 0) -> Iterator[InProcess]:
    """A fresh engine, with so many pages if not 0. The number of torch's threads is put back
    afterwards."""
    threads = torch.get_num_threads()
    config = read_config(model_folder(settings.model) / "config.json").config
    if num_pages:
        numerics = choose_numerics(settings.numerics, choose_device(settings.device))
        page_bytes = layout(config, numerics).page.bytes
        settings = msgspec.structs.replace(settings, cache_bytes=(num_pages + 1) * page_bytes)
    try:
        loop, _ = assemble(settings, lambda done, total: None)
        yield InProcess(loop, config.vocab_size)
    finally:
        torch.set_num_threads(threads)
