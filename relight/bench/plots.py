"""All pictures: what each shows, and those that a set of results has the data for. Knows no file
format of results.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from relight.bench import (
    plot_context,
    plot_drafts,
    plot_hours,
    plot_load,
    plot_pairs,
    plot_style,
    plot_time,
)
from relight.bench.plot_data import Gathered, Run, from_zero

MOST_RUNS = 8
"""So many runs have pictures of their own."""


@dataclass(frozen=True, slots=True)
class Picture:
    """`about` is the run or file that it is of; empty: of all. `png` only if it was asked for."""

    name: str
    about: str
    caption: str
    svg: bytes
    png: bytes = b""

    @property
    def file(self) -> str:
        """A name for its files, without an ending."""
        return f"{self.about}-{self.name}" if self.about else self.name


Overall = Callable[[Gathered], Figure | None]
OfRun = Callable[[Run], Figure | None]

OVERALL: dict[str, tuple[Overall, str]] = {
    "pareto": (
        plot_load.pareto,
        "Up and to the right is better. Each point is a number of users; bars are 95 % intervals "
        "of repeated runs.",
    ),
    "latency": (
        plot_load.latency,
        "Means drawn through, 95th percentiles broken where there were enough requests. Where the "
        "line of running sequences leaves the dotted one, further users only wait.",
    ),
    "needles": (
        plot_context.needles,
        "The share of hidden facts that was found, by length of the prompt and by where in it they "
        "were hidden.",
    ),
    "advance": (
        plot_drafts.advance,
        "Speculation pays where a point lies above the grey line of another.",
    ),
    "sentinel": (
        plot_pairs.sentinels,
        "The same small cell, measured before and after each block. If it moves, the machine did.",
    ),
}
OF_RUN: dict[str, tuple[OfRun, str]] = {
    "requests": (
        plot_time.gantt,
        "A line for each request: what it waited for, when its prompt was read, when its answer "
        "came; red where the answer stood still for more than ten of its median gaps.",
    ),
    "gaps": (
        plot_time.gaps,
        "Each gap between two chunks of an answer, by when it ended. Below: prompt tokens that "
        "were being read at that time, the usual cause of long gaps.",
    ),
    "memory": (
        plot_time.memory,
        "Kinds of cache memory, requests that run and wait, and how the longest prompt came along.",
    ),
    "machine": (plot_time.machine, "The server's processes and devices while the run went on."),
    "acceptance": (
        plot_drafts.acceptance,
        "Over all verifications (drawn through), over those that drafted so far (broken), over "
        "those that accepted all before (dotted).",
    ),
    "turns": (
        plot_pairs.turns,
        "How much of each turn's prompt the cache knew, and what the first token then cost.",
    ),
}
LADDER = (
    "The grey line is the fit of seconds over tokens; crosses are lengths that failed, and the red "
    "band is where the limit lies."
)
SOAK = (
    "The small sentinel cell is the same all the time: it shows the server apart from its load. "
    "What grows in the lower panels is what a server loses."
)
MIXTURE = (
    "The same requests alone and beside the others. A fair server makes the long prompt a little "
    "slower, and leaves the short ones nearly as they were."
)
FOREST = (
    "A difference is real where its interval leaves both 1 and the grey band of this machine's "
    "noise; equivalent where it lies within the dotted lines."
)


def draw(data: Gathered, *, png: bool = False) -> Iterator[Picture]:
    """Every picture that there is data for; those of all runs first."""
    for name, about, caption, drawn in wanted(data):
        with plot_style.look():
            figure = drawn()
            if figure is None:
                continue
            salt = f"{name} {about}"
            svg = plot_style.encode(figure, "svg", salt)
            yield Picture(
                name, about, caption, svg, plot_style.encode(figure, "png", salt) if png else b""
            )


Drawn = Callable[[], Figure | None]


def wanted(data: Gathered) -> Iterator[tuple[str, str, str, Drawn]]:
    for name, (overall, caption) in OVERALL.items():
        yield name, "", caption, partial(overall, data)
    for about, ladder in data.ladders.items():
        yield "context", about, LADDER, partial(plot_context.context, ladder)
    for about, blocks in data.blocks.items():
        yield "forest", about, FOREST, partial(plot_pairs.forest, blocks)
    for about, soak in data.soaks.items():
        yield "soak", about, SOAK, partial(plot_hours.soak, soak)
    for about, mixture in data.mixtures.items():
        yield "mixture", about, MIXTURE, partial(plot_hours.mixture, mixture)
    for run in map(from_zero, own_pictures(data)):
        for name, (of_run, caption) in OF_RUN.items():
            yield name, run.result.run_id, caption, partial(of_run, run)


def own_pictures(data: Gathered) -> list[Run]:
    """Of each series the last run with the most users. Runs of blocks are parts of a decision, and
    have no pictures of their own."""
    several = [[run for run in runs if not _in_blocks(run)] for runs in data.by_series().values()]
    last = [max(reversed(runs), key=lambda run: run.users or 0) for runs in several if runs]
    return last[:MOST_RUNS]


def _in_blocks(run: Run) -> bool:
    place = run.result.protocol.place
    return place is not None and bool(place.arm)
