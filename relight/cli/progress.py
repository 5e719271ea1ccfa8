"""Draws the progress of moving bytes: count, share, GB/s. Knows no file and no tensor."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all)."""


@contextmanager
def load_bar(
    console: Console, doing: str = "loading weights", did: str = "loaded"
) -> Iterator[Progress]:
    """A progress callback that draws a bar while the context is open, then prints one line if
    anything was moved."""
    columns = (
        TextColumn(doing),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    started: float | None = None
    loaded = 0
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("load", total=None)

        def show(done: int, total: int) -> None:
            nonlocal started, loaded
            if started is None:  # not before: a process may take seconds until it reads
                started = time.monotonic()
            loaded = done
            bar.update(task, completed=done, total=total)

        yield show
    if started is not None and loaded:
        console.print(load_line(loaded, time.monotonic() - started, did))


def load_line(nbytes: int, seconds: float, did: str = "loaded") -> str:
    """`loaded 3.00 GB in 1.5 s (2.00 GB/s)`; GB is 10^9 bytes."""
    rate = nbytes / max(seconds, 1e-9)
    return f"{did} {nbytes / 1e9:,.2f} GB in {seconds:.1f} s ({rate / 1e9:.2f} GB/s)"
