"""The command that draws results. Knows no figure."""

from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadSetting
from relight.cli import show
from relight.cli.bench_exits import judged

PAGE = "report.html"


@judged
def plot(
    results: Annotated[
        list[Path], typer.Argument(help="Result files, or folders of them: bench-results.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and pictures; else where the results lie.")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Pictures as PNG, too.")] = False,
) -> None:
    """Draw results: one page that needs no other file, and its pictures as SVG.

    Example: `relight bench plot bench-results --out report`
    """
    try:
        from relight.bench import plots
    except ModuleNotFoundError as missing:
        raise BadSetting(
            f"pictures need {missing.name}, which is not installed: pip install 'relight[bench]'"
        ) from missing
    from relight.bench.plot_data import gather
    from relight.bench.report import report

    data = gather(results)
    first = results[0] if results[0].is_dir() else results[0].parent
    folder = out or first
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for picture in plots.draw(data, png=png):
        drawn.append(picture)
        (folder / f"{picture.file}.svg").write_bytes(picture.svg)
        if picture.png:
            (folder / f"{picture.file}.png").write_bytes(picture.png)
    page = folder / PAGE
    page.write_text(report(data, drawn), encoding="utf-8")
    for told in data.skipped:
        show.line(f"passed over: {told}", stderr=True)
    invalid = sum(not run.valid for run in data.runs)
    show.line(f"{len(data.runs)} runs, {invalid} of them not valid; {len(drawn)} pictures")
    show.line(f"Written to {page}")
