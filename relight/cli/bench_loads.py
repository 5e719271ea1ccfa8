"""The commands that measure one kind of load: lengths, mixtures, hours, traces, agents, needles.
Knows no figure."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from relight.base.errors import BadSetting
from relight.cli import show
from relight.cli.bench_exits import EXITS, UNDECIDED, judged
from relight.cli.bench_options import (
    BASE,
    CELL,
    CLIENTS,
    HIGH,
    KEY,
    LOW,
    MODEL,
    OUT,
    READY,
    RESULTS,
    START,
    URL,
)

if TYPE_CHECKING:
    from relight.bench.mixed import Part
    from relight.bench.record import Record
    from relight.bench.result import Result
    from relight.bench.scenario import Scenario


@judged
def ladder(
    url: URL,
    low: LOW = "1K",
    high: HIGH = "32K",
    bisect: Annotated[bool, typer.Option(help="Halve the gap at the first failure.")] = True,
    needle: Annotated[bool, typer.Option(help="Ask for a number hidden in the prompt.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Requests for each length.")] = 3,
    output: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 32,
    silence: Annotated[float, typer.Option(help="Seconds without a token that are a stall.")] = 120,
    model: MODEL = "",
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Measure one user at growing lengths, cold, and find where it ends: 0 if nowhere, else 2.

    Example: `relight bench ladder --url http://127.0.0.1:8000 --from 8K --to 512K --needle`
    """
    from relight.bench.ladder import climb, lengths_between, rung_scenario, size
    from relight.bench.scenario import Limits, Scenario
    from relight.cli.bench_session import Bench
    from relight.cli.bench_views import print_ladder

    base = Scenario(name="ladder", classes=[], limits=Limits(silence_s=silence))
    lengths = lengths_between(size(low), size(high))
    if size(low) > size(high):
        raise BadSetting(f"--from is {low} and --to {high}; wanted a longer one")

    def wanted(length: int) -> "Scenario":
        return rung_scenario(base, length, repeat, output, "single" if needle else None)

    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready, model=model, limits=base.limits)

        def measure(length: int) -> "Result":
            label = f"{length:,} tokens: "
            return bench.measure(url, wanted(length), model=model, label=label)

        found = climb(lengths, measure, bisect=bisect)
        path = bench.write("ladder", found)
    print_ladder(found)
    show.line(f"Written to {path}")
    if not found.complete:
        raise typer.Exit(UNDECIDED)
    if found.cliff or found.implausible:
        raise typer.Exit(EXITS["invalid"])


@judged
def mixed(
    url: URL,
    long: Annotated[str, typer.Option(help="Users x tokens in / out of the long ones.")] = (
        "1x300000/1024"
    ),
    short: Annotated[str, typer.Option(help="The same of the short ones.")] = "31x1024/512",
    probe: Annotated[str, typer.Option(help="One-token probes beside them; 0 for none.")] = "2/s",
    rounds: Annotated[int, typer.Option(min=1, help="Requests of each short user, alone.")] = 4,
    after: Annotated[float, typer.Option(min=0, help="Seconds before the long ones come.")] = 30.0,
    limit: Annotated[
        float, typer.Option(min=0, help="Fail above this ratio of the short ones' TTFT; 0: never.")
    ] = 0.0,
    scenario: BASE = "",
    model: MODEL = "",
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Measure short requests alone, a long one alone, and both together: who waits for whom.

    Example: `relight bench mixed --url http://127.0.0.1:8000 --long 1x300000/1024`
    """
    from relight.bench import mixed as loads
    from relight.cli.bench_session import Bench
    from relight.cli.bench_views import print_mixed

    base = _base(scenario, "mixed")
    wanted = loads.scenarios(
        base,
        loads.shape(short),
        loads.shape(long),
        loads.probe_rate(probe),
        rounds,
        after,
    )
    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready, model=model, limits=base.limits)

        def measure(part: "Part", one: "Scenario") -> "tuple[Result, list[Record]]":
            told = bench.rows(url, one, model=model, label=f"{part}: ")
            if not told[0].complete:
                raise typer.Exit(UNDECIDED)
            return told

        found = loads.measure_all(wanted, measure)
        path = bench.write("mixed", found)
    print_mixed(found)
    show.line(f"Written to {path}")
    if found.faults or (limit and (found.short_ttft_ratio or 0.0) > limit):
        raise typer.Exit(EXITS["invalid"])


@judged
def soak(
    url: URL,
    time_: Annotated[str, typer.Option("--time", help="How long, as 20m or 8h.")] = "8h",
    sentinel: Annotated[str, typer.Option(help="Load between two looks at one small cell.")] = (
        "10m"
    ),
    scenario: Annotated[
        str, typer.Option(help="The load; its requests are read as those of a minute.")
    ] = "soak",
    cell: CELL = "",
    limit: Annotated[float, typer.Option(help="Share that the small cell may slow down.")] = 0.10,
    model: MODEL = "",
    clients: CLIENTS = 1,
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Load a server for hours, and watch whether it stays what it was.

    Example: `relight bench soak --url http://127.0.0.1:8000 --time 8h --sentinel 10m`
    """
    from relight.bench import scenario as scenarios
    from relight.bench import soak as loads
    from relight.bench.arms import sentinel_of
    from relight.cli.bench_session import Bench
    from relight.cli.bench_views import print_soak

    total, each = loads.seconds(time_), loads.seconds(sentinel)
    load = scenarios.changed(scenarios.load(scenario), cell)
    parts = {"window": loads.window_of(load, min(each, total)), "sentinel": sentinel_of(load)}
    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready, model=model, limits=load.limits)
        begin = time.monotonic()

        def measure(part: Literal["sentinel", "window"]) -> "Result":
            label = f"{(time.monotonic() - begin) / 60:.0f} of {total / 60:.0f} min, {part}: "
            many = clients if part == "window" else 1
            return bench.measure(url, parts[part], model=model, label=label, clients=many)

        found = loads.run(measure, time.monotonic, total, limit)
        path = bench.write("soak", found)
    print_soak(found)
    show.line(f"Written to {path}")
    if found.faults:
        raise typer.Exit(EXITS["invalid"])
    if not found.complete:
        raise typer.Exit(UNDECIDED)


@judged
def trace(
    file: Annotated[Path, typer.Argument(help="JSON lines: timestamp, input_length, …")],
    url: URL,
    scale: Annotated[float, typer.Option(help="So many times faster than it was recorded.")] = 1.0,
    requests: Annotated[int, typer.Option(min=0, help="Only the first so many; 0: all.")] = 0,
    scenario: BASE = "",
    model: MODEL = "",
    clients: CLIENTS = 1,
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Replay recorded arrivals with their lengths and common beginnings.

    Example: `relight bench trace conversations.jsonl --url http://127.0.0.1:8000 --scale 2`
    """
    from relight.bench import trace as loads

    base = _base(scenario, "trace")
    made = loads.scenario_of(file, scale, requests)
    wanted = msgspec.structs.replace(base, classes=made.classes, cache="shared")
    _one(wanted, url, model, clients, start, ready, out, api_key_file)


@judged
def agent(
    url: URL,
    sessions: Annotated[int, typer.Option(min=1, help="Conversations at the same time.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Conversations one after another.")] = 4,
    cell: CELL = "",
    scenario: Annotated[str, typer.Option(help="A YAML file or a shipped name.")] = "agent",
    model: MODEL = "",
    clients: CLIENTS = 1,
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Measure agents: conversations that grow, upon a common beginning.

    Example: `relight bench agent --url http://127.0.0.1:8000 --sessions 32`
    """
    from relight.bench import scenario as scenarios

    load = scenarios.changed(scenarios.load(scenario), cell)
    talks = [one for one in load.classes if one.sessions is not None]
    if not talks:
        raise BadSetting(f"scenario {scenario} has no class with sessions", param="scenario")
    classes = [
        one
        if one.sessions is None
        else msgspec.structs.replace(
            one,
            users=sessions,
            requests=sessions * turns * rounds,
            sessions=msgspec.structs.replace(one.sessions, turns=turns),
        )
        for one in load.classes
    ]
    wanted = scenarios.check(msgspec.structs.replace(load, classes=classes))
    _one(wanted, url, model, clients, start, ready, out, api_key_file)


@judged
def needle(
    url: URL,
    low: LOW = "4K",
    high: HIGH = "32K",
    kinds: Annotated[
        str, typer.Option(help="Of: single, keys, values, chain, words. Empty: all.")
    ] = "",
    depths: Annotated[int, typer.Option(min=1, help="Places from the beginning to the end.")] = 5,
    repeat: Annotated[int, typer.Option(min=1, help="Needles of each kind at each depth.")] = 1,
    output: Annotated[int, typer.Option(min=2, help="Most tokens of each answer.")] = 64,
    least: Annotated[float, typer.Option(help="Share that must be found; else the code is 2.")] = (
        0.9
    ),
    scenario: BASE = "",
    model: MODEL = "",
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Hide things in long texts and ask for them: a score by length, kind and depth.

    Example: `relight bench needle --url http://127.0.0.1:8000 --from 8K --to 512K`
    """
    from relight.bench import needles as loads
    from relight.bench.ladder import lengths_between, size
    from relight.cli.bench_session import Bench
    from relight.cli.bench_views import print_needles

    base, chosen, places = _base(scenario, "needle"), loads.kinds_of(kinds), loads.depths_of(depths)
    if size(low) > size(high):
        raise BadSetting(f"--from is {low} and --to {high}; wanted a longer one")

    def wanted(length: int) -> "Scenario":
        return loads.scenario_of(base, length, chosen, places, repeat, output)

    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready, model=model, limits=base.limits)

        def measure(one: "Scenario") -> "Result":
            return bench.measure(url, one, model=model, label=f"{one.classes[0].name}: ")

        found = loads.search(
            lengths_between(size(low), size(high)),
            wanted,
            measure,
            kinds=chosen,
            depths=places,
            least=least,
        )
        path = bench.write("needles", found)
    print_needles(found)
    show.line(f"Written to {path}")
    if not found.complete:
        raise typer.Exit(UNDECIDED)
    if found.faults:
        raise typer.Exit(EXITS["invalid"])


def _base(name: str, kind: str) -> "Scenario":
    """Everything of a scenario but its classes."""
    from relight.bench.scenario import Scenario, load

    loaded = load(name) if name else Scenario(name=kind, classes=[])
    return msgspec.structs.replace(loaded, name=kind, classes=[], cells=[])


def _one(
    wanted: "Scenario",
    url: str,
    model: str,
    clients: int,
    start: str,
    ready_s: float,
    out: Path,
    api_key_file: Path | None,
) -> None:
    """One run, shown and judged."""
    from relight.cli.bench_session import Bench
    from relight.cli.bench_view import print_result

    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready_s, model=model, limits=wanted.limits)
        told = bench.measure(url, wanted, model=model, clients=clients)
    print_result(told)
    show.line(f"Written to {out / told.run_id}.json")
    assert told.validity is not None
    raise typer.Exit(EXITS[told.validity.status])
