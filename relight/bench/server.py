"""What a server says of itself: its models, its metrics, and whether it really answers. Knows no
load."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from relight.base.errors import Unavailable
from relight.bench import http, metrics
from relight.bench.client import Client, Prompt
from relight.bench.http import Target
from relight.bench.metrics import Delta, Dialect, Series
from relight.bench.prompts import Scale, Writer
from relight.bench.record import Record
from relight.bench.scenario import Class, Limits

POLL_S = 1.0
SETTLE_S = 1.0
CANARY = "Count from one to nine."
PROBE_TOKENS = (300, 1500)


class Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None
    fingerprint: str


async def model(to: Target, wanted: str) -> Model:
    """The model named `wanted`, or the only one. Raises Unavailable with what was found."""
    data = await http.get(to, "/v1/models")
    if data is None:
        raise Unavailable(f"{to.shown}/v1/models does not answer 200 within ten seconds")
    try:
        cards: list[dict[str, Any]] = msgspec.json.decode(data)["data"]
        names = [str(card["id"]) for card in cards]
    except (msgspec.DecodeError, KeyError, TypeError) as problem:
        raise Unavailable(f"{to.shown}/v1/models is no list of models: {problem!r}") from problem
    if wanted not in names and (wanted or len(names) != 1):
        raise Unavailable(f"model is {wanted!r}; the server has {names}; name one with --model")
    card = cards[names.index(wanted)] if wanted else cards[0]
    limit = card.get("max_model_len")
    # `created` is the start of the server with many of them: a restart shows.
    known = {key: card.get(key) for key in ("id", "created", "root", "max_model_len", "owned_by")}
    mark = hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()[:16]
    return Model(str(card["id"]), limit if isinstance(limit, int) else None, mark)


async def canary(client: Client, limits: Limits) -> Record:
    """Four tokens of an answer, within `canary_s`: health that generates. A `/health` of 200 says
    only that a process listens."""
    prompt = Prompt(0, "canary", CANARY, 4, fixed=False)
    short = client.within(limits.canary_s)
    return await short.ask(prompt)


async def calibrate(
    client: Client, writer: Writer, classes: Sequence[Class], limit: int | None
) -> dict[str, Scale]:
    """Learns for each class how many tokens a character makes, through the server's own template:
    the slope from a shorter and a longer prompt, both far within the server's `limit`, then the
    rest from a prompt of the class's own length. Uncalibrated where usage does not tell."""
    seen: list[tuple[int, int]] = []
    for tokens in PROBE_TOKENS:
        size = min(tokens, limit * tokens // 4000) if limit else tokens
        prompt = writer.prompt(classes[0], Scale(), input_tokens=size, max_tokens=2, fixed=False)
        seen.append((len(prompt.text), (await client.ask(prompt)).n_in or 0))
    (short, few), (long, many) = seen
    if few == 0 or long <= short or many <= few:
        return {one.name: Scale() for one in classes}
    slope = (many - few) / (long - short)
    scales = {}
    for one in classes:
        scale = Scale(few - slope * short, slope, calibrated=True)
        if one.input_tokens <= PROBE_TOKENS[-1]:
            prompt = writer.prompt(one, scale, max_tokens=2, fixed=False)
            told = (await client.ask(prompt)).n_in or one.input_tokens
            scale = Scale(told - slope * len(prompt.text), slope, calibrated=True)
        scales[one.name] = scale
    return scales


class Watch:
    """Reads `/metrics` before, during and after a window."""

    def __init__(self, to: Target) -> None:
        self._to = to
        self._before: Series = {}
        self._resets: set[str] = set()
        self.dialect: Dialect | None = None
        self.peaks: dict[str, float] = {}

    async def begin(self) -> None:
        self._before = await self._read()
        self.dialect = metrics.dialect_of(self._before)

    async def poll(self) -> None:
        """Until cancelled: the largest value of each gauge, and restarts within the window."""
        last = self._before
        while self.dialect is not None:
            await asyncio.sleep(POLL_S)
            series = await self._read()
            for key, value in metrics.gauges(series, self.dialect).items():
                self.peaks[key] = max(self.peaks.get(key, 0.0), value)
            self._resets.update(metrics.delta(last, series, self.dialect).resets)
            last = series

    async def end(self, out_tokens: int) -> Delta | None:
        """A server may count an answer a moment after it sent its last byte."""
        if self.dialect is None:
            return None
        for _ in range(10):
            found = metrics.delta(self._before, await self._read(), self.dialect)
            if found.counters.get("generation_tokens", out_tokens) >= out_tokens:
                break
            await asyncio.sleep(SETTLE_S / 10)
        resets = sorted({*found.resets, *self._resets})
        return msgspec.structs.replace(found, resets=resets)

    async def _read(self) -> Series:
        data = await http.get(self._to, "/metrics")
        return metrics.parse((data or b"").decode("utf-8", "replace"))
