"""One measured run of a scenario against a server: from the canary to the result. Knows no terminal
and no file."""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from relight.base.errors import Unavailable
from relight.bench import load, server
from relight.bench.client import Client, Prompt
from relight.bench.compose import Measured, compose
from relight.bench.http import Target
from relight.bench.load import Lag
from relight.bench.metrics import Delta
from relight.bench.prompts import Scale, Writer
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.scenario import Scenario
from relight.bench.server import Model, Watch


class WarmUpFailed(Unavailable):
    """The server answers short prompts and not those of the scenario."""


class Progress(msgspec.Struct):
    """What a terminal shows while a run goes on."""

    stage: str = "starting"
    total: int = 0
    done: int = 0
    failed: int = 0
    out_tokens: int = 0
    last_ttft: float | None = None


class Run:
    """`measure` once; `stop` ends it early, with a partial result."""

    def __init__(
        self,
        to: Target,
        scenario: Scenario,
        *,
        model: str = "",
        nonce: str = "",
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        limits = scenario.limits
        self._to = to
        self._scenario = scenario
        self._wanted = model
        self._nonce = nonce or secrets.token_hex(8)
        self._client = Client(
            to,
            model,
            extra=scenario.body,
            silence_s=limits.silence_s,
            total_s=limits.total_s,
            needs_done=limits.done,
        )
        self._show = progress
        self._progress = Progress(total=sum(one.requests for one in scenario.classes))
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._client.cancel()

    async def measure(self) -> tuple[Result, list[Record]]:
        """Raises Unavailable when the server cannot be measured at all."""
        load_before = os.getloadavg()[0]
        self._stage("asking the server")
        before = await server.model(self._to, self._wanted)
        self._client.model = before.id
        canary = await server.canary(self._client, self._scenario.limits)
        if not canary.ok:
            raise Unavailable(
                f"the server lists its models and answers no short prompt: {canary.error}"
            )
        writer = Writer(self._scenario, self._nonce)
        self._stage("learning tokens per character")
        scales = await server.calibrate(
            self._client, writer, self._scenario.classes, before.max_model_len
        )
        prompts = [
            writer.prompt(one, scales[one.name])
            for one in self._scenario.classes
            for _ in range(one.requests)
        ]
        warmed = await self._warm_up(writer, scales, prompts)
        watch = Watch(self._to)
        records, lag, delta = await self._window(watch, prompts)
        self._stage("asking the server again")
        after, alive = await self._afterwards()
        measured = Measured(
            scenario=self._scenario,
            url=self._to.shown,
            before=before,
            after=after,
            alive=alive,
            corpus_hash=writer.corpus_hash,
            nonce=self._nonce,
            calibrated=all(scale.calibrated for scale in scales.values()),
            prompts=prompts,
            warmed=warmed,
            records=records,
            lag=lag,
            dialect=watch.dialect.name if watch.dialect else None,
            delta=delta,
            peaks=watch.peaks,
            load_before=load_before,
            complete=not self._stopped,
        )
        return compose(measured), records

    def _stage(self, name: str) -> None:
        self._progress.stage = name
        self._show(self._progress)

    async def _warm_up(
        self, writer: Writer, scales: Mapping[str, Scale], prompts: Sequence[Prompt]
    ) -> int:
        """Cold: other prompts than any that is measured. Warm: every measured prompt, once."""
        self._stage("warming up")
        if self._scenario.cache == "warm":
            extra = [msgspec.structs.replace(p, max_tokens=2, fixed=False) for p in prompts]
        else:
            shapes = self._scenario.classes
            one = min(shapes, key=lambda c: c.input_tokens)
            extra = [writer.prompt(one, scales[one.name]) for _ in range(self._scenario.warm_up)]
        for start in range(0, len(extra), 8):
            batch = extra[start : start + 8]
            told = await asyncio.gather(*(self._client.ask(prompt) for prompt in batch))
            for record in told:
                if record.failure and record.failure not in ("length", "cancelled"):
                    why = f"{record.failure}, {record.error}"
                    raise WarmUpFailed(f"a warm-up request failed: {why}")
        return len(extra)

    async def _window(
        self, watch: Watch, prompts: Sequence[Prompt]
    ) -> tuple[list[Record], Lag, Delta | None]:
        await watch.begin()
        poll = asyncio.create_task(watch.poll())
        self._stage("measuring")
        try:
            records, lag = await load.send(self._client, self._scenario, prompts, self._seen)
        finally:
            poll.cancel()
            with suppress(asyncio.CancelledError):
                await poll
        delta = await watch.end(sum(r.n_out or 0 for r in records))
        return records, lag, delta

    def _seen(self, record: Record) -> None:
        self._progress.done += 1
        self._progress.failed += not record.ok
        self._progress.out_tokens += record.n_out or 0
        self._progress.last_ttft = record.ttft
        self._show(self._progress)

    async def _afterwards(self) -> tuple[Model | None, bool]:
        alive = await server.canary(self._client, self._scenario.limits)
        try:
            return await server.model(self._to, self._client.model), alive.ok
        except Unavailable:
            return None, alive.ok
