"""Cases about single answers: what is a token, when it came, and what is no success."""

import statistics

from relight.bench.figures import middle
from relight.bench.record import Failure
from relight.bench.selftest.harness import (
    TOLERANCE_S,
    Case,
    Outcome,
    demand,
    measure,
    near,
    one_replying,
    replying,
    scenario,
)
from relight.bench.selftest.script import Ending, Script


def ttft(out: Outcome) -> str:
    """The client's mean TTFT against the server's own record of its first writes."""
    real = statistics.fmean(s.writes[0][0] - s.arrived for s in out.server.measured)
    return near("TTFT", middle(out.result.client.ttft), real)


def tpot(out: Outcome) -> str:
    real = statistics.fmean(
        (s.writes[-1][0] - s.writes[0][0]) / (sum(n for _, n in s.writes) - s.writes[0][1])
        for s in out.server.measured
    )
    return near("TPOT", middle(out.result.client.tpot), real, 0.01)


async def sound() -> str:
    told = []
    for dialect in ("vllm", "sglang", "none"):
        out = await measure(Script(dialect=dialect))
        out.must_be_accepted()
        demand(all(len(r.chunks) == r.n_out == 8 for r in out.records), "a row is not whole")
        told += [f"{dialect}: {ttft(out)}, {tpot(out)}"]
    return "; ".join(told)


async def reasoning() -> str:
    told = []
    for name in ("reasoning_content", "reasoning"):
        out = await measure(replying(thought=6, thought_field=name, gap_s=0.02))
        out.must_be_accepted()
        answer = statistics.fmean(s.writes[6][0] - s.arrived for s in out.server.measured)
        figures = out.result.client
        told += [name, ttft(out), near("to the answer", middle(figures.ttfa), answer)]
    out = await measure(replying(answer_field="tool_calls"))
    out.must_be_accepted()
    return ", ".join([*told, "tool_calls", ttft(out)])


async def false_ttft() -> str:
    script = Script(ttft_lie_s=1.0)
    return (await measure(script)).must_be_rejected_by("T2")


async def no_token_yet() -> str:
    """A role prelude and keep-alive comments stop no clock."""
    out = await measure(replying(first_s=0.3, comment_s=0.05))
    out.must_be_accepted()
    first = min(r.ttft or 0.0 for r in out.records)
    demand(first > 0.3 - TOLERANCE_S, f"the clock stopped after {first:.3f} s, before any token")
    return ttft(out)


async def short_answers() -> str:
    out = await measure(one_replying(3, tokens=5, finish="stop"))
    told = out.must_be_rejected_by("T3", "T4")
    demand(out.result.tokens.out_usage == 7 * 8, "the short answer's tokens were counted")
    return told


async def failures() -> str:
    """Each ends in a 200 that a lax client takes for a success."""
    wanted: dict[Ending, Failure] = {
        "in_band": "in_band",
        "no_done": "truncated",
        "die": "truncated",
        "no_finish": "no_finish",
        "no_usage": "no_usage",
        "garbage": "protocol",
    }
    for ending, failure in wanted.items():
        out = await measure(one_replying(2, ending=ending))
        out.must_be_rejected_by("T4")
        found = out.result.counts.failures
        demand(found == {failure: 1}, f"{ending} was counted as {found}; wanted {failure}")
    return ", ".join(f"{ending} is {failure}" for ending, failure in wanted.items())


async def statuses() -> str:
    for status, failure in ((500, "http"), (429, "refused"), (503, "refused")):
        out = await measure(one_replying(2, status=status))
        out.must_be_rejected_by("T4")
        found = out.result.counts.failures
        demand(found == {failure: 1}, f"{status} was counted as {found}")
    return "500 is http, 429 and 503 are refused"


async def all_failed() -> str:
    out = await measure(replying(ending="in_band"))
    demand(out.result.counts.ok == 0, "an in-band error was a success")
    demand(out.result.client.ttft is None, "a figure of no request is not null")
    return out.must_be_rejected_by("T4")


async def chunks() -> str:
    wanted = scenario(output_tokens=16)
    told = []
    for each in (True, False):
        out = await measure(replying(per_chunk=4, gap_s=0.04, usage_each=each), wanted)
        out.must_be_accepted()
        figures = out.result.client
        icl, itl = figures.icl, figures.itl
        if each:
            told += [tpot(out), near("ITL", middle(itl), 0.01, 0.005)]
        else:
            # Without the first chunk's count its four tokens pass for one: 15 where 12 are left.
            demand(itl is None, "a time per token was told of chunks of unknown size")
            spread = middle(figures.tpot)
            told += [near("TPOT, chunks of unknown size", spread, 0.01 * 12 / 15, 0.005)]
        told += [near("gap of chunks", middle(icl), 0.04, 0.02)]
        told += [near("tokens a chunk", figures.tokens_per_chunk, 4, 0.0)]
    return ", ".join(told)


async def lying_usage() -> str:
    out = await measure(Script(tokens_lie=1.2))
    told = out.must_be_rejected_by("T39")
    out = await measure(one_replying(1, usage_lie=-4))
    out.must_be_rejected_by("T4")
    return f"{told}; usage below the chunks is {next(iter(out.result.counts.failures))}"


async def two_rates() -> str:
    out = await measure(replying(first_s=0.4, gap_s=0.02))
    out.must_be_accepted()
    rate = out.result.throughput
    demand((rate.per_request or 9e9) < 0.5 * (rate.per_user or 0), "the prompt hides in a rate")
    return f"{tpot(out)}: {rate.per_user:.1f} tokens a second, {rate.per_request:.1f} with prompt"


async def never_ends() -> str:
    limits = {"silence_s": 0.5}
    out = await measure(one_replying(2, ending="stall", cut=3), scenario(limits=limits))
    out.must_be_rejected_by("T4")
    demand(out.result.counts.failures == {"stalled": 1}, f"{out.result.counts.failures}")
    out = await measure(
        one_replying(2, ending="stall", cut=3, comment_s=0.05), scenario(limits=limits)
    )
    demand(out.result.counts.failures == {"stalled": 1}, "comments passed for progress")
    return "no token for 0.5 s is stalled, comments or not"


CASES = (
    Case("sound", "a sound server is accepted and its times recovered", "accepted", sound),
    Case("T2", "reasoning and tool calls are tokens, too", "recovered", reasoning),
    Case("T2b", "client and engine TTFT disagree", "rejected", false_ttft),
    Case("T2c", "a role prelude and comments stop no clock", "recovered", no_token_yet),
    Case("T3", "answers of another length than asked", "rejected", short_answers),
    Case("T4", "a 200 that is no success", "rejected", failures),
    Case("T4b", "statuses are told apart", "rejected", statuses),
    Case("T4c", "all requests failed", "rejected", all_failed),
    Case("T9", "admitted, and then no progress", "rejected", never_ends),
    Case("T21", "a rate that mixes the prompt in hides decoding", "recovered", two_rates),
    Case("T36", "a chunk is no token", "recovered", chunks),
    Case("T39", "usage, counters and chunks disagree", "rejected", lying_usage),
)
