"""The commands that measure in blocks: two arms, or one arm against itself. Knows no figure."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relight.base.errors import BadSetting
from relight.cli import show
from relight.cli.bench_exits import EXITS, UNDECIDED, judged
from relight.cli.bench_options import (
    CELL,
    CLIENTS,
    KEY,
    MODEL,
    OUT,
    READY,
    RESULTS,
    SCENARIO,
    START,
    URL,
)

if TYPE_CHECKING:
    from relight.bench.arms import Arm, Blocks
    from relight.bench.result import Result

BLOCKS = Annotated[int, typer.Option(min=2, help="Pairs of runs; under four nothing is decided.")]
DELTA = Annotated[float, typer.Option(help="Differences within this share are none.")]


@judged
def ab(
    scenario: SCENARIO,
    url_a: Annotated[str, typer.Option(help="Server A, as http://host:port.")],
    url_b: Annotated[str, typer.Option(help="Server B; may be A's, if both are started here.")],
    start_a: START = "",
    start_b: START = "",
    together: Annotated[bool, typer.Option(help="Let both started servers run all the time.")] = (
        False
    ),
    ready: READY = 600.0,
    metric: Annotated[str, typer.Option(help="tpot, ttft, e2e or out_tok_s.")] = "tpot",
    blocks: BLOCKS = 6,
    delta: DELTA = 0.02,
    floor: Annotated[
        Path | None, typer.Option(help="Result of `bench aa`: differences below its are noise.")
    ] = None,
    cell: CELL = "",
    model: MODEL = "",
    clients: CLIENTS = 1,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Decide whether server B is faster than A: blocks in the order AB, BA, and a verdict.

    Example: `relight bench ab chat --url-a http://127.0.0.1:8000 --url-b http://127.0.0.1:8001`
    """
    from relight.bench.arms import METRICS

    if metric not in METRICS:
        raise BadSetting(f"metric is {metric!r}; wanted one of: {', '.join(METRICS)}")
    if url_a == url_b and (not start_a or not start_b or together):
        raise BadSetting(
            "both arms have one address; that needs --start-a and --start-b, and no --together"
        )
    servers = _Servers({"A": url_a, "B": url_b}, {"A": start_a, "B": start_b}, together, ready)
    told = _blocks(
        "ab", servers, scenario, cell, model, blocks, delta, floor, clients, out, api_key_file
    )
    decided = told.verdicts.get(metric)
    if told.faults:
        raise typer.Exit(EXITS["invalid"])
    if decided is None or decided.word == "noise" or metric in told.tells or not told.complete:
        raise typer.Exit(UNDECIDED)


@judged
def aa(
    scenario: SCENARIO,
    url: URL,
    start: START = "",
    ready: READY = 600.0,
    blocks: BLOCKS = 6,
    delta: DELTA = 0.02,
    cell: CELL = "",
    model: MODEL = "",
    clients: CLIENTS = 1,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
) -> None:
    """Measure a server against itself: the difference that this machine shows for nothing.

    Example: `relight bench aa chat --url http://127.0.0.1:8000 --blocks 6`
    """
    servers = _Servers({"A": url, "B": url}, {"A": start, "B": ""}, False, ready)
    told = _blocks(
        "aa", servers, scenario, cell, model, blocks, delta, None, clients, out, api_key_file
    )
    if told.faults:
        raise typer.Exit(EXITS["invalid"])
    if not told.complete:
        raise typer.Exit(UNDECIDED)


@dataclass(frozen=True, slots=True)
class _Servers:
    """Addresses and, where we start them, command lines of the arms."""

    urls: dict[str, str]
    starts: dict[str, str]
    together: bool
    ready_s: float

    @property
    def one(self) -> bool:
        """Whether one process answers both arms, and would know B's prompts from A's."""
        return self.urls["A"] == self.urls["B"] and not self.starts["B"]


def _blocks(
    kind: Literal["ab", "aa"],
    servers: _Servers,
    scenario: str,
    cell: str,
    model: str,
    blocks: int,
    delta: float,
    floor: Path | None,
    clients: int,
    out: Path,
    api_key_file: Path | None,
) -> "Blocks":
    from relight.bench import arms
    from relight.bench import scenario as scenarios
    from relight.bench.schema import Place
    from relight.bench.verdict import abba
    from relight.cli.bench_session import Bench
    from relight.cli.bench_view import print_blocks

    known = arms.read(floor).floor if floor else {}
    wanted = scenarios.changed(scenarios.load(scenario), cell)
    session = secrets.token_hex(8)
    order = "".join("".join(pair) for pair in abba(blocks))
    with Bench(out, api_key_file) as bench:
        hosts = bench.hosts(
            servers.starts,
            servers.urls,
            ready_s=servers.ready_s,
            together=servers.together,
            model=model,
            limits=wanted.limits,
        )

        def measure(arm: "Arm", number: int) -> "Result":
            # Two servers get the same prompts, so that answers can be compared.
            nonce = f"{session} {number}" + (arm if servers.one else "")
            hosts.have("A" if servers.one else arm)
            return bench.measure(
                servers.urls[arm],
                wanted,
                model=model,
                nonce=nonce,
                label=f"block {number + 1} of {blocks}, {arm}: ",
                clients=clients,
                place=Place(session=session, arm=arm, block=number, order=order),
            )

        def sentinel() -> "Result":
            hosts.have("A")
            small = arms.sentinel_of(wanted)
            place = Place(session=session, arm="sentinel", order=order)
            return bench.measure(
                servers.urls["A"], small, model=model, label="sentinel: ", place=place
            )

        found = arms.run_blocks(
            measure, blocks, kind=kind, delta=delta, floor=known, sentinel=sentinel
        )
    path = arms.write(out, found, session)
    print_blocks(found)
    show.line(f"Written to {path}")
    return found
