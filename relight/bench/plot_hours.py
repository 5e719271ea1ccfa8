"""Pictures of loads that go on for long or against each other: a soak, a mixture. Knows no file."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relight.bench import plot_style as style
from relight.bench.mixed import Mixed, Side
from relight.bench.soak import Soak, Trend

GIB = 2**30
MINUTE, HOUR = 60.0, 3600.0

Line = list[tuple[float, float, bool]]
"""Time, value, whether it is valid."""


def soak(told: Soak) -> Figure | None:
    """Panels of what the server gave and what it was made of, one below the other."""
    hours = told.seconds > 2 * HOUR
    unit = HOUR if hours else MINUTE
    panels = [(name, line) for name, line in _lines(told) if line]
    if not panels:
        return None
    figure, _ = style.panels(len(panels), 1, height=1.0 + 1.45 * len(panels), sharex=True)
    for axes, (name, line) in zip(figure.axes, panels, strict=True):
        axes.plot([at / unit for at, _, _ in line], [value for _, value, _ in line], alpha=0.6)
        for at, value, valid in line:
            style.point(axes, at / unit, value, valid=valid)
        axes.set_ylabel(name)
        style.from_zero(axes)
    first = figure.axes[0]
    first.set_title(f"Soak; sentinel's time per token: {_trend(told.sentinel_tpot)}")
    style.hollow_note(first, any(w.status != "valid" for w in told.windows))
    style.legend(first, loc="lower left")
    figure.axes[-1].set_xlabel(f"{'hours' if hours else 'minutes'} since the start")
    return figure


def _lines(told: Soak) -> list[tuple[str, Line]]:
    def of_windows(field: str, unit: float = 1.0) -> Line:
        values = [(w.at_s, getattr(w, field), w.status == "valid") for w in told.windows]
        return [(at, value / unit, valid) for at, value, valid in values if value is not None]

    looks = [(s.at_s, 1000 * s.tpot, True) for s in told.sentinels if s.tpot is not None]
    return [
        ("sentinel\nTPOT, ms", looks),
        ("load\ntokens/s out", of_windows("out_tok_s")),
        ("load\nTTFT, s", of_windows("ttft")),
        ("resident\nGiB", of_windows("resident", GIB)),
        ("zombies", of_windows("zombies")),
        ("device\n°C", of_windows("temperature")),
    ]


def _trend(trend: Trend | None) -> str:
    if trend is None:
        return "unknown"
    interval = (
        "" if trend.low is None or trend.high is None else f" [{trend.low:+.1%}, {trend.high:+.1%}]"
    )
    return f"{trend.change:+.1%}{interval}"


def mixture(told: Mixed) -> Figure | None:
    """Alone and beside each other: means as marks, 95th percentiles as strokes."""
    kinds: list[tuple[str, Side, Side]] = [
        ("short", told.short_alone, told.short_beside),
        ("probe", told.probe_alone, told.probe_beside),
        ("long", told.long_alone, told.long_beside),
    ]
    shown = [kind for kind in kinds if kind[1].ttft or kind[2].ttft]
    if not shown:
        return None
    figure, axes = style.panels(1, 3, height=3.8)
    titles = ("time to first token, s", "time per output token, s", "longest gap, s")
    for panel, title in zip(axes, titles, strict=True):
        for place, (_, alone, beside) in enumerate(shown):
            for shift, side, shade in ((-0.12, alone, 0), (0.12, beside, 1)):
                _point(panel, place + shift, side, title, shade, valid=not told.faults)
        panel.set_xticks(range(len(shown)), [name for name, _, _ in shown])
        panel.set_xlim(-0.5, len(shown) - 0.5)
        panel.set_title(title, fontsize=9)
        panel.set_ylabel("s")
        panel.set_yscale("log")
        style.plain_log(panel.yaxis)
        panel.grid(axis="x", visible=False)
    for label, shade in (("alone", 0), ("beside the others", 1)):
        axes[0].plot([], [], style.mark(shade), color=style.colour(shade), label=label)
    axes[0].plot([], [], "_", color="black", label="95th percentile")
    style.hollow_note(axes[0], bool(told.faults))
    figure.legend(loc="outside lower center", ncols=4)
    for panel in axes:
        panel.set_xlabel("class of requests")
    return figure


def _point(axes: Axes, x: float, side: Side, title: str, shade: int, *, valid: bool) -> None:
    summary = side.ttft if "first" in title else side.tpot
    height = side.gap_max if "gap" in title else summary.mean if summary else None
    if not height:
        return
    style.point(axes, x, height, valid=valid, index=shade)
    if "gap" not in title and summary and summary.p95:
        axes.plot([x], [summary.p95], "_", color=style.colour(shade), markersize=11)
