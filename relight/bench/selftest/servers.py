"""Cases about what a server holds back: caches, slots, queues, flags, restarts."""

from relight.base.errors import Unavailable
from relight.bench.compare import changed_text, unlike
from relight.bench.selftest.harness import (
    Case,
    Failed,
    demand,
    measure,
    near,
    replying,
    scenario,
)
from relight.bench.selftest.script import Asked, Reply, Script


async def fake_prefill() -> str:
    """A cache answers; by the server's counters, and by usage where there are none."""
    for dialect in ("vllm", "sglang", "none"):
        script = replying(cached=120)
        script.dialect = dialect
        told = (await measure(script)).must_be_rejected_by("T1")
    return told


async def own_warm_up() -> str:
    """Two runs with equal seeds on a server that caches: no prompt is another's prefix."""
    script = Script(prefix_cache=True)
    begins = []
    for nonce in ("first", "second"):
        out = await measure(script, nonce=nonce)
        out.must_be_accepted()
        begins += [s.asked.prompt[:32] for s in out.server.served if len(s.asked.prompt) > 100]
    demand(len(begins) >= 18, f"{len(begins)} prompts were long; two runs measure eight each")
    demand(len(set(begins)) == len(begins), "two prompts begin alike")
    return near("hit fraction", out.result.cache.hit_fraction, 0.0, 0.0)


async def same_nonce() -> str:
    """The trap itself: the same prompts twice on a server that caches."""
    script = Script(prefix_cache=True)
    await measure(script, nonce="again")
    return (await measure(script, nonce="again")).must_be_rejected_by("T1")


async def forgotten_flag() -> str:
    """A warm test on a server that reads everything anew."""
    out = await measure(Script(), scenario(cache="warm"))
    return out.must_be_rejected_by("T19")


async def cold_and_warm() -> str:
    cold = await measure(Script(prefix_cache=True))
    warm = await measure(Script(prefix_cache=True), scenario(cache="warm"))
    cold.must_be_accepted()
    warm.must_be_accepted()
    found = unlike(cold.result, warm.result)
    demand(any(line.startswith("cache") for line in found), "cold and warm were comparable")
    hits = warm.result.cache.hit_fraction
    demand((hits or 0.0) > 0.5, f"the warm run's hits are {hits}")
    return f"warm hits {hits:.2f}; comparison refused: {found[0]}"


async def few_slots() -> str:
    """Four users on two slots: two decode, whatever is configured."""
    script = replying(first_s=0.001, gap_s=0.02)
    script.slots = 2
    out = await measure(script, scenario(requests=16, expect={"slots": 1}))
    told = out.must_be_rejected_by("T6")
    busy = sum(s.writes[-1][0] - s.writes[0][0] for s in out.server.measured)
    span = out.result.protocol.window_s
    rate = out.result.throughput
    return f"{near('implied slots', rate.implied_running, busy / span, 0.1)}; {told}"


async def more_users() -> str:
    """Past the slots, users only wait: rate stays, TTFT grows."""
    rates, firsts = [], []
    for users in (2, 6):
        script = replying(first_s=0.02, gap_s=0.01)
        script.slots = 2
        out = await measure(script, scenario(users=users, requests=12, limits={"closure_low": 0}))
        out.must_be_accepted()
        rates.append(out.result.throughput.out_tok_s)
        firsts.append(out.result.client.ttft.mean if out.result.client.ttft else 0.0)
        running = out.result.throughput.implied_running or 0.0
        demand(running <= 2.05, f"{running:.2f} requests ran on two slots")
    demand(firsts[1] > 2 * firsts[0], f"TTFT {firsts}: the queue is not seen")
    demand(rates[1] < 1.5 * rates[0], f"rates {rates}: users made slots")
    return f"TTFT {firsts[0]:.3f} and {firsts[1]:.3f} s at {rates[0]:.0f} and {rates[1]:.0f} tok/s"


async def hidden_queue() -> str:
    script = replying(first_s=0.05, gap_s=0.01)
    script.slots = 1
    out = await measure(script, scenario(limits={"closure_low": 0}))
    out.must_be_accepted()
    queue = out.result.engine.queue if out.result.engine else None
    waits = [served.started - served.arrived for served in out.server.measured]
    return near("queue", queue, sum(waits) / len(waits), 1e-3)


async def drift() -> str:
    def reply(asked: Asked) -> Reply:
        return Reply(gap_s=0.01 if asked.number < 8 else 0.03)

    out = await measure(Script(reply=reply), scenario(requests=16, limits={"drift": 0.3}))
    return out.must_be_rejected_by("T16")


async def dropped_flag() -> str:
    wanted = scenario(expect={"speculation": True, "max_model_len": 200_000})
    return (await measure(Script(), wanted)).must_be_rejected_by("T17")


async def dead_behind_health() -> str:
    """`/health` and `/v1/models` answer 200; nothing is generated."""

    def dead(_: Asked) -> Reply:
        return Reply(ending="stall", cut=0)

    try:
        await measure(Script(reply=dead), scenario(limits={"canary_s": 0.4}))
    except Unavailable as problem:
        told = problem.message
    else:
        raise Failed("a server that generates nothing was measured")
    answered: list[int] = []

    def dies(asked: Asked) -> Reply:
        answered.append(asked.number)
        return Reply(ending="stall", cut=0) if len(answered) > 11 else Reply()

    out = await measure(Script(reply=dies), scenario(limits={"canary_s": 0.4}))
    out.must_be_rejected_by("T18")
    return told


async def changed_answers() -> str:
    outs = []
    for word in ("one", "one", "two"):
        script = replying(text=f"the answer is {word}")
        outs.append(await measure(script, scenario(body={"temperature": 0}), nonce="fixed"))
    demand(not changed_text(outs[0].result, outs[1].result), "equal answers have other hashes")
    found = changed_text(outs[0].result, outs[2].result)
    demand(bool(found), "a changed answer passed")
    return found[0]


async def advertised() -> str:
    out = await measure(Script(max_model_len=1_000_000))
    out.must_be_accepted()
    tested = out.result.workload.classes[0].input_max or 0
    demand(tested < 300, f"tested lengths are {tested}")
    return f"tested up to {tested} tokens of {out.result.server.max_model_len} advertised"


async def tuned_limit() -> str:
    told = (await measure(Script(max_model_len=165))).must_be_rejected_by("T40")
    allowed = scenario(limits={"tuned_context": True})
    (await measure(Script(max_model_len=165), allowed)).must_be_accepted()
    return told


async def restart() -> str:
    out = await measure(Script(restart_before=6))
    out.must_be_rejected_by("restart")
    # Without a start time, counters that have caught up hide it, and do not add up.
    out = await measure(Script(restart_before=6, tells_start=False))
    out.must_be_rejected_by("foreign", "T39")
    other = await measure(Script(model_created=lambda times: times))
    return other.must_be_rejected_by("fingerprint")


async def needles() -> str:
    def seeing(asked: Asked) -> Reply:
        return Reply(text=f"It is {_needle(asked.prompt)}.")

    wanted = scenario(needle="single")
    out = await measure(Script(reply=seeing), wanted)
    out.must_be_accepted()
    demand(out.result.quality.needles_found == 8, "a found needle was not seen")
    blind = await measure(replying(text="It is 0."), wanted)
    return blind.must_be_rejected_by("T28")


def _needle(prompt: str) -> str:
    _, _, after = prompt.partition("The number of the vault ")
    return after.partition(" is ")[2].partition(".\n")[0]


CASES = (
    Case("T1", "a prefix cache fakes prefill", "rejected", fake_prefill),
    Case("T1b", "the same prompts a second time", "rejected", same_nonce),
    Case("T6", "more decode at once than there are slots", "rejected", few_slots),
    Case("T7", "users beyond the slots only wait", "recovered", more_users),
    Case("T16", "a server that slows down within the run", "rejected", drift),
    Case("T17", "a flag that took no effect", "rejected", dropped_flag),
    Case("T18", "health without generation", "rejected", dead_behind_health),
    Case("T19", "a cache that should hit and does not", "rejected", forgotten_flag),
    Case("T20", "cold and warm are not one row", "rejected", cold_and_warm),
    Case("T24", "equal prompts, other answers", "rejected", changed_answers),
    Case("T26", "queue time within latency", "recovered", hidden_queue),
    Case("T27", "an advertised length is not a tested one", "recovered", advertised),
    Case("T28", "speed without the right answer", "rejected", needles),
    Case("T34", "warm-up and measured prompts are disjoint", "accepted", own_warm_up),
    Case("T40", "a context cut to the test", "rejected", tuned_limit),
    Case("restart", "a restart, or another server, within the run", "rejected", restart),
)
