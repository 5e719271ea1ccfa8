"""How pictures look and become files: axes, colours, marks. Knows no result.

A filled mark is a valid run, a hollow one is not to be believed.
"""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

Format = Literal["svg", "png"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by colour-blind readers, too."""
MARKS = "osD^vP*"
GREY, BAD = "#777777", "#c0392b"
MAX_TICKS = 8
WIDTH, HEIGHT = 7.6, 4.2
DPI = 130
LOOK: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",  # text stays text: small files, and it can be searched
}


@contextmanager
def look() -> Iterator[None]:
    """Pictures are drawn and encoded inside of it; others in this process are not touched."""
    with mpl.rc_context(LOOK):
        yield


def panels(
    rows: int = 1, columns: int = 1, *, height: float = HEIGHT, **how: Any
) -> tuple[Figure, Any]:
    """A figure and its axes, an array where there are several. Height in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **how)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def mark(index: int) -> str:
    return MARKS[index % len(MARKS)]


def point(axes: Axes, x: float, y: float, *, valid: bool, index: int = 0, **how: Any) -> None:
    """Hollow unless it is valid."""
    shade = colour(index)
    axes.plot(
        [x],
        [y],
        mark(index),
        color=shade,
        markerfacecolor=shade if valid else "white",
        markeredgewidth=1.4,
        markersize=6,
        zorder=3,
        **how,
    )


def hollow_note(axes: Axes, any_invalid: bool) -> None:
    """Says what a hollow mark is, where there is one."""
    if any_invalid:
        axes.plot([], [], "o", color=GREY, markerfacecolor="white", label="hollow: not valid")


def legend(axes: Axes, **how: Any) -> None:
    """Only where something has a name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**how)


def legend_beside(axes: Axes) -> None:
    """At the right of the axes, where it hides nothing."""
    legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))


def from_zero(axes: Axes, *, x: bool = False) -> None:
    """The y axis, with `x` the other, too, from 0 to a little above what is drawn."""
    axes.set_ylim(0.0, _above(axes.yaxis))
    if x:
        axes.set_xlim(0.0, _above(axes.xaxis))


def _above(axis: Axis) -> float:
    top = float(axis.get_data_interval()[1])
    return 1.1 * top if top > 0 else 1.0


def measured_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Ticks of a logarithmic axis at the measured values, but for those too near to another."""
    shown: list[float] = []
    ordered = sorted(set(values))
    apart = (ordered[-1] / ordered[0]) ** (1 / MAX_TICKS)
    for value in ordered:
        if not shown or value >= shown[-1] * apart:
            shown.append(value)
    axis.set_ticks(shown, [short(value) for value in shown])
    axis.set_minor_locator(NullLocator())


def plain_log(axis: Axis) -> None:
    """Numbers instead of powers on a logarithmic axis; more of them where it spans less."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    steps = (1, 2, 3, 4, 5, 6, 7, 8, 9) if decades < 0.7 else (1, 2, 5) if decades < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """131072 as 128K: lengths are powers of two more often than of ten."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}K"
    if value >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:.3g}"


def encode(figure: Figure, form: Format, salt: str) -> bytes:
    """The same figure gives the same bytes; `salt` keeps ids of several pictures apart."""
    buffer = io.BytesIO()
    parameters: Any = {"svg.hashsalt": salt}
    with mpl.rc_context(parameters):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata)
    return buffer.getvalue()
