"""Prints tables, lines and errors of the command line. Knows no command."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from relight.base.knobs import GROUPS, Group
from relight.base.settings import Loaded
from relight.base.types import EngineInfo


def console(*, stderr: bool = False) -> Console:
    """Texts of users and files stand in what is printed, so nothing in it is markup."""
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def line(text: str, *, stderr: bool = False) -> None:
    console(stderr=stderr).print(text)


def error(message: str) -> None:
    console(stderr=True).print(f"error: {message}")


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
) -> None:
    """`numbers` are the columns whose cells stand at the right."""
    grid = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False).print(grid)


def settings(loaded: Loaded, groups: Collection[Group] = GROUPS) -> None:
    table("Settings in effect", ("setting", "value", "source"), loaded.table(groups))


def engine(info: EngineInfo) -> None:
    """What was derived from model and machine at load, and what computes the answers."""
    parts = dict(part.partition(" ")[::2] for part in info.operator.split("; "))
    if "kernels" in parts:
        parts["kernels"] = _variants(parts["kernels"])
    rows = [("longest context", f"{info.max_context:,} tokens"), *parts.items()]
    table("Engine", ("what", "value"), rows)
    for note in info.notes:
        line(f"note: {note}")


def _variants(kernels: str) -> str:
    """`attend:a index:a norm:b` as `a, but norm: b`: the commonest, then what differs."""
    chosen = [part.partition(":")[::2] for part in kernels.split()]
    (common, _), *_ = Counter(variant for _, variant in chosen).most_common(1)
    others = [f"{op}: {variant}" for op, variant in chosen if variant != common]
    return ", ".join([f"{common}, but {others[0]}", *others[1:]]) if others else common


def memory(info: EngineInfo) -> None:
    """What was predicted by kind, and beside it what was found after a first step."""
    rows = [*info.memory, ("together", sum(size for _, size in info.memory))]
    _bytes("Memory", rows)
    if info.measured:
        _bytes("Memory, measured", info.measured)


def _bytes(title: str, rows: Sequence[tuple[str, int]]) -> None:
    table(
        title,
        ("what", "bytes", "GiB"),
        [(what, f"{size:,}", f"{size / 2**30:.3f}") for what, size in rows],
        numbers=("bytes", "GiB"),
    )
