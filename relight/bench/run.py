"""One measured run of a scenario against a server: from the canary to the result. Knows no terminal
and no file."""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from relight.base.errors import BadSetting, Unavailable
from relight.bench import conversation, load, machine, prompts, server, trace
from relight.bench.about import about
from relight.bench.client import Client
from relight.bench.compose import Measured, compose
from relight.bench.crew import Crew
from relight.bench.http import Target
from relight.bench.load import Lag
from relight.bench.metrics import Delta
from relight.bench.prompts import Prompt, Scale, Writer
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.scenario import Class, Scenario
from relight.bench.schema import Place
from relight.bench.server import Model
from relight.bench.watch import Point, Watch


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
        clients: int = 1,
        place: Place | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        limits = scenario.limits
        self._to = to
        self._scenario = scenario
        self._wanted = model
        self._nonce = nonce or secrets.token_hex(8)
        if clients > 1 and scenario.until:
            raise BadSetting(
                f"clients is {clients} and until {scenario.until!r}: processes do not know when "
                "another's last request ended; wanted one client",
                param="clients",
            )
        self._clients = clients
        self._place = place
        self._settings: dict[str, Any] = {
            "extra": scenario.body,
            "silence_s": limits.silence_s,
            "total_s": limits.total_s,
            "needs_done": limits.done,
            "needs_usage": limits.usage,
        }
        self._client = Client(to, model, **self._settings)
        self._crew = Crew()
        self.points: list[Point] = []
        self._show = progress
        self._progress = Progress(total=sum(one.requests for one in scenario.classes))
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._client.cancel()
        self._crew.stop()

    async def measure(self) -> tuple[Result, list[Record]]:
        """Raises Unavailable when the server cannot be measured at all."""
        load_before = os.getloadavg()[0]
        writer = Writer(self._scenario, self._nonce)
        self._stage("asking the server")
        before = await server.model(self._to, self._wanted)
        self._client.model = before.id
        canary = await server.canary(self._client, self._scenario.limits)
        if not canary.ok:
            raise Unavailable(
                f"the server lists its models and answers no short prompt: {canary.error}"
            )
        self._stage("learning tokens per character")
        scales = await server.calibrate(
            self._client, writer, self._scenario.classes, before.max_model_len
        )
        made = self._prompts(writer, scales)
        _must_fit(made, before.max_model_len)
        if self._stopped:
            raise Unavailable("the run was stopped before anything was measured")
        warmed = await self._warm_up(writer, scales, made)
        told = await about(self._to)
        has_devices = told.pid is not None
        devices = await asyncio.to_thread(machine.devices) if has_devices else []
        watch = Watch(self._to, told.pid, self._client.started)
        records, lags, delta = await self._window(watch, made)
        self._stage("asking the server again")
        after, alive = await self._afterwards()
        self.points = watch.points
        measured = Measured(
            scenario=self._scenario,
            url=self._to.shown,
            before=before,
            after=after,
            alive=alive,
            corpus_hash=writer.corpus_hash,
            nonce=self._nonce,
            calibrated=all(scale.calibrated for scale in scales.values()),
            prompts=made,
            warmed=warmed,
            records=records,
            lags=lags,
            dialect=watch.dialect.name if watch.dialect else None,
            delta=delta,
            peaks=watch.peaks,
            load_before=load_before,
            complete=not self._stopped,
            about=told,
            after_about=await about(self._to) if after else told,
            points=watch.points,
            capacities=watch.capacities,
            uptime_s=watch.uptime_s,
            energy_j=watch.energy_j,
            running_after=watch.running_after,
            devices=devices,
            devices_after=await asyncio.to_thread(machine.devices) if devices else [],
            place=self._place,
            trace_best_hits=_best_hits(self._scenario),
        )
        return compose(measured), records

    def _prompts(self, writer: Writer, scales: Mapping[str, Scale]) -> list[Prompt]:
        found = []
        for one in self._scenario.classes:
            found += _prompts_of(writer, one, scales[one.name], self._scenario.seed)
        kept = prompts.within(found, self._scenario.seconds)
        self._progress.total = len(kept)
        return kept

    def _stage(self, name: str) -> None:
        self._progress.stage = name
        self._show(self._progress)

    async def _warm_up(
        self, writer: Writer, scales: Mapping[str, Scale], wanted: Sequence[Prompt]
    ) -> int:
        """Cold: other prompts than any that is measured. Warm: every measured prompt, once."""
        self._stage("warming up")
        if self._scenario.cache == "warm":
            extra = [msgspec.structs.replace(p, max_tokens=2, fixed=False) for p in wanted]
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
        self, watch: Watch, wanted: Sequence[Prompt]
    ) -> tuple[list[Record], list[Lag], Delta | None]:
        await watch.begin()
        poll = asyncio.create_task(watch.poll())
        self._stage("measuring")
        try:
            records, lags = await self._send(load.split(self._scenario, wanted, self._clients))
        finally:
            poll.cancel()
            with suppress(asyncio.CancelledError):
                await poll
        delta = await watch.end(sum(r.n_out or 0 for r in records))
        return records, lags, delta

    async def _send(self, shares: Sequence[load.Share]) -> tuple[list[Record], list[Lag]]:
        if self._clients > 1:
            return await self._crew.send(self._client, self._settings, shares, self._seen)
        records, lag = await load.send(self._client, shares[0], self._client.now(), self._seen)
        return records, [lag]

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


def _must_fit(made: Sequence[Prompt], limit: int | None) -> None:
    """Before anything long is sent; raises WarmUpFailed."""
    for prompt in made if limit else ():
        wanted = (prompt.length or 0) + prompt.max_tokens
        if limit and wanted > limit:
            raise WarmUpFailed(
                f"class {prompt.kind} wants {wanted:,} tokens, prompt and answer, and the server "
                f"holds {limit:,}; ask for less with --cell {prompt.kind}.input_tokens=…"
            )


def _prompts_of(writer: Writer, one: Class, scale: Scale, seed: int) -> list[Prompt]:
    if one.trace is not None:
        return trace.prompts(writer, one, scale)
    if one.sessions is not None:
        return conversation.sessions(writer, one, scale)
    return prompts.plain(writer, one, scale, seed)


def _best_hits(scenario: Scenario) -> float | None:
    for one in scenario.classes:
        if one.trace is not None:
            rows, _ = trace.read(Path(one.trace.file), one.requests)
            return trace.best_hits(rows)
    return None
