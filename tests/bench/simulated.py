"""Runs that were never measured: a few hundred requests through a simulated server, for pictures of
all kinds. The result around them is a real one of the scripted server."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from relight.bench import figures
from relight.bench.arms import Blocks, judge
from relight.bench.ladder import Ladder, Rung
from relight.bench.machine import Device
from relight.bench.mixed import Mixed, Side
from relight.bench.plot_data import Gathered, Run
from relight.bench.record import Record, ServerTimes
from relight.bench.result import Result
from relight.bench.scenario import Class, Expect, Scenario
from relight.bench.schema import NeedleCell, Place, Slice, Speculation, Turn, Validity
from relight.bench.soak import Sentinel, Soak, Window, trend
from relight.bench.stats import summary
from relight.bench.verdict import abba
from relight.bench.watch import Point

SLOTS = 16
GIB = 2**30
GOOD = Validity(status="valid", reasons=[], checks=[])
BAD = Validity(status="invalid", reasons=["T4: 3 of 80 requests failed (3 truncated)"], checks=[])


def requests(classes: Sequence[Class], *, slots: int = SLOTS, seed: int = 1) -> list[Record]:
    """Closed users before `slots` servers; a token takes longer the more run, and far longer while
    a long prompt is read."""
    chance = random.Random(seed)
    free = [0.0] * slots
    long_reads: list[tuple[float, float]] = []
    found: list[Record] = []
    due = [(c.start_s + 0.01 * u, c) for c in classes for u in range(c.users)]
    left = {c.name: c.requests for c in classes}
    load = min(slots, sum(c.users for c in classes))
    while due:
        due.sort(key=lambda entry: entry[0])
        now, one = due.pop(0)
        if not left[one.name]:
            continue
        left[one.name] -= 1
        slot = min(range(slots), key=free.__getitem__)
        begun = max(now, free[slot])
        read = one.input_tokens * 2e-4 + one.input_tokens**2 * 4e-10
        first = begun + read * chance.uniform(0.9, 1.2)
        if read > 1:
            long_reads.append((begun, first))
        each = 0.02 + 0.0012 * load
        times, at = [], first
        for _ in range(one.output_tokens):
            times.append((at, 1))
            slow = 4 if any(a < at < b for a, b in long_reads) else 1
            stood = 40 if chance.random() < 0.002 else 1
            at += each * slow * stood * chance.uniform(0.8, 1.3)
        failed = chance.random() < 0.02
        last = times[len(times) // 2 if failed else -1][0]
        free[slot] = last
        found.append(
            Record(
                id=len(found),
                kind=one.name,
                t_sched=now,
                t_send=now + 0.0003,
                t_headers=now + 0.001,
                t_first_any=first,
                t_first_answer=first,
                t_last=last,
                t_end=last + 0.001,
                chunks=tuple(entry for entry in times if entry[0] <= last),
                n_in=one.input_tokens,
                n_cached=0,
                n_out=one.output_tokens,
                n_wanted=one.output_tokens,
                finish="length",
                failure="truncated" if failed else None,
                server=ServerTimes(queue=begun - now),
            )
        )
        due.append((last + 0.002, one))
    return found


def run(base: Result, classes: list[Class], *, name: str = "users", **changes: Any) -> Run:
    seed = changes.pop("seed", 1)
    records = requests(classes, seed=seed)
    scenario = Scenario(name=name, classes=classes, expect=Expect(slots=SLOTS))
    total = sum(c.users for c in classes)
    result = msgspec.structs.replace(
        base,
        run_id=f"{name}-{total}-{seed}",
        scenario=scenario,
        counts=figures.counts(records),
        client=figures.client(records),
        throughput=figures.throughput(records, scenario),
        validity=GOOD,
    )
    points = changes.pop("points", [])
    return Run(msgspec.structs.replace(result, **changes), records, points)


def chat(users: int, **fields: Any) -> Class:
    shape: dict[str, Any] = {"input_tokens": 1024, "output_tokens": 64, "requests": 3 * users}
    return Class(name="chat", users=users, **(shape | fields))


def loads(base: Result) -> list[Run]:
    """One to 64 users, twice each; the last ones are not valid."""
    return [
        run(base, [chat(users)], seed=seed, validity=BAD if users == 64 else GOOD)
        for users in (1, 2, 4, 8, 16, 32, 64)
        for seed in (1, 2, 3)
    ]


def mixed(base: Result) -> Run:
    """Short prompts beside one of 60,000 tokens, with the server's own series."""
    long = Class(
        name="long", users=1, requests=1, input_tokens=60_000, output_tokens=100, start_s=5.0
    )
    told = run(base, [chat(12, requests=80), long], name="mixed")
    return Run(told.result, told.records, series(20))


def series(seconds: int) -> list[Point]:
    chance = random.Random(3)
    device = Device(
        name="X",
        memory_bytes=140e9,
        free_bytes=30e9,
        driver="1",
        clock_mhz=1800,
        power_cap_w=700,
        power_w=400,
        temperature_c=50,
    )
    return [
        Point(
            t=float(second),
            gauges={"running": min(SLOTS, second), "waiting": max(0, second - SLOTS)},
            counters={"preemptions": float(second > 12) + float(second > 15)},
            groups={"pages": min(1.0, 0.05 * second), "boundary records": 0.4},
            resident=int(GIB * (2 + 0.02 * second)),
            zombies=0,
            devices=[
                msgspec.structs.replace(
                    device,
                    temperature_c=50 + second + chance.random(),
                    free_bytes=30e9 - 1e8 * second,
                )
            ],
        )
        for second in range(seconds)
    ]


def drafted(base: Result, depth: int, step_s: float) -> Run:
    kept = [0.82, 0.66, 0.52, 0.40, 0.31, 0.22, 0.15][:depth]
    spec = Speculation(
        drafts=1000.0,
        drafted=1000.0 * depth,
        accepted=1000 * sum(kept),
        al_pooled=1 + sum(kept),
        rate=sum(kept) / depth,
        per_pos_uncond=kept,
        per_pos_given_drafted=[min(1.0, share * 1.05) for share in kept],
        cond=[b / a for a, b in zip([1.0, *kept], kept, strict=False)],
        synthetic=False,
        depth=float(depth),
        slices=[
            Slice(
                corpus=corpus,
                requests=16,
                al_pooled=1 + factor * sum(kept),
                al_mean_req=None,
                rate=None,
                per_pos_uncond=[factor * share for share in kept],
            )
            for corpus, factor in (("code", 1.1), ("chinese", 0.7))
        ],
    )
    told = run(base, [chat(2)], name="slices", seed=depth, spec=spec)
    assert told.result.engine is not None
    engine = msgspec.structs.replace(told.result.engine, step_interval=step_s)
    return Run(msgspec.structs.replace(told.result, engine=engine), told.records, [])


def agents(base: Result) -> Run:
    turns = [
        Turn(
            turn=turn,
            n=32,
            input_mean=8000.0 + 1000 * turn,
            hit_share=0.97 - 0.9 / (turn + 1) ** 2,
            ttft=summary([0.2 + 1.5 / (turn + 1) ** 2 + 0.01 * n for n in range(64)]),
        )
        for turn in range(8)
    ]
    cells = [
        NeedleCell(
            kind="single",
            class_name="long",
            length=float(length),
            depth=depth,
            asked=4,
            score=max(0.0, 1 - length / 200_000 * (1.5 - depth)),
        )
        for length in (4096, 16384, 65536, 131072)
        for depth in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    workload = msgspec.structs.replace(base.workload, turns=turns)
    quality = msgspec.structs.replace(base.quality, cells=cells)
    return run(base, [chat(4)], name="agent", workload=workload, quality=quality)


def ladder() -> Ladder:
    lengths = (8192, 16384, 32768, 65536, 131072, 262144)
    rungs = [
        Rung(
            asked=length,
            ok=True,
            reasons=[],
            actual=length * 0.99,
            ttft=(1.3e-4 * length + 2.8e-10 * length**2) * (1.4 if length == 8192 else 1),
            tpot=0.02,
        )
        for length in lengths
    ]
    rungs.append(Rung(asked=393216, ok=False, reasons=["T4: stalled"], actual=None))
    return Ladder(rungs=rungs, cliff=(262144, 393216), implausible=[8192])


def blocks(base: Result, *, count: int = 6, gain: float = 0.94, faults: bool = False) -> Blocks:
    order = abba(count)

    def arm(name: str, number: int) -> Result:
        told = run(base, [chat(4)], name="chat", seed=number + (100 if name == "B" else 0)).result
        assert told.client.tpot is not None
        factor = gain if name == "B" else 1.0
        tpot = msgspec.structs.replace(told.client.tpot, mean=told.client.tpot.mean * factor)
        return msgspec.structs.replace(told, client=msgspec.structs.replace(told.client, tpot=tpot))

    done = [(arm("A", number), arm("B", number)) for number in range(count)]
    found = judge(done, order, kind="ab", delta=0.02, floor={"tpot": 0.015, "ttft": 0.04})
    return msgspec.structs.replace(
        found,
        sentinel=[0.021 + 0.0002 * (n % 3) for n in range(count + 1)],
        faults=["b-3 is invalid"] if faults else [],
    )


def soak(hours: int = 8) -> Soak:
    chance = random.Random(5)
    windows = [
        Window(
            at_s=600.0 * number,
            run=f"soak-{number}",
            status="invalid" if number == 7 else "valid",
            sent=200,
            failed=3 if number == 7 else 0,
            out_tok_s=300 + chance.uniform(-10, 10),
            ttft=0.4 + chance.uniform(-0.05, 0.05),
            tpot=0.03,
            hit_share=0.4,
            resident=int(GIB * (2 + 0.01 * number)),
            zombies=number // 20,
            temperature=60 + chance.uniform(-2, 2),
        )
        for number in range(hours * 6)
    ]
    looks = [
        Sentinel(at_s=w.at_s + 1, run="s", ttft=0.1, tpot=0.021 + chance.uniform(0, 5e-4))
        for w in windows
    ]
    return Soak(
        schema="relight.bench.soak/1",
        seconds=hours * 3600.0,
        complete=True,
        windows=windows,
        sentinels=looks,
        sentinel_tpot=trend([(s.at_s, s.tpot) for s in looks]),
        sentinel_ttft=None,
        resident=trend([(w.at_s, w.resident) for w in windows]),
        limit=0.1,
        faults=["soak-7 is invalid"],
    )


def mixture() -> Mixed:
    def side(ttft: float, tpot: float, gap: float, requests: int = 100) -> Side:
        spread = [0.6 + 0.8 * n / requests for n in range(requests)]
        return Side(
            requests=requests,
            ttft=summary([ttft * factor for factor in spread]),
            tpot=summary([tpot * factor for factor in spread]),
            gap_max=gap,
            prefill_tok_s=1000.0,
        )

    return Mixed(
        schema="relight.bench.mixed/1",
        runs={"short": "a", "long": "b", "mixed": "c"},
        short_alone=side(0.3, 0.03, 0.2),
        short_beside=side(0.5, 0.05, 0.7),
        probe_alone=side(0.06, 0.03, 0.05),
        probe_beside=side(0.15, 0.04, 0.09),
        long_alone=side(40.0, 0.02, 0.1, 1),
        long_beside=side(55.0, 0.04, 0.5, 1),
        short_ttft_ratio=1.67,
        short_p95_ratio=1.9,
        short_gap_ratio=3.5,
        long_prefill_ratio=0.73,
        jain=0.99,
        faults=[],
    )


def everything(base: Result) -> Gathered:
    """Something for every picture."""
    runs = [*loads(base), mixed(base), agents(base)]
    runs += [drafted(base, depth, 0.030 + 0.004 * depth) for depth in (1, 3, 5, 7)]
    place = Place(session="s", arm="A")
    protocol = msgspec.structs.replace(base.protocol, place=place)
    runs.append(run(base, [chat(4)], name="chat", protocol=protocol))
    return Gathered(
        runs=runs,
        blocks={"ab-1": blocks(base)},
        ladders={"ladder-1": ladder()},
        soaks={"soak-1": soak()},
        mixtures={"mixed-1": mixture()},
    )
