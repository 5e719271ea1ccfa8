"""The commands that measure a server. Knows no figure: it reads flags, shows and sets exit codes.

0: valid. 2: invalid, with the reasons. 3: undecided (noise, or the run was stopped). 4: it could
not be run at all.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from relight.base.errors import BadSetting
from relight.cli import bench_blocks, bench_loads, bench_plot, show
from relight.cli.bench_exits import EXITS, judged
from relight.cli.bench_options import (
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

app = typer.Typer(
    name="bench",
    help="Measure any OpenAI-compatible server, and judge what was measured.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    bench_blocks.ab,
    bench_blocks.aa,
    bench_loads.ladder,
    bench_loads.mixed,
    bench_loads.soak,
    bench_loads.trace,
    bench_loads.agent,
    bench_loads.needle,
    bench_plot.plot,
):
    app.command()(command)


@app.command()
@judged
def run(
    scenario: SCENARIO,
    url: URL,
    model: MODEL = "",
    cell: Annotated[
        list[str] | None,
        typer.Option(help="Change fields: users=4,limits.done=false. Several: one after another."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measure each cell so often.")] = 1,
    clients: CLIENTS = 1,
    start: START = "",
    ready: READY = 600.0,
    out: OUT = RESULTS,
    api_key_file: KEY = None,
    nonce: Annotated[
        str, typer.Option(help="Make the same prompts again; else new ones each time.")
    ] = "",
) -> None:
    """Measure a server with a scenario, and write a result that says whether it is valid.

    Example: `relight bench run chat --url http://127.0.0.1:8000 --cell users=2,requests=16`
    """
    from relight.bench import scenario as scenarios
    from relight.bench.schema import Place
    from relight.cli.bench_session import Bench
    from relight.cli.bench_view import print_cells, print_result

    wanted = scenarios.load(scenario)
    # One cell of the command line changes those of the scenario; several take their place.
    common = cell[0] if cell and len(cell) == 1 else ""
    cells = cell if cell and len(cell) > 1 else wanted.cells or [""]
    base = msgspec.structs.replace(scenarios.changed(wanted, common), cells=[])
    made = [scenarios.changed(base, one) for one in cells]
    session = secrets.token_hex(8)
    results = []
    with Bench(out, api_key_file) as bench:
        bench.host(url, start, ready_s=ready, model=model, limits=base.limits)
        for number, (name, one) in product(range(repeat), list(zip(cells, made, strict=True))):
            place = Place(session=session, cell=name, repeat=number)
            label = f"{name}: " if name else ""
            told = bench.measure(
                url, one, model=model, nonce=nonce, label=label, clients=clients, place=place
            )
            results.append(told)
            if not told.complete:
                break
    if len(results) == 1:
        print_result(results[0])
    else:
        print_cells(results)
    for told in results:
        show.line(f"Written to {out / told.run_id}.json")
    codes = [EXITS[told.validity.status] for told in results if told.validity is not None]
    raise typer.Exit(EXITS["invalid"] if EXITS["invalid"] in codes else max(codes))


@app.command()
@judged
def check(
    result: Annotated[Path, typer.Argument(help="A result's JSON file; its rows lie beside it.")],
) -> None:
    """Judge a result again from its files: 0 valid, 2 invalid, 3 incomplete.

    Example: `relight bench check bench-results/chat-20261129-174500-ab12.json`
    """
    from relight.bench import gate
    from relight.bench import result as files
    from relight.cli.bench_view import print_validity

    told, records, rows_hash = files.read(result)
    validity = gate.audit(told, records, rows_hash, files.series_hash(result, told))
    print_validity(validity)
    raise typer.Exit(EXITS[validity.status])


@app.command()
@judged
def compare(
    first: Annotated[Path, typer.Argument(help="Result A.")],
    second: Annotated[Path, typer.Argument(help="Result B.")],
    allow: Annotated[bool, typer.Option(help="Compare even what was asked unlike.")] = False,
) -> None:
    """Put two results side by side; refuses unlike ones. Two runs decide nothing: no verdict.

    Example: `relight bench compare bench-results/before.json bench-results/after.json`
    """
    from relight.bench import result as files
    from relight.bench.compare import unlike
    from relight.cli.bench_view import print_comparison

    (a, *_), (b, *_) = files.read(first), files.read(second)
    problems = unlike(a, b)
    for problem in problems:
        show.line(f"unlike: {problem}")
    if problems and not allow:
        show.error("these results cannot be compared; --allow shows them nevertheless")
        raise typer.Exit(EXITS["invalid"])
    print_comparison(a, b)


@app.command()
@judged
def selftest(
    only: Annotated[str, typer.Option(help="Only these cases: T1,T4.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time; they mostly wait.")] = 3,
) -> None:
    """Measure a scripted server, and check that every trap is rejected and every figure recovered.

    Example: `relight bench selftest --only T1,T4`
    """
    from relight.bench.selftest.cases import CASES
    from relight.bench.selftest.harness import run_case

    named = {name for name in only.split(",") if name}
    if unknown := named - {case.id for case in CASES}:
        raise BadSetting(
            f"only names {sorted(unknown)}; cases are {', '.join(case.id for case in CASES)}"
        )
    cases = [case for case in CASES if not named or case.id in named]
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        told = pool.map(lambda case: asyncio.run(run_case(case)), cases)
        for case, (passed, found) in zip(cases, told, strict=True):
            failed += not passed
            show.line(
                f"{'ok    ' if passed else 'FAILED'} {case.id:11} {case.expected:9} "
                f"{case.title}: {found}"
            )
    if failed:
        show.error(f"{failed} cases failed; figures of this harness are not to be trusted here")
        raise typer.Exit(EXITS["invalid"])
