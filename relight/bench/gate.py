"""Whether a result may be believed: every check, its value, its limit and why. Knows only the
result and its rows, so that it judges a file as it judges a run.

The ids T1 to T40 are those of the traps in docs/notes/measuring.md. A check that the server gives
nothing to check by is unchecked (`ok` null): it does not make a result invalid, and is listed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from relight.bench import figures
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.schema import Check, Status, Validity
from relight.bench.stats import Summary


def judge(result: Result) -> Validity:
    checks = [*_stream_checks(result), *_server_checks(result), *_own_checks(result)]
    reasons = [f"{check.id}: {check.why}" for check in checks if check.ok is False]
    status: Status = "invalid" if reasons else "valid" if result.complete else "incomplete"
    return Validity(status=status, reasons=reasons, checks=checks)


def audit(
    result: Result,
    records: Sequence[Record],
    requests_hash: str,
    series_hash: str | None = None,
) -> Validity:
    """The verdict on a file: judged anew, with its rows counted again. Nothing that is stored as a
    verdict is believed."""
    told = judge(result)
    found = []
    if requests_hash != result.requests_hash:
        found.append("rows: the request rows are not those that were measured")
    if series_hash is not None and series_hash != result.series_hash:
        found.append("series: the seconds are not those that were measured")
    again = figures.counts(records)
    if again != result.counts:
        found.append(f"rows: counts say {result.counts.sent} sent; the rows hold {again.sent}")
    if figures.client(records) != result.client:
        found.append("rows: the client figures are not those of the rows")
    if result.validity is not None and result.validity.status != told.status:
        found.append(f"verdict: the file says {result.validity.status!r}, and it is not")
    if not found:
        return told
    return Validity(status="invalid", reasons=[*told.reasons, *found], checks=told.checks)


def _check(id: str, ok: bool | None, value: float | str | None, limit: str, why: str) -> Check:
    return Check(id=id, ok=ok, value=value, limit=limit, why=why if ok is False else "")


def _stream_checks(result: Result) -> Iterator[Check]:
    limits, counts = result.scenario.limits, result.counts
    # What we ended ourselves says nothing about the server; the result is incomplete by it.
    failed = counts.sent - counts.ok - counts.failures.get("cancelled", 0)
    short = counts.failures.get("length", 0)
    planned = result.workload.planned
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.failures.items()))
    share = failed / counts.sent if counts.sent else 1.0
    yield _check(
        "T4",
        share <= limits.failed and counts.ok > 0,
        share,
        f"<= {limits.failed:g} of requests",
        f"{failed} of {counts.sent} requests failed ({told or 'none was answered'})",
    )
    yield _check(
        "sent",
        counts.sent == planned if result.complete and planned is not None else None,
        counts.sent,
        f"= {planned}",
        f"{counts.sent} requests were sent of {planned}",
    )
    yield _check(
        "T3",
        short == 0 if any(one.fixed for one in result.scenario.classes) else None,
        short,
        "0 answers of another length",
        f"{short} answers had not the fixed length; the server must honour ignore_eos",
    )
    for one in result.workload.classes:
        off = None if one.input_ratio is None else abs(one.input_ratio - 1)
        yield _check(
            "T31",
            None if off is None else off <= limits.input_tokens,
            one.input_mean,
            f"{one.input_target} tokens within {limits.input_tokens:.0%}",
            f"class {one.name} asked for {one.input_target} tokens a prompt and sent "
            f"{one.input_mean or 0:.0f}: {one.input_ratio or 0:.2f} of what was wanted",
        )
    quality = result.quality
    found = quality.needle_score
    yield _check(
        "T28",
        None if found is None else found >= limits.needle,
        found,
        f">= {limits.needle:g} of needles",
        f"{quality.needles_found} of {quality.needles} needles were found whole, "
        f"{found or 0:.0%} of what was hidden",
    )
    yield _check(
        "numbers",
        None if quality.corrupted is None else quality.corrupted == 0,
        quality.corrupted,
        "0 answers with figures that are no numbers",
        f"the server counts {quality.corrupted or 0:g} corrupted answers",
    )


def _server_checks(result: Result) -> Iterator[Check]:
    limits, cache, engine = result.scenario.limits, result.cache, result.engine
    yield _hits(result)
    yield _check(
        "restart",
        None if engine is None else not engine.resets,
        ", ".join(engine.resets) if engine else None,
        "no counter goes back",
        f"the server restarted within the window: {', '.join(engine.resets if engine else [])}",
    )
    server = result.server
    yield _check(
        "fingerprint",
        server.fingerprint_before == server.fingerprint_after,
        server.fingerprint_after,
        f"= {server.fingerprint_before}",
        "another server, or another model, answered after the run than before it",
    )
    yield _check(
        "T18",
        all(result.canary_ok),
        sum(result.canary_ok),
        "a short answer in time, before and after",
        f"the server did not answer a few tokens within {limits.canary_s:g} s",
    )
    yield _check(
        "preemptions",
        None if cache.preemptions is None else cache.preemptions <= limits.preemptions,
        cache.preemptions,
        f"<= {limits.preemptions}",
        f"{cache.preemptions} requests lost their slot for a time",
    )
    yield from _agreement(result)
    yield from _floors(result)
    yield from _expectations(result)
    yield _tuned_context(result)


def _hits(result: Result) -> Check:
    limits, hits = result.scenario.limits, result.cache.hit_fraction
    if result.cache.mode == "shared":
        return _check("T20", None, hits, "hits are told, neither forbidden nor demanded", "")
    if result.cache.mode == "cold":
        return _check(
            "T1",
            None if hits is None else hits <= limits.hits_cold,
            hits,
            f"<= {limits.hits_cold:g} of prompt tokens",
            f"{hits or 0:.1%} of prompt tokens came from a cache in a cold test",
        )
    return _check(
        "T19",
        None if hits is None else hits >= limits.hits_warm,
        hits,
        f">= {limits.hits_warm:g} of prompt tokens",
        f"only {hits or 0:.1%} of prompt tokens came from the cache in a warm test",
    )


def _floors(result: Result) -> Iterator[Check]:
    """What the server's machine must keep free; asked only where the scenario does."""
    limits, found = result.scenario.limits, result.resources
    if limits.mem_available_gib:
        free = found.mem_available_min if found else None
        yield _check(
            "T29",
            None if free is None else free >= limits.mem_available_gib * 2**30,
            free,
            f">= {limits.mem_available_gib:g} GiB available",
            f"{(free or 0) / 2**30:.1f} GiB of memory were available at the least",
        )
    if limits.swap_bytes is not None:
        swap = found.swap_max if found else None
        yield _check(
            "T29",
            None if swap is None else swap <= limits.swap_bytes,
            swap,
            f"<= {limits.swap_bytes} bytes swapped",
            f"{swap or 0} bytes of the server were swapped out",
        )


def _agreement(result: Result) -> Iterator[Check]:
    """The server's figures beside the client's: where they differ, one of them is wrong."""
    limits, engine, counts = result.scenario.limits, result.engine, result.counts
    alone = engine is not None and engine.requests is not None
    asked = engine.requests if engine and engine.requests is not None else 0
    yield _check(
        "foreign",
        asked == counts.ok if alone and counts.ok == counts.sent else None,
        asked,
        f"= {counts.ok} requests",
        f"the server began {asked:g} answers in the window and {counts.ok} were ours: other "
        "traffic, or wrong counters",
    )
    left = counts.failures.get("cancelled", 0)
    told = engine.running_after if engine and left and result.server.dialect == "vllm" else None
    yield _check(
        "left",
        None if told is None else told == 0,
        told,
        "0 requests run on after the last",
        f"{told or 0:g} requests still run a second after the last one ended or was left",
    )
    ours, theirs = figures.middle(result.client.ttft), engine.ttft if engine else None
    if ours is None or theirs is None or asked != counts.ok:
        yield _check("T2", None, None, "client and engine TTFT agree", "")
    else:
        limit = max(limits.ttft_share * theirs, limits.ttft_s)
        yield _check(
            "T2",
            abs(ours - theirs) <= limit,
            ours - theirs,
            f"within {limit:.3f} s",
            f"client TTFT is {ours:.3f} s, engine TTFT {theirs:.3f} s: more than {limit:.3f} s "
            "apart, where something between them, or a busy machine, adds time",
        )
    server, usage = result.tokens.out_server, result.tokens.out_usage
    off = abs(server / usage - 1) if server is not None and usage else None
    yield _check(
        "T39",
        None if off is None or counts.ok < counts.sent else off <= limits.tokens,
        off,
        f"<= {limits.tokens:g}",
        f"usage tells {usage} output tokens and the server's counter {server or 0:g}",
    )


def _expectations(result: Result) -> Iterator[Check]:
    expect = result.scenario.expect
    if expect.speculation is not None:
        seen = result.spec is not None
        yield _check(
            "T17",
            seen == expect.speculation,
            str(seen),
            f"speculation is {expect.speculation}",
            f"speculation {'ran' if seen else 'did not run'}, whatever the server's flags say",
        )
    if expect.max_model_len is not None:
        told = result.server.max_model_len
        yield _check(
            "T17",
            told == expect.max_model_len,
            told,
            f"max_model_len = {expect.max_model_len}",
            f"the server holds {told} tokens",
        )
    for path, wanted in expect.settings.items():
        seen_value = at_path(result.server.settings, path)
        yield _check(
            "T17",
            None if result.server.settings is None else seen_value == wanted,
            str(seen_value),
            f"{path} = {wanted}",
            f"the server's {path} is {seen_value!r}",
        )
    rate = result.throughput
    if rate.slots is not None and rate.implied_running is not None:
        yield _check(
            "T6",
            rate.implied_running <= rate.slots * 1.02,
            rate.implied_running,
            f"<= {rate.slots} slots",
            f"{rate.implied_running:.1f} requests decoded at once; {rate.slots} slots cannot: the "
            "slots, the time per token or the window is not what it is said to be",
        )


def _tuned_context(result: Result) -> Check:
    """A server whose limit was set to just what is measured has memory that a real one lacks."""
    limit = result.server.max_model_len
    longest = max(one.input_target + one.output_target for one in result.workload.classes)
    ok = None if limit is None else result.scenario.limits.tuned_context or limit >= 1.25 * longest
    return _check(
        "T40",
        ok,
        limit,
        f">= 1.25 x {longest}",
        f"the server's context of {limit} is cut to the {longest} tokens of this test; allow that "
        "with limits.tuned_context",
    )


def _own_checks(result: Result) -> Iterator[Check]:
    limits, rate, itself = result.scenario.limits, result.throughput, result.itself
    closure = rate.little_closure if result.complete else None
    yield _check(
        "closure",
        None if closure is None else limits.closure_low <= closure <= limits.closure_high,
        closure,
        f"{limits.closure_low:g} to {limits.closure_high:g}",
        f"requests in the system were {closure or 0:.1%} of the users: a ramp, a drain or a wrong "
        "window; send more requests for each user",
    )
    yield _check(
        "T16",
        None if result.drift is None else abs(result.drift) <= limits.drift,
        result.drift,
        f"within {limits.drift:.0%}",
        f"time per token changed by {result.drift or 0:+.1%} from the first to the second half",
    )
    ttft = figures.middle(result.client.ttft) or 0.0
    limit = max(limits.lag_share * ttft, limits.lag_s)
    yield _lag("T35", itself.send_lag, limit, "requests were sent late")
    yield _lag("T38", itself.loop_lag, limit, "the measuring itself ran late")


def _lag(id: str, lag: Summary | None, limit: float, what: str) -> Check:
    worst = None if lag is None else lag.p99 if lag.p99 is not None else lag.max
    return _check(
        id,
        None if worst is None else worst <= limit,
        worst,
        f"<= {limit * 1e3:.1f} ms",
        f"{what}, by {(worst or 0) * 1e3:.1f} ms",
    )


def at_path(settings: Any, path: str) -> Any:
    """`a.b` in nested settings; None for what is not there."""
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings
