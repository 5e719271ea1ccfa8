"""Cases about kinds of load: conversations, traces, mixtures, needles, hours, several processes,
and what a server tells of itself."""

import asyncio
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from relight.base.errors import Unavailable
from relight.bench import mixed, needles, result, soak, trace
from relight.bench.arms import sentinel_of
from relight.bench.figures import good
from relight.bench.http import target
from relight.bench.mixed import Part
from relight.bench.needle import KINDS, Kind
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.run import Run
from relight.bench.scenario import Scenario, Sessions
from relight.bench.selftest.harness import (
    Case,
    Failed,
    demand,
    measure,
    near,
    replying,
    scenario,
)
from relight.bench.selftest.script import Asked, Reply, Script, num_tokens
from relight.bench.selftest.server import ScriptedServer

LOOSE = {"closure_low": 0.0}


async def conversations() -> str:
    """Turns grow upon each other; a cache hits what was said before, and no turn is lost."""
    talks = Sessions(turns=3, shared_tokens=400, turn_tokens=60)
    wanted = scenario(users=2, requests=12, sessions=talks, cache="shared", limits=LOOSE)
    out = await measure(Script(prefix_cache=True), wanted)
    out.must_be_accepted()
    turns = out.result.workload.turns
    demand([one.n for one in turns] == [4, 4, 4], "a turn is missing")
    shares = [one.hit_share or 0.0 for one in turns]
    demand(shares[0] + 0.1 < min(shares[1:]), f"hits by turn are {shares}")
    last = max(good(out.records), key=lambda r: r.n_in or 0)
    demand((last.n_in or 0) > 400 + 150 + 60, "a history was not sent again")
    real = sum(r.n_cached or 0 for r in out.records) / sum(r.n_in or 0 for r in out.records)
    told = near("hit share", out.result.cache.hit_fraction, real, 1e-9)
    blind = await measure(Script(), wanted)
    demand(blind.result.cache.hit_fraction == 0.0, "hits of a server that has no cache")
    return f"{told}; by turn {', '.join(f'{share:.2f}' for share in shares)}"


async def replay() -> str:
    """Recorded times and lengths are kept, and a cache cannot hit more than was shared."""
    rows = [(i * 60, 1100 if i % 2 else 600, 8, [1, 2, 100 + i]) for i in range(12)]
    lines = [
        {"timestamp": t, "input_length": n, "output_length": o, "hash_ids": h}
        for t, n, o, h in rows
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        made = trace.scenario_of(path, scale=2.0, most=0)
        limits = scenario(limits={"hits_cold": 1.0}).limits
        wanted = msgspec.structs.replace(made, limits=limits)
        out = await measure(Script(prefix_cache=True), wanted)
    out.must_be_accepted()
    due = sorted(r.t_sched for r in out.records)
    off = max(abs(moment - due[0] - i * 0.03) for i, moment in enumerate(due))
    demand(off < 1e-4, f"a request was due {off:.3f} s off its recorded time")
    # How late it really came is the machine's doing, and told.
    late = max(r.send_lag or 0.0 for r in out.records)
    told = out.result.itself.send_lag
    demand(told is not None and told.max == late, "how late they were sent is not told")
    best, hits = out.result.workload.trace_best_hits, out.result.cache.hit_fraction
    demand(best is not None and hits is not None, "no hits were told")
    assert best is not None
    assert hits is not None
    demand(0.3 < hits <= best + 0.05, f"hits {hits:.2f} where {best:.2f} are possible")
    return f"hits {hits:.2f} of {best:.2f} possible, sent {late * 1e3:.0f} ms late at most"


async def held_up() -> str:
    """A long prompt holds up short ones: told by the ratio of their times, alone and beside."""
    until = 0.0

    def reply(asked: Asked) -> Reply:
        nonlocal until
        now = asyncio.get_running_loop().time()
        if num_tokens(asked.prompt) > 1000 and asked.max_tokens == 6:
            until = now + 0.8  # who comes meanwhile waits
            return Reply(first_s=0.8, gap_s=0.02)
        return Reply(first_s=0.5 if now < until else 0.05, gap_s=0.001)

    base = scenario(limits={**LOOSE, "lag_s": 0.5, "failed": 0.0})
    wanted = mixed.scenarios(
        base, mixed.Shape(2, 150, 8), mixed.Shape(1, 1200, 6), probe=20.0, rounds=3, after_s=0.2
    )
    async with ScriptedServer(Script(reply=reply)) as server:

        def at(_: Part, one: Scenario) -> tuple[Result, list[Record]]:
            one = msgspec.structs.replace(one, warm_up=1)
            return asyncio.run(Run(target(server.url), one).measure())

        told = await asyncio.to_thread(mixed.measure_all, wanted, at)
    demand(told.long_beside.requests == 2, "the long one did not come a second time")
    ratio = told.short_ttft_ratio or 0.0
    demand(ratio > 1.5, f"a wait of 0.5 s beside one of 0.05 s is told as {ratio:.2f}")
    demand(told.probe_beside.requests > 0, "no probe was under way beside the long one")
    return f"TTFT of short ones beside over alone {ratio:.2f}, {told.probe_beside.requests} probes"


async def by_kind_and_depth() -> str:
    """A server that finds single numbers but at the very end, and half of a chain."""

    def reply(asked: Asked) -> Reply:
        lines = re.findall(r"^(The number of the vault .*|Let .*)\.$", asked.prompt, re.MULTILINE)
        words = " ".join(lines)
        at = asked.prompt.find(lines[0]) / len(asked.prompt) if lines else 1.0
        if lines and lines[0].startswith("Let"):
            return Reply(text=" ".join(re.findall(r"Let (\w+) =", words)[:2]))
        return Reply(text=words if at < 0.8 else "It is not there.")

    kinds: list[Kind] = ["single", "chain"]
    depths = needles.depths_of(3)
    base = scenario()
    async with ScriptedServer(Script(reply=reply)) as server:

        def at(one: Scenario) -> Result:
            return asyncio.run(Run(target(server.url), one).measure())[0]

        told = await asyncio.to_thread(
            needles.search,
            [600, 1200],
            lambda length: needles.scenario_of(base, length, kinds, depths, 1, 8),
            at,
            kinds=kinds,
            depths=depths,
            least=0.9,
        )
    demand(len(told.lengths) == 2, "a length is missing")
    for length in told.lengths:
        near("score of single", length.score("single"), 2 / 3, 1e-6)
        near("score of chain", length.score("chain"), 0.5, 1e-6)
        asked = sum(cell.asked for cell in length.cells)
        demand(asked == 6, f"{asked} needles of 6 were asked for")
        blind = [c.score for c in length.cells if c.kind == "single" and c.depth == 1.0]
        demand(blind == [0.0], "the blind depth is not told")
    demand(any("wanted 90" in fault for fault in told.faults), "a low score passed")
    demand(len(KINDS) == 5, "kinds are missing")
    return f"score {told.score:.2f} where {(2 / 3 + 0.5) / 2:.2f} was scripted"


async def ageing() -> str:
    """Every window is sound and the server slower each time: the sentinel's trend tells it."""
    looks, hours = 0, 0.0

    def reply(asked: Asked) -> Reply:
        nonlocal looks
        looks += asked.max_tokens == 4  # each run begins and ends with a canary
        return Reply(first_s=0.01, gap_s=0.004 + 0.001 * (looks // 2))

    wanted = scenario(requests=480, users=2, limits=LOOSE, cache="shared")
    window, small = soak.window_of(wanted, 0.25), sentinel_of(wanted)
    async with ScriptedServer(Script(reply=reply)) as server:

        def at(part: str) -> Result:
            nonlocal hours
            hours += part == "window"
            one = window if part == "window" else small
            return asyncio.run(Run(target(server.url), one).measure())[0]

        told = await asyncio.to_thread(soak.run, at, lambda: hours, 4.0, 0.1)
    demand(len(told.windows) == 4, f"there were {len(told.windows)} windows of 4")
    bad = [w.status for w in told.windows if w.status != "valid"]
    demand(not bad, f"a sound window is {bad}: {told.faults}")
    found = told.sentinel_tpot
    demand(found is not None and found.change > 0.2, f"the trend is {found}")
    demand(any("sentinel" in fault for fault in told.faults), "the slowing was not told")
    return f"{len(told.windows)} windows; {told.faults[-1]}"


async def processes() -> str:
    """Two client processes send all there is, once, on one clock, and tell each its own lag."""
    wanted = scenario(users=4, requests=16)
    out = await measure(Script(), wanted, clients=2)
    out.must_be_accepted()
    demand(out.result.protocol.clients == 2, "one process sent all")
    demand(len(out.result.itself.cpu_shares) == 2, "a process told no share of a core")
    ids = {r.id for r in out.records}
    demand(len(ids) == len(out.server.measured) == 16, f"{len(ids)} of 16 were sent")
    real = statistics.fmean(s.writes[0][0] - s.arrived for s in out.server.measured)
    mean = out.result.client.ttft.mean if out.result.client.ttft else None
    return near("TTFT by two processes", mean, real)


async def drafts_told() -> str:
    """What each answer tells gives two means, which differ where answers do; and a draft that is
    cut short has another rate given that it was drafted."""
    few, many = (0, 4), (6, 2)  # verifications that accepted no draft, and one

    def reply(asked: Asked) -> Reply:
        return Reply(histogram=few if asked.number % 2 else many)

    script = Script(reply=reply, spec_depth=2, spec_accept=(0.6, 0.3), spec_drafted=(1.0, 0.5))
    out = await measure(script, scenario(corpus={"code": 1}))
    out.must_be_accepted()
    spec = out.result.spec
    assert spec is not None
    told = near("mean over requests", spec.al_mean_req, (2.0 + 1.25) / 2, 1e-9)
    (own,) = spec.slices
    near("pooled over verifications", own.al_pooled, 1 + 6 / 12, 1e-9)
    near("given that it was drafted", spec.per_pos_given_drafted[1], 0.6, 1e-6)
    near("over all verifications", spec.per_pos_uncond[1], 0.3, 1e-6)
    # The same without counters.
    script = Script(reply=reply, dialect="none")
    alone = (await measure(script)).result.spec
    demand(alone is not None and alone.source == "response", "answers were not used")
    assert alone is not None
    return f"{told}, {near('pooled', alone.al_pooled, 1.5, 1e-9)}"


async def settings_seen() -> str:
    """A setting is looked up where the server tells its own, and its secrets are not stored."""
    secret = "a-key-that-nobody-may-see"
    told = {"server_args": {"max_num_seqs": 8, "api_key": secret}, "version": "1.2 sk-abcdefgh123"}
    path = "server_args.max_num_seqs"
    sound = await measure(Script(settings=told), scenario(expect={"settings": {path: 8}}))
    sound.must_be_accepted()
    out = await measure(Script(settings=told), scenario(expect={"settings": {path: 64}}))
    why = out.must_be_rejected_by("T17")
    with TemporaryDirectory() as folder:
        file = result.write(Path(folder), out.result, out.records, "")
        stored = b"".join(path.read_bytes() for path in file.parent.iterdir()).decode()
    demand(secret not in stored and "sk-abcdefgh123" not in stored, "a secret was stored")
    demand(out.result.server.version is not None, "the version was not stored")
    return why


async def floors() -> str:
    wanted = scenario(limits={"mem_available_gib": 1e6})
    return (await measure(Script(), wanted)).must_be_rejected_by("T29")


async def unreadable() -> str:
    """Metrics that are no metrics leave figures unknown, and break nothing."""
    out = await measure(Script(garbage=True))
    out.must_be_accepted()
    demand(out.result.cache.hit_fraction is not None, "usage tells hits where metrics do not")
    ids = {check.id for check in out.result.validity.checks if check.ok is None}  # type: ignore[union-attr]
    demand("T2" in ids, "engine figures were made of garbage")
    return f"unchecked: {', '.join(sorted(ids))}"


async def leaving() -> str:
    """Clients that go away in the middle are no fault of the server; to go on for them is one."""
    wanted = scenario(requests=16, leave=0.5, output_tokens=30, limits=LOOSE)
    out = await measure(replying(gap_s=0.02), wanted)
    out.must_be_accepted()
    counts = out.result.counts
    left = counts.failures.get("cancelled", 0)
    demand(left > 0 and counts.ok + left == 16, f"{counts.ok} ended and {left} left, of 16")
    demand(all(len(r.chunks) < 30 for r in out.records if not r.ok), "nobody left early")
    script = replying(gap_s=0.15)
    script.keeps_left = True
    many = scenario(requests=8, leave=0.95, output_tokens=30, limits=LOOSE)
    told = (await measure(script, many)).must_be_rejected_by("left")
    return f"{left} of 16 left; {told}"


async def uncounted() -> str:
    """A server that tells no usage is refused, unless that is declared: then an answer that ended
    by its length has the tokens that were asked for, and its tokenizer measures the prompts."""

    def reply(asked: Asked) -> Reply:
        return Reply(ending="no_usage", finish="stop" if asked.number == 5 else "length")

    # Without the word none is measured at all: even the canary has no usage.
    try:
        await measure(Script(reply=reply))
    except Unavailable as problem:
        told = problem.message
    else:
        raise Failed("a server without usage was measured")
    wanted = scenario(limits={"usage": False})
    out = await measure(Script(reply=reply, dialect="none", tokenizes=True), wanted)
    out.must_be_rejected_by("T3", "T4")
    demand(out.result.counts.failures == {"length": 1}, f"{out.result.counts.failures}")
    demand(out.result.tokens.out_usage == 7 * 8, "tokens by length are not 7 x 8")
    lengths = [num_tokens(s.asked.prompt) for s in out.server.measured]
    near("prompt tokens", statistics.fmean(lengths), 150, 20)
    return told


async def gone() -> str:
    """A server that dies within the run: what was measured is kept, and told to be invalid."""
    servers: list[ScriptedServer] = []

    def reply(asked: Asked) -> Reply:
        if asked.measured and asked.number == 6:
            asyncio.get_running_loop().create_task(servers[0].stop())
        return Reply()

    script = Script(reply=reply)
    async with ScriptedServer(script) as server:
        servers.append(server)
        told, records = await Run(target(server.url), scenario(requests=12)).measure()
    assert told.validity is not None
    demand(told.validity.status == "invalid", f"a dead server's run is {told.validity.status}")
    demand(len(records) == 12, f"{len(records)} of 12 requests are rows")
    demand(told.counts.ok > 0, "what went well was lost")
    kinds: Callable[[Record], str] = lambda r: r.failure or "ok"  # noqa: E731
    try:
        await Run(target(server.url), scenario()).measure()
    except Unavailable as problem:
        return f"{sorted(set(map(kinds, records)))}; afterwards: {problem.message}"
    raise Failed("a server that is gone was measured")


CASES = (
    Case("T9b", "a long prompt holds up short ones", "recovered", held_up),
    Case("T16c", "windows that are sound, and ever slower", "rejected", ageing),
    Case("T17b", "a setting that is not in effect; no secret is stored", "rejected", settings_seen),
    Case("T20b", "what conversations and their cache do", "recovered", conversations),
    Case("T28b", "found by kind and depth", "recovered", by_kind_and_depth),
    Case("T29", "the server's machine has less than it must keep", "rejected", floors),
    Case("T32b", "acceptance by request, verification and position", "recovered", drafts_told),
    Case("T35b", "recorded arrivals keep their times", "recovered", replay),
    Case("T38b", "several client processes", "recovered", processes),
    Case("left", "requests that run on though their client left", "rejected", leaving),
    Case("T36b", "a server that counts no tokens", "rejected", uncounted),
    Case("gone", "a server that dies within the run", "rejected", gone),
    Case("unreadable", "metrics that are none", "accepted", unreadable),
)
