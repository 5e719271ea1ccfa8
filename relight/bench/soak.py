"""Load for hours in windows, with one small unchanged cell between them: does the server stay what
it was? Knows no terminal and no clock but the one it is given."""

import re
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from relight.base.errors import BadSetting, Unavailable
from relight.bench.figures import middle
from relight.bench.result import Result
from relight.bench.scenario import Class, Scenario
from relight.bench.stats import t_quantile

SCHEMA = "relight.bench.soak/1"
Measure = Callable[[Literal["sentinel", "window"]], Result]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of load, `at_s` seconds after the soak began."""

    at_s: float
    run: str
    status: str
    sent: int
    failed: int
    out_tok_s: float
    ttft: float | None
    tpot: float | None
    hit_share: float | None
    resident: int | None
    zombies: int | None
    temperature: float | None


class Sentinel(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    run: str
    ttft: float | None
    tpot: float | None


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a figure over the whole soak by a straight line, as a share of its beginning, with
    its 95 % interval; None of the interval under three points."""

    change: float
    low: float | None
    high: float | None


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """`faults` make it invalid: a window that was not valid, a sentinel whose time per token is
    surely more than `limit` above where it began, a server that is gone."""

    schema: str
    seconds: float
    complete: bool
    windows: list[Window]
    sentinels: list[Sentinel]
    sentinel_tpot: Trend | None
    sentinel_ttft: Trend | None
    resident: Trend | None
    limit: float
    faults: list[str]


def seconds(text: str) -> float:
    """`90s`, `10m`, `8h`; a number alone is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise BadSetting(f"time is {text!r}; wanted a number with s, m or h, such as 10m")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def window_of(scenario: Scenario, window_s: float) -> Scenario:
    """Each class for so many seconds: its requests are read as those of a minute."""
    minutes = window_s / 60

    def stretched(one: Class) -> Class:
        per = one.sessions.turns if one.sessions else 1
        requests = round(one.rate * window_s) if one.rate else round(one.requests * minutes)
        return msgspec.structs.replace(
            one, requests=max(-(-requests // per) * per, one.users * per)
        )

    # Users that are cut off by the end of a window leave it half empty: that is no fault.
    limits = msgspec.structs.replace(scenario.limits, closure_low=0.0)
    return msgspec.structs.replace(
        scenario,
        classes=[stretched(one) for one in scenario.classes],
        seconds=window_s,
        limits=limits,
    )


def run(measure: Measure, now: Callable[[], float], total_s: float, limit: float) -> Soak:
    """Sentinel, window, sentinel, … until the time is over; a window that was stopped by hand, or
    a server that is gone, ends it."""
    begin = now()
    windows: list[Window] = []
    sentinels: list[Sentinel] = []
    faults: list[str] = []
    complete = True
    try:
        sentinels.append(_sentinel(0.0, measure("sentinel")))
        begin = now()  # however long that took, there is a window
        while now() - begin < total_s:
            at = now() - begin
            told = measure("window")
            windows.append(_window(at, told))
            if not told.complete:
                complete = False
                break
            at = now() - begin
            told = measure("sentinel")
            complete = told.complete
            if not complete:
                break
            sentinels.append(_sentinel(at, told))
    except Unavailable as problem:
        faults.append(f"after {now() - begin:.0f} s: {problem.message}")
    tpot = trend([(s.at_s, s.tpot) for s in sentinels])
    bad = [w for w in windows if w.status == "invalid"]
    faults += [f"{w.run} is invalid" for w in bad]
    if tpot is not None and (tpot.low if tpot.low is not None else tpot.change) > limit:
        faults.append(f"the sentinel's time per token grew by {tpot.change:+.1%}")
    return Soak(
        schema=SCHEMA,
        seconds=now() - begin,
        complete=complete,
        windows=windows,
        sentinels=sentinels,
        sentinel_tpot=tpot,
        sentinel_ttft=trend([(s.at_s, s.ttft) for s in sentinels]),
        resident=trend([(w.at_s, w.resident) for w in windows]),
        limit=limit,
        faults=faults,
    )


def _sentinel(at: float, told: Result) -> Sentinel:
    ttft, tpot = middle(told.client.ttft), middle(told.client.tpot)
    return Sentinel(at_s=at, run=told.run_id, ttft=ttft, tpot=tpot)


def _window(at: float, told: Result) -> Window:
    assert told.validity is not None
    own = told.resources
    return Window(
        at_s=at,
        run=told.run_id,
        status=told.validity.status,
        sent=told.counts.sent,
        failed=told.counts.sent - told.counts.ok,
        out_tok_s=told.throughput.out_tok_s,
        ttft=middle(told.client.ttft),
        tpot=middle(told.client.tpot),
        hit_share=told.cache.hit_fraction,
        resident=own.resident_max if own else None,
        zombies=own.zombies_max if own else None,
        temperature=own.temperature_max if own else None,
    )


def trend(points: Sequence[tuple[float, float | None]]) -> Trend | None:
    """A least-squares line through (time, value), from the first time to the last."""
    known = [(t, value) for t, value in points if value is not None]
    span = known[-1][0] - known[0][0] if len(known) > 1 else 0.0
    if span <= 0:
        return None
    fit = statistics.linear_regression([t for t, _ in known], [value for _, value in known])
    begin = fit.intercept + fit.slope * known[0][0]
    if begin <= 0:
        return None
    change = fit.slope * span / begin
    if len(known) < 3:
        return Trend(change=change, low=None, high=None)
    rest = [value - fit.intercept - fit.slope * t for t, value in known]
    mean_t = statistics.fmean(t for t, _ in known)
    spread = sum((t - mean_t) ** 2 for t, _ in known)
    error = (sum(r * r for r in rest) / (len(known) - 2) / spread) ** 0.5
    half = t_quantile(len(known) - 2) * error * span / begin
    return Trend(change=change, low=change - half, high=change + half)
