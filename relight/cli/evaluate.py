"""The command that measures a model by ember's tasks. Knows no instance."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from relight import __version__
from relight.base.errors import BadSetting
from relight.base.packaged import DEFAULT_MODEL, NAMES
from relight.cli import show

if TYPE_CHECKING:
    from relight.base.settings import Settings
    from relight.ember.tasks import Task
    from relight.lab.evaluate import Outcome, Told

MAX_ENGINES = 8


def evaluate(
    model: Annotated[
        str, typer.Argument(help=f"Folder of a checkpoint, or {NAMES}.")
    ] = DEFAULT_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    tasks: Annotated[
        str,
        typer.Option(
            help="Only some of: arithmetic, letters, tool call, tool result, key 1K, key 4K."
        ),
    ] = "",
    instances: Annotated[
        int, typer.Option(min=2, help="Instances of each task, half of them in each language.")
    ] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the instances.")] = 7,
    numerics: Annotated[str, typer.Option(help="auto, official or reference.")] = "auto",
    device: Annotated[str, typer.Option(help="torch device; auto: as `serve` chooses.")] = "auto",
    replay: Annotated[
        str, typer.Option(help="exact, or bounded, which is approximate and for V4.1 alone.")
    ] = "exact",
    engines: Annotated[
        int, typer.Option(min=0, help="Engine processes; 0: one a core, on an accelerator one.")
    ] = 0,
) -> None:
    """Measure a model on held-out instances of ember's tasks: code 1 if a score is below its bar.

    Example: `relight eval ember --tasks "arithmetic, key 1K" --instances 100`
    """
    from relight.base.config import read_config
    from relight.base.packaged import model_folder
    from relight.base.settings import load

    wanted = _tasks(tasks)
    given = {"model": model, "numerics": numerics, "device": device, "replay": replay}
    settings = load(given, {}).settings
    read_config(model_folder(model))  # a wrong folder is told before anything is started
    count = engines or _engines(device)
    began_s = time.monotonic()
    with _bar(instances // 2 * 2 * len(wanted)) as (told, say):
        operator, outcomes = asyncio.run(
            _measure(settings, count, wanted, instances // 2, seed, told, say)
        )
    seconds = time.monotonic() - began_s
    about: dict[str, str | int] = {
        "model": model,
        "operator": operator,
        "seed": seed,
        "engines": count,
    }
    if as_json:
        _print_json(about, outcomes, seconds)
    else:
        _print_table(about, outcomes, seconds)
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


def _tasks(named: str) -> "list[Task]":
    from relight.ember.tasks import TASKS

    names = [name.strip() for name in named.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TASKS]:
        raise BadSetting(f"tasks names {unknown[0]!r}; wanted some of: {', '.join(TASKS)}")
    return [task for task in TASKS if not names or task in names]


def _engines(device: str) -> int:
    from relight.engine.assemble import choose_device
    from relight.engine.openmp import choose_threads

    if choose_device(device).type != "cpu":
        return 1
    return min(choose_threads(0, os.cpu_count() or 1), MAX_ENGINES)


async def _measure(
    settings: "Settings",
    count: int,
    tasks: "Sequence[Task]",
    per_language: int,
    seed: int,
    told: "Told",
    say: "Callable[[str], None]",
) -> "tuple[str, list[Outcome]]":
    from relight.lab.evaluate import engines, evaluate

    async with engines(settings, count) as sessions:
        outcomes = []
        for task in tasks:
            outcomes.append(await evaluate(sessions, task, per_language, seed, told))
            last = outcomes[-1]
            say(f"{task}: {last.score:.1f} % right in {last.seconds:.0f} s")
        return sessions[0].info.operator, outcomes


@contextmanager
def _bar(total: int) -> "Iterator[tuple[Told, Callable[[str], None]]]":
    """Answers done, and of the task at hand the share that is right; on stderr. The second of the
    pair prints a line above."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    counts: dict[str, list[bool]] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=show.console(stderr=True), transient=True
    ) as bar:
        line = bar.add_task("starting engines", total=total)

        def told(task: str, right: bool) -> None:
            seen = counts.setdefault(task, [])
            seen.append(right)
            share = 100 * sum(seen) / len(seen)
            bar.update(line, advance=1, description=f"{task}: {share:.1f} % right")

        yield told, bar.console.print


def _print_json(about: dict[str, str | int], outcomes: "Sequence[Outcome]", seconds: float) -> None:
    import msgspec

    tasks = [
        {"bar": outcome.bar, "score": outcome.score, "passed": outcome.passed}
        | msgspec.to_builtins(outcome)
        for outcome in outcomes
    ]
    told = {"relight": __version__, **about, "seconds": seconds, "tasks": tasks}
    print(msgspec.json.format(msgspec.json.encode(told)).decode())


def _print_table(
    about: dict[str, str | int], outcomes: "Sequence[Outcome]", seconds: float
) -> None:
    numbers = ("bar", "score", "English", "Chinese", "n", "seconds")
    show.table(
        f"{about['model']}: right answers, percent",
        ("task", *numbers, "passed"),
        [
            (
                outcome.task,
                f"{outcome.bar:.0f}",
                f"{outcome.score:.1f}",
                *(f"{count.score:.1f}" for count in outcome.counts),
                str(sum(count.count for count in outcome.counts)),
                f"{outcome.seconds:.1f}",
                "yes" if outcome.passed else "NO",
            )
            for outcome in outcomes
        ],
        numbers=numbers,
    )
    every = [count for outcome in outcomes for count in outcome.counts]
    given, reused, made = (
        sum(getattr(count, name) for count in every)
        for name in ("prompt_tokens", "cached_tokens", "made_tokens")
    )
    show.line(
        f"{seconds:.0f} s with {about['engines']} engines, seed {about['seed']}: {given:,} prompt "
        f"tokens, {reused:,} of them reused; {made:,} made"
    )
    show.line(str(about["operator"]))
