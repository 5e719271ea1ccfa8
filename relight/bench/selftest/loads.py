"""Cases about load, statistics and the measuring itself."""

import asyncio
import statistics
import time
from collections.abc import Callable

from relight.bench import definitions
from relight.bench.arms import Arm, drift_tells, run_blocks, sentinel_of
from relight.bench.figures import middle
from relight.bench.http import target
from relight.bench.ladder import climb, rung_scenario
from relight.bench.result import Result
from relight.bench.run import Run
from relight.bench.scenario import Class
from relight.bench.selftest.harness import (
    Case,
    demand,
    measure,
    near,
    one_replying,
    replying,
    scenario,
)
from relight.bench.selftest.script import Asked, Reply, Script, num_tokens
from relight.bench.selftest.server import ScriptedServer
from relight.bench.verdict import decide


async def two_classes() -> str:
    """Fast at one length, never done at the next: the class is named, and the other kept."""
    short = Class(name="fits", users=2, requests=4, input_tokens=150, output_tokens=8)
    long = Class(name="cliff", users=1, requests=1, input_tokens=600, output_tokens=8)
    wanted = scenario(classes=[short, long], limits={"silence_s": 0.5, "closure_low": 0})
    out = await measure(Script(reply=_stuck_above(400)), wanted)
    out.must_be_rejected_by("T4")
    fits, stuck = out.result.workload.classes
    demand((fits.ok, stuck.ok) == (4, 0), f"{fits.ok} short and {stuck.ok} long were answered")
    return "four short requests ended, the long one stalled"


def _stuck_above(tokens: int) -> Callable[[Asked], Reply]:
    def reply(asked: Asked) -> Reply:
        stuck = asked.measured and num_tokens(asked.prompt) > tokens
        return Reply(ending="stall", cut=0) if stuck else Reply()

    return reply


async def cliff() -> str:
    """A ladder stops at the length that never ends, and halves its way to the limit."""
    base = scenario(limits={"silence_s": 0.4, "closure_low": 0})
    async with ScriptedServer(Script(reply=_stuck_above(700))) as server:

        def at(length: int) -> Result:
            wanted = rung_scenario(base, length, repeat=1, output=8, needle=None)
            return asyncio.run(Run(target(server.url), wanted).measure())[0]

        # A rung's own loop, as the command has; the server stays on this one.
        found = await asyncio.to_thread(climb, [200, 400, 800, 1600], at, bisect=True)
    demand(found.cliff is not None, "no limit was found")
    assert found.cliff is not None
    low, high = found.cliff
    demand(low <= 700 <= high and high - low <= 50, f"the limit is told as {found.cliff}")
    demand(found.rungs[-1].asked == 800, "a rung above the failure was tried")
    return f"scripted to stall above 700 tokens; found between {low} and {high}"


async def two_arms() -> str:
    """Servers of which one is a third faster, interleaved; then one against itself."""
    wanted = scenario(requests=4, users=2)
    gaps = {"A": 0.03, "B": 0.02}
    async with (
        ScriptedServer(replying(gap_s=gaps["A"])) as a,
        ScriptedServer(replying(gap_s=gaps["B"])) as b,
    ):
        seen: list[str] = []

        def run(arm: Arm, number: int) -> Result:
            seen.append(arm)
            url = a.url if arm == "A" else b.url
            return asyncio.run(Run(target(url), wanted).measure())[0]

        told = await asyncio.to_thread(
            run_blocks, run, 4, kind="ab", delta=0.02, floor={"tpot": 0.05}
        )
    demand("".join(seen) == "ABBAABBA", f"arms ran in the order {seen}")
    demand(not told.faults, f"{told.faults}")
    found = told.verdicts["tpot"]
    demand(found.word == "faster", f"a third faster is {found.word}, ratio {found.ratio:.3f}")
    return near("ratio of TPOT", found.ratio, gaps["B"] / gaps["A"], 0.1)


async def depth() -> str:
    """The best acceptance rate is not the best depth."""
    rate, chosen = {}, {}
    accept = (0.53, 0.29, 0.16, 0.1, 0.06, 0.04, 0.02)
    for drafts, gap in ((5, 0.010), (7, 0.012)):
        script = replying(gap_s=gap)
        script.spec_depth, script.spec_accept = drafts, accept[:drafts]
        out = await measure(script, scenario(corpus="random"))
        out.must_be_accepted()
        spec = out.result.spec
        demand(spec is not None, "speculation was not seen")
        assert spec is not None
        near("AL", spec.al_pooled, definitions.advance(accept[:drafts]), 1e-6)
        near("rate", spec.rate, sum(accept[:drafts]) / drafts, 1e-6)
        demand(len(spec.per_pos_uncond) == drafts, "acceptance by position is missing")
        demand(spec.synthetic, "acceptance on random words was not labelled synthetic")
        rate[drafts], chosen[drafts] = spec.rate, spec.al_pooled
    return f"rates {rate[5]:.3f} and {rate[7]:.3f}, advances {chosen[5]:.3f} and {chosen[7]:.3f}"


async def weightings() -> str:
    real = (0.532, 0.291, 0.164, 0.098, 0.063, 0.041, 0.024)
    pooled = near("pooled", definitions.acceptance_length(7, 0.1662), 2.163, 1e-3)
    return f"{pooled}, {near('by position', definitions.advance(real), 2.213, 1e-3)}"


async def synthetic() -> str:
    script = Script(spec_depth=3, spec_accept=(0.5, 0.3, 0.1))
    out = await measure(script)
    demand(out.result.spec is not None and not out.result.spec.synthetic, "real text is synthetic")
    out = await measure(script, scenario(corpus="random"))
    demand(out.result.spec is not None and out.result.spec.synthetic, "random words are not")
    return "acceptance on random words is labelled"


async def wrong_length() -> str:
    """A server that counts every character as a token makes prompts too long: calibration finds
    that; where it cannot, actual lengths are told and judged."""
    out = await measure(Script())
    out.must_be_accepted()
    facts = out.result.workload.classes[0]
    told = near("prompt tokens", facts.input_mean, 150, 20)
    wanted = scenario(input_tokens=4)
    return f"{told}; {(await measure(Script(), wanted)).must_be_rejected_by('T31')}"


async def kept_point() -> str:
    found = definitions.implausible([(32768, 5.05), (65536, 7.35), (131072, 9.47)])
    demand(found == [32768, 65536], f"implausible points are {found}")
    sound = [(32768, 5.05), (65536, 10.17), (131072, 22.40), (262144, 54.82)]
    demand(definitions.implausible(sound) == [], "sound points are implausible")
    return "the points with a fixed cost are named"


async def drifting_machine() -> str:
    """A server that gets slower run by run: the sentinel tells it from a difference of arms."""
    runs = 0

    def reply(asked: Asked) -> Reply:
        nonlocal runs
        runs += asked.max_tokens == 4  # each run begins and ends with a canary
        return Reply(gap_s=0.003 + 0.001 * (runs // 2))

    wanted = scenario(requests=2, users=1)
    async with ScriptedServer(Script(reply=reply)) as server:

        def run(_arm: Arm, _number: int) -> Result:
            return asyncio.run(Run(target(server.url), wanted).measure())[0]

        def sentinel() -> Result:
            return asyncio.run(Run(target(server.url), sentinel_of(wanted)).measure())[0]

        told = await asyncio.to_thread(
            run_blocks, run, 2, kind="ab", delta=0.02, floor={}, sentinel=sentinel
        )
    apart = max(told.sentinel) / min(told.sentinel) - 1
    demand(len(told.sentinel) == 3 and apart > 0.5, f"the sentinel saw {told.sentinel}")
    clear = decide([(100, 90), (101, 91), (99, 89), (100, 90)], lower_is_better=True)
    demand("tpot" in drift_tells(told.sentinel, {"tpot": clear}), "the drift was not told")
    return f"the sentinel went {apart:.0%} apart"


async def omission() -> str:
    """The server holds everything up for half a second; requests stay due, and waiting counts."""

    def reply(asked: Asked) -> Reply:
        return Reply(first_s=0.5 if asked.number < 4 else 0.02)

    script = Script(reply=reply, slots=2)
    wanted = scenario(rate=20.0, requests=20, limits={"lag_s": 0.2, "silence_s": 8})
    out = await measure(script, wanted)
    out.must_be_accepted()
    first = sorted(r.t_sched for r in out.records)
    sends = sorted(r.t_send or 0.0 for r in out.records)
    late = max(sent - due for sent, due in zip(sends, first, strict=True))
    queue = out.result.client.ttft_queue
    waits = statistics.fmean(s.writes[0][0] - s.arrived for s in out.server.measured)
    told = near("TTFT from when due", middle(queue), waits)
    return f"latest send {late * 1e3:.1f} ms late; {told}"


async def ramp() -> str:
    """A slow start dilutes the rate of the whole run and not the steady one."""

    def reply(asked: Asked) -> Reply:
        return Reply(first_s=0.6 if asked.number < 4 else 0.001, gap_s=0.007)

    out = await measure(Script(reply=reply), scenario(requests=20, output_tokens=16))
    out.must_be_accepted()
    rate = out.result.throughput
    demand((rate.out_tok_s_steady or 0) > 1.3 * rate.out_tok_s, "the ramp is in the steady rate")
    unfilled = scenario(requests=5, limits={"closure_low": 0.93})
    told = (await measure(one_replying(4, first_s=0.5), unfilled)).must_be_rejected_by("closure")
    return f"{rate.out_tok_s:.0f} tok/s over all, {rate.out_tok_s_steady:.0f} steady; {told}"


async def slow_client() -> str:
    """The measuring stands still for 0.3 s, and says so."""

    def reply(asked: Asked) -> Reply:
        if asked.measured and asked.number == 4:
            time.sleep(0.3)
        return Reply()

    wanted = scenario(limits={"lag_s": 0.1})
    return (await measure(Script(reply=reply), wanted)).must_be_rejected_by("T38")


async def one_run() -> str:
    """Published runs of one configuration, and single runs of others: noise decides nothing."""
    three = decide([(100, 90), (100, 91), (100, 89)], lower_is_better=True)
    demand(three.word == "noise", f"three blocks decided {three.word}")
    drifted = [(100.0, 101.0), (103.0, 102.0), (104.0, 105.0), (107.0, 106.0)]
    demand(decide(drifted, lower_is_better=True).word == "equivalent", "a drift was an effect")
    clear = decide([(100, 90), (101, 91), (99, 89), (100, 90)], lower_is_better=True)
    demand(clear.word == "faster", f"ten per cent in four blocks are {clear.word}")
    below = decide([(100, 99), (101, 98), (99, 98)] * 2, lower_is_better=True, floor=0.05)
    demand(below.word in ("noise", "equivalent"), "an effect below the noise floor counted")
    return f"three blocks are noise ({three.blocks_needed} needed), drift cancels in ABBA"


CASES = (
    Case("T5", "two arms share a session, in blocks", "recovered", two_arms),
    Case("T10b", "one class of two never ends", "rejected", two_classes),
    Case("T10", "a cliff: one length is fast, the next never ends", "rejected", cliff),
    Case("T11", "an acceptance rate is no objective", "recovered", depth),
    Case("T12", "acceptance on random words", "recovered", synthetic),
    Case("T30", "single runs and drift decide nothing", "recovered", one_run),
    Case("T16b", "a machine that drifts between runs", "recovered", drifting_machine),
    Case("T31", "nominal and actual length", "rejected", wrong_length),
    Case("T32", "two weightings of acceptance", "recovered", weightings),
    Case("T33", "an implausible point", "rejected", kept_point),
    Case("T35", "a held-up server hides no waiting", "recovered", omission),
    Case("T37", "ramp and drain in a rate", "rejected", ramp),
    Case("T38", "the client is the bottleneck", "rejected", slow_client),
)
