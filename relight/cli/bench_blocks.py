"""The commands that measure more than once: two arms in blocks, one arm against itself, a ladder of
lengths. Knows no figure."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relight.base.errors import BadSetting
from relight.cli import show
from relight.cli.bench_exits import EXITS, UNDECIDED, judged

if TYPE_CHECKING:
    from relight.bench.arms import Arm, Blocks
    from relight.bench.result import Result
    from relight.bench.scenario import Scenario

SCENARIO = Annotated[str, typer.Argument(help="A YAML file or a shipped name, such as chat.")]
CELL = Annotated[str, typer.Option(help="Change fields of classes: users=4,input_tokens=512.")]
MODEL = Annotated[str, typer.Option(help="Needed only when a server has several models.")]
OUT = Annotated[Path, typer.Option(help="Folder for all result files.")]
KEY = Annotated[Path | None, typer.Option(help="File with the server's key; never stored.")]
BLOCKS = Annotated[int, typer.Option(min=2, help="Pairs of runs; under four nothing is decided.")]
DELTA = Annotated[float, typer.Option(help="Differences within this share are none.")]


@judged
def ab(
    scenario: SCENARIO,
    url_a: Annotated[str, typer.Option(help="Server A, as http://host:port.")],
    url_b: Annotated[str, typer.Option(help="Server B.")],
    metric: Annotated[str, typer.Option(help="tpot, ttft, e2e or out_tok_s.")] = "tpot",
    blocks: BLOCKS = 6,
    delta: DELTA = 0.02,
    floor: Annotated[
        Path | None, typer.Option(help="Result of `bench aa`: differences below its are noise.")
    ] = None,
    cell: CELL = "",
    model: MODEL = "",
    out: OUT = Path("bench-results"),
    api_key_file: KEY = None,
) -> None:
    """Decide whether server B is faster than A: blocks in the order AB, BA, and a verdict.

    Example: `relight bench ab chat --url-a http://127.0.0.1:8000 --url-b http://127.0.0.1:8001`
    """
    from relight.bench.arms import METRICS

    if metric not in METRICS:
        raise BadSetting(f"metric is {metric!r}; wanted one of: {', '.join(METRICS)}")
    urls: dict[Arm, str] = {"A": url_a, "B": url_b}
    told = _blocks("ab", urls, scenario, cell, model, blocks, delta, floor, out, api_key_file)
    decided = told.verdicts.get(metric)
    if told.faults:
        raise typer.Exit(EXITS["invalid"])
    if decided is None or decided.word == "noise" or metric in told.tells:
        raise typer.Exit(UNDECIDED)


@judged
def aa(
    scenario: SCENARIO,
    url: Annotated[str, typer.Option(help="The server, as http://host:port.")],
    blocks: BLOCKS = 6,
    delta: DELTA = 0.02,
    cell: CELL = "",
    model: MODEL = "",
    out: OUT = Path("bench-results"),
    api_key_file: KEY = None,
) -> None:
    """Measure a server against itself: the difference that this machine shows for nothing.

    Example: `relight bench aa chat --url http://127.0.0.1:8000 --blocks 6`
    """
    urls: dict[Arm, str] = {"A": url, "B": url}
    told = _blocks("aa", urls, scenario, cell, model, blocks, delta, None, out, api_key_file)
    if told.faults:
        raise typer.Exit(EXITS["invalid"])


def _blocks(
    kind: Literal["ab", "aa"],
    urls: "dict[Arm, str]",
    scenario: str,
    cell: str,
    model: str,
    blocks: int,
    delta: float,
    floor: Path | None,
    out: Path,
    api_key_file: Path | None,
) -> "Blocks":
    from relight.bench import arms
    from relight.bench import scenario as scenarios
    from relight.cli.bench_session import Bench
    from relight.cli.bench_view import print_blocks

    known = arms.read(floor).floor if floor else {}
    wanted = scenarios.changed(scenarios.load(scenario), cell)
    session = secrets.token_hex(8)
    with Bench(out, api_key_file) as bench:

        def measure(arm: "Arm", number: int) -> "Result":
            # Two servers get the same prompts, so that answers can be compared; one server that
            # got them twice would answer from its cache.
            nonce = f"{session} {number}" + (arm if urls["A"] == urls["B"] else "")
            label = f"block {number + 1} of {blocks}, {arm}: "
            told = bench.measure(urls[arm], wanted, model=model, nonce=nonce, label=label)
            if not told.complete:
                raise typer.Exit(UNDECIDED)
            return told

        def sentinel() -> "Result":
            small = arms.sentinel_of(wanted)
            return bench.measure(urls["A"], small, model=model, label="sentinel: ")

        found = arms.run_blocks(
            measure, blocks, kind=kind, delta=delta, floor=known, sentinel=sentinel
        )
    path = arms.write(out, found, session)
    print_blocks(found)
    show.line(f"Written to {path}")
    return found


@judged
def ladder(
    url: Annotated[str, typer.Option(help="The server, as http://host:port.")],
    low: Annotated[str, typer.Option("--from", help="Shortest prompt, in tokens.")] = "1K",
    high: Annotated[str, typer.Option("--to", help="Longest; between them it doubles.")] = "32K",
    bisect: Annotated[bool, typer.Option(help="Halve the gap at the first failure.")] = True,
    needle: Annotated[bool, typer.Option(help="Ask for a number hidden in the prompt.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Requests for each length.")] = 3,
    output: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 32,
    silence: Annotated[float, typer.Option(help="Seconds without a token that are a stall.")] = 120,
    model: MODEL = "",
    out: OUT = Path("bench-results"),
    api_key_file: KEY = None,
) -> None:
    """Measure one user at growing lengths, cold, and find where it ends: 0 if nowhere, else 2.

    Example: `relight bench ladder --url http://127.0.0.1:8000 --from 8K --to 512K --needle`
    """
    import msgspec

    from relight.bench.ladder import climb, lengths_between, rung_scenario, size
    from relight.bench.scenario import Limits, Scenario
    from relight.cli.bench_session import Bench
    from relight.cli.bench_view import print_ladder

    base = Scenario(name="ladder", classes=[], limits=Limits(silence_s=silence))
    lengths = lengths_between(size(low), size(high))
    if size(low) > size(high):
        raise BadSetting(f"--from is {low} and --to {high}; wanted a longer one")

    def wanted(length: int) -> "Scenario":
        return rung_scenario(base, length, repeat, output, "single" if needle else None)

    with Bench(out, api_key_file) as bench:

        def measure(length: int) -> "Result":
            label = f"{length:,} tokens: "
            told = bench.measure(url, wanted(length), model=model, label=label)
            if not told.complete:
                raise typer.Exit(UNDECIDED)
            return told

        found = climb(lengths, measure, bisect=bisect)
    path = out / f"ladder-{secrets.token_hex(4)}.json"
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    print_ladder(found)
    show.line(f"Written to {path}")
    if found.cliff or found.implausible:
        raise typer.Exit(EXITS["invalid"])
