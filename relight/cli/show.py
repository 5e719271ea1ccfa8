"""Prints tables and errors of the command line. Knows no command."""

from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from relight.base.settings import GROUPS, Group, Loaded


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    grid = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False).print(grid)


def settings(loaded: Loaded, groups: Collection[Group] = GROUPS) -> None:
    table("Settings in effect", ("setting", "value", "source"), loaded.table(groups))


def error(message: str) -> None:
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"error: {message}")
