"""Runs an engine in this process, step by step, for checks. Knows no check."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch

from relight.base.config import read_config
from relight.base.errors import StepFailed
from relight.base.packaged import model_folder
from relight.base.settings import Settings
from relight.base.types import Logprobs, Request, SamplingParams
from relight.cache.layout import PAGE_TOKENS, layout
from relight.engine.assemble import assemble, choose_device, choose_numerics
from relight.engine.loop import Loop
from relight.engine.plan import Draw, PageWrite, Rows, Scored, SetLength, StepPlan
from relight.lab.audit import Answer

SCORED = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20)


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

    def scores(
        self, prompt: Sequence[int], made: Sequence[int], widths: Iterable[int]
    ) -> list[list[Logprobs]]:
        """The prompt is read once: behind it, rows are written again at each width."""
        count = len(prompt)
        pages = tuple(range(1, 2 + (count + len(made)) // PAGE_TOKENS))
        self._loop.execute(
            StepPlan(
                step=-1,
                lengths=(SetLength(0, 0),),
                pages=(PageWrite(0, 0, pages),),
                given=(Rows(0, 0, tuple(prompt)),),
            )
        )
        return [self._scores(count, made, width) for width in widths]

    def _scores(self, start: int, made: Sequence[int], width: int) -> list[Logprobs]:
        told: list[Logprobs] = []
        lengths = (SetLength(0, start),)
        for first in range(0, len(made), width):
            tokens = tuple(made[first : first + width])
            at, guesses = start + first, len(tokens) - 1
            plan = StepPlan(
                step=-1,
                lengths=lengths if first == 0 else (),
                made=(Rows(0, at, tokens, sample=True, proposed=guesses),),
                draws=tuple(Draw(0, at + 1 + place, SCORED) for place in range(len(tokens))),
            )
            results = self._loop.execute(plan)
            scored = [result for result in results if isinstance(result, Scored)]
            assert len(scored) == len(tokens), (
                "a row has no finite logits: there is nothing to compare"
            )
            told += [result.logprobs for result in scored]
        return told


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
