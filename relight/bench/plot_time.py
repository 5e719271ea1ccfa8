"""Pictures of one run over time: who was computed when, gaps between tokens, memory, the machine.
Knows no file."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from relight.bench import plot_style as style
from relight.bench.figures import window
from relight.bench.plot_data import Run
from relight.bench.record import Record
from relight.bench.watch import Point

MAX_LANES = 160
STALL = 10.0
"""A gap of so many medians is a stall, as the figures count it."""
TIME_BINS, GAP_BINS = 120, 40
SHORTEST_S = 0.01
"""What is shorter is not drawn as a time of its own."""
GIB = 2**30
PHASES = {"queue": "#c7c7c7", "prompt": "#e69f00", "answer": "#0072b2", "stall": style.BAD}

Span = tuple[float, float]


def phases(record: Record) -> dict[str, list[Span]]:
    """When a request waited, was read, was made, and stood still, as times of the record. The queue
    inside of the server is told by the server, or is part of the prompt."""
    found: dict[str, list[Span]] = {name: [] for name in PHASES}
    sent = record.t_send
    if sent is None:
        return found
    first, last = record.t_first_any, record.t_last
    end = first if first is not None else record.t_end
    if end is None:
        return found
    waited = (record.server.queue or 0.0) if record.server else 0.0
    begun = min(sent + waited, end)
    found["queue"].append((record.t_sched, begun))
    found["prompt"].append((begun, end))
    if first is not None and last is not None:
        found["answer"].append((first, last))
        found["stall"] = _stalls(record)
    return found


def _stalls(record: Record) -> list[Span]:
    times = [time for time, _ in record.chunks]
    gaps = [after - before for before, after in pairwise(times)]
    limit = STALL * statistics.median(gaps) if gaps else math.inf
    return [(a, b) for a, b in pairwise(times) if b - a > limit]


def gantt(run: Run) -> Figure | None:
    records = [r for r in run.records if r.t_send is not None]
    if not records:
        return None
    names = list(dict.fromkeys(r.kind for r in records))
    ordered = sorted(records, key=lambda r: (names.index(r.kind), r.t_sched))
    # Of many, every n-th of all: no class and no part of the run is left out.
    every = math.ceil(len(ordered) / MAX_LANES)
    shown = ordered[::every]
    figure, axes = style.panels(height=min(8.0, 1.6 + 0.14 * len(shown)))
    for name, shade in PHASES.items():
        bars = [
            [(start, lane), (end, lane)]
            for lane, record in enumerate(shown)
            for start, end in phases(record)[name]
        ]
        width = max(1.0, min(7.0, 380 / len(shown)))
        axes.add_collection(LineCollection(bars, colors=shade, linewidths=width, capstyle="butt"))
        axes.plot([], [], color=shade, linewidth=5, label=name)
    for lane, record in enumerate(shown):
        if not record.ok and record.t_end is not None:
            axes.plot([record.t_end], [lane], "x", color="black", markersize=5)
    if not all(record.ok for record in shown):
        axes.plot([], [], "x", color="black", label="failed")
    _class_ticks(axes, [record.kind for record in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(*_window(run))
    axes.set_xlabel("s since the load began")
    part = f", every {every} of {len(ordered)}" if every > 1 else ""
    axes.set_title(f"Requests{part}{_invalid(run)}")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=5)
    return figure


def _class_ticks(axes: Axes, kinds: Sequence[str]) -> None:
    """A name in the middle of each class, and a line between two."""
    places = {kind: [lane for lane, k in enumerate(kinds) if k == kind] for kind in kinds}
    axes.set_yticks([statistics.fmean(lanes) for lanes in places.values()], list(places))
    for lanes in list(places.values())[1:]:
        axes.axhline(lanes[0] - 0.5, color=style.GREY, linewidth=0.6)


def gaps(run: Run) -> Figure | None:
    """Gaps as a heat map; below it how many prompt tokens are being read at the time."""
    found = [
        (after, after - before)
        for record in run.records
        for (before, _), (after, _) in pairwise(record.chunks)
        if after > before
    ]
    if len(found) < 2:
        return None
    start, end = _window(run)
    figure, (upper, lower) = style.panels(
        2, 1, height=4.8, sharex=True, gridspec_kw={"height_ratios": [3, 1]}
    )
    low = math.log10(max(1e-4, min(gap for _, gap in found)))
    high = math.log10(max(gap for _, gap in found))
    span = max(high - low, 0.1)
    edges = [10 ** (low + span * step / GAP_BINS) for step in range(GAP_BINS + 1)]
    times = [start + (end - start) * step / TIME_BINS for step in range(TIME_BINS + 1)]
    counts, _, _, picture = upper.hist2d(
        [time for time, _ in found],
        [max(gap, edges[0]) for _, gap in found],
        bins=[times, edges],
        norm=LogNorm(),
        cmap="viridis",
        rasterized=True,
    )
    picture.set_clim(1, max(10.0, counts.max()))
    upper.set_yscale("log")
    style.plain_log(upper.yaxis)
    upper.set_ylabel("gap between chunks, s")
    upper.set_title(f"What readers wait for{_invalid(run)}")
    figure.colorbar(picture, ax=upper, label="gaps")
    middles = [(a + b) / 2 for a, b in pairwise(times)]
    spans = [(*span, _tokens_to_read(r)) for r in run.records for span in phases(r)["prompt"]]
    reading = [sum(n for begin, ready, n in spans if begin <= t < ready) for t in middles]
    lower.fill_between(middles, reading, step="mid", color=PHASES["prompt"], alpha=0.8)
    lower.set_ylabel("prompt tokens\nbeing read")
    lower.set_ylim(bottom=0)
    lower.set_xlim(start, end)
    lower.set_xlabel("s since the load began")
    return figure


def _tokens_to_read(record: Record) -> int:
    return (record.n_in or record.n_in_wanted or 0) - (record.n_cached or 0)


def memory(run: Run) -> Figure | None:
    """Cache memory of each kind, what runs and waits, and how the longest request comes along."""
    points = [p for p in run.points if p.gauges or p.groups]
    if len(points) < 2 or not run.records:
        return None
    panels = [_requests, _progress]
    if any(p.groups for p in points):
        panels.insert(0, _groups)
    figure, _ = style.panels(len(panels), 1, height=0.6 + 1.9 * len(panels), sharex=True)
    for axes, panel in zip(figure.axes, panels, strict=True):
        panel(axes, points, run)
        style.legend_beside(axes)
    figure.axes[0].set_title(f"Memory and requests{_invalid(run)}")
    figure.axes[-1].set_xlabel("s since the load began")
    figure.axes[-1].set_xlim(*_window(run))
    return figure


def _groups(axes: Axes, points: Sequence[Point], _: Run) -> None:
    times = [p.t for p in points]
    for index, name in enumerate(sorted({name for p in points for name in p.groups})):
        share = [p.groups.get(name, math.nan) for p in points]
        axes.step(times, share, where="post", color=style.colour(index), label=name)
    axes.set_ylabel("share of cache\nmemory in use")
    axes.set_ylim(0, 1.05)


def _requests(axes: Axes, points: Sequence[Point], _: Run) -> None:
    times = [p.t for p in points]
    for index, name in enumerate(("running", "waiting")):
        values = [p.gauges.get(name, math.nan) for p in points]
        axes.step(times, values, where="post", color=style.colour(index), label=name)
    for before, after in pairwise(points):
        if after.counters.get("preemptions", 0) > before.counters.get("preemptions", 0):
            axes.axvline(after.t, color=style.BAD, linewidth=1)
    if any(p.counters.get("preemptions") for p in points):
        axes.plot([], [], color=style.BAD, label="preemption")
    axes.set_ylabel("requests")
    style.from_zero(axes)


def _progress(axes: Axes, _: Sequence[Point], run: Run) -> None:
    longest = max(run.records, key=lambda r: r.n_in or r.n_in_wanted or 0)
    axes.set_ylabel("tokens made")
    axes.set_title("The request with the longest prompt")
    for name in ("queue", "prompt"):
        for start, end in phases(longest)[name]:
            if end - start < SHORTEST_S:
                continue
            axes.axvspan(start, end, color=PHASES[name], alpha=0.4, label=name, linewidth=0)
    if longest.chunks:
        # Where chunks have no count, each has its share of the usage.
        each = (longest.n_out or len(longest.chunks)) / len(longest.chunks)
        counts = [count or each for _, count in longest.chunks]
        made = [sum(counts[: number + 1]) for number in range(len(counts))]
        axes.plot([time for time, _ in longest.chunks], made, color=PHASES["answer"])
        axes.set_ylim(bottom=0)


Line = list[tuple[float, float]]


def machine(run: Run) -> Figure | None:
    """What a long run can lose: memory, processes that nobody reaped, heat."""
    shown = [(unit, lines) for unit, lines in _machine_lines(run) if lines]
    if not shown or len(run.points) < 2:
        return None
    figure, _ = style.panels(len(shown), 1, height=1.0 + 1.6 * len(shown), sharex=True)
    for axes, (unit, lines) in zip(figure.axes, shown, strict=True):
        for index, (name, line) in enumerate(lines.items()):
            axes.plot(*zip(*line, strict=True), color=style.colour(index), label=name)
        axes.set_ylabel(unit)
        style.from_zero(axes)
        style.legend_beside(axes)
    figure.axes[0].set_title(f"The server's machine{_invalid(run)}")
    figure.axes[-1].set_xlabel("s since the load began")
    return figure


def _machine_lines(run: Run) -> Iterator[tuple[str, dict[str, Line]]]:
    """Lines by the unit that they share, without those that nobody measured."""

    def line(value: Callable[[Point], float | None], unit: float = 1.0) -> Line:
        return [(p.t, known / unit) for p in run.points if (known := value(p)) is not None]

    def device(number: int, field: str) -> Callable[[Point], float | None]:
        return lambda p: getattr(p.devices[number], field) if number < len(p.devices) else None

    numbers = range(max((len(p.devices) for p in run.points), default=0))
    memory = {"resident": line(lambda p: p.resident, GIB)}
    if any(p.swapped for p in run.points):
        memory["swapped"] = line(lambda p: p.swapped, GIB)
    memory |= {f"device {n}, free": line(device(n, "free_bytes"), GIB) for n in numbers}
    heat = {f"device {n}": line(device(n, "temperature_c")) for n in numbers}
    power = {f"device {n}": line(device(n, "power_w")) for n in numbers}
    zombies = {"zombies": line(lambda p: p.zombies)}
    units = {"memory, GiB": memory, "processes": zombies, "°C": heat, "W": power}
    for unit, lines in units.items():
        yield unit, {name: found for name, found in lines.items() if found}


def _window(run: Run) -> Span:
    start, end = window(run.records)
    return start, max(end, start + SHORTEST_S)


def _invalid(run: Run) -> str:
    return "" if run.valid else " (run not valid)"
