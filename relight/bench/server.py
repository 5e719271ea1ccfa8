"""What a server says of its models, whether it really answers, and how it counts tokens. Knows no
load."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from relight.base.errors import Unavailable
from relight.bench import http
from relight.bench.client import Client
from relight.bench.http import Target
from relight.bench.prompts import Prompt, Scale, Writer
from relight.bench.record import Record
from relight.bench.scenario import Class, Limits

CANARY = "Count from one to nine."
PROBE_TOKENS = (300, 1500)
"""The longer of two probes is as long as the longest class, within these bounds: a slow server
should not read more for the probes than for what is measured."""


class Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None
    fingerprint: str
    revision: str | None = None


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
    revision = card.get("revision")
    return Model(
        str(card["id"]),
        limit if isinstance(limit, int) else None,
        mark,
        revision if isinstance(revision, str) else None,
    )


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
    for each corpus the slope from a shorter and a longer prompt, both far within the server's
    `limit`, then the rest from a prompt of the class's own length. Where usage does not tell, the
    server's tokenizer does if it can be asked, less the template; else it is uncalibrated."""
    known: dict[int, Scale] = {}
    scales = {}
    low, high = PROBE_TOKENS
    longest = min(max(low, *(one.input_tokens for one in classes)), high)
    for one in classes:
        corpus = id(writer.corpus(one.name))
        if corpus not in known:
            known[corpus] = await _probe(client, writer, one, longest, limit)
        scale = known[corpus]
        if (
            scale.calibrated
            and scale.overhead
            and 0 < one.input_tokens <= PROBE_TOKENS[-1]
            and not one.text
        ):
            prompt = writer.prompt(one, scale, max_tokens=2, fixed=False)
            told = (await client.ask(prompt)).n_in or one.input_tokens
            rest = told - scale.slope * len(prompt.text)
            scale = Scale(rest, scale.slope, calibrated=True)
        scales[one.name] = scale
    return scales


async def _probe(
    client: Client, writer: Writer, one: Class, longest: int, limit: int | None
) -> Scale:
    seen: list[tuple[int, int]] = []
    for tokens in (longest // 3, longest):
        size = min(tokens, limit * tokens // (3 * longest)) if limit else tokens
        prompt = writer.prompt(one, Scale(), input_tokens=size, max_tokens=2, fixed=False)
        seen.append((len(prompt.text), (await client.ask(prompt)).n_in or 0))
    (short, few), (long, many) = seen
    if few == 0 and (many := await count_tokens(client.to, client.model, prompt.text)):
        return Scale(0.0, many / long, calibrated=True)
    if few == 0 or long <= short or many <= few:
        return Scale()
    slope = (many - few) / (long - short)
    return Scale(few - slope * short, slope, calibrated=True)


async def count_tokens(to: Target, model: str, text: str) -> int:
    """As the server's tokenizer counts them, without a template; 0 where there is none to ask. The
    routes are those of vLLM, of llama-cpp-python and of llama.cpp."""
    for route, body in (
        ("/tokenize", {"model": model, "prompt": text}),
        ("/extras/tokenize/count", {"model": model, "input": text}),
        ("/tokenize", {"content": text}),
    ):
        data = await http.get(to, route, body=msgspec.json.encode(body))
        try:
            told = msgspec.json.decode(data or b"{}")
        except msgspec.DecodeError:
            continue
        if isinstance(told, dict) and isinstance(told.get("count"), int):
            return int(told["count"])
        if isinstance(told, dict) and told.get("tokens"):
            return len(told["tokens"])
    return 0
