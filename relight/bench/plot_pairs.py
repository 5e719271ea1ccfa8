"""The picture of a decision: ratios of paired blocks with their interval, beside what the machine
shows for nothing; and the picture of turns. Knows no file."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from relight.bench import plot_style as style
from relight.bench.arms import METRICS, Blocks, Metric
from relight.bench.plot_data import Gathered, Run

UNITS = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "whole answer", "out_tok_s": "output tokens/s"}


def forest(blocks: Blocks) -> Figure | None:
    if not blocks.verdicts:
        return None
    rows = list(blocks.verdicts.items())
    figure, axes = style.panels(height=1.5 + 0.6 * len(rows))
    for row, (metric, told) in enumerate(rows):
        floor = max(told.noise_floor, blocks.floor.get(metric, 0.0))
        if floor:
            band = ((1 / (1 + floor)), 1 + floor)
            axes.fill_between(band, row - 0.38, row + 0.38, color="#bbbbbb", alpha=0.45, lw=0)
        ratios = [b / a for a, b in blocks.pairs[metric]]
        axes.plot(ratios, [row + 0.2] * len(ratios), "|", color=style.GREY, markersize=7)
        axes.plot([told.low, told.high], [row, row], color=style.colour(0), linewidth=2)
        style.point(axes, told.ratio, row, valid=not blocks.faults)
        word = told.word + (f", {told.blocks_needed} blocks needed" if told.blocks_needed else "")
        axes.annotate(
            f"{word}  {told.ratio:.3f} [{told.low:.3f}, {told.high:.3f}]",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    for edge in (1 - blocks.delta, 1 + blocks.delta):
        axes.axvline(edge, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [_named(metric) for metric, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("ratio B / A, 95 % interval; ticks are single blocks")
    same = "A against A" if blocks.kind == "aa" else "B against A"
    axes.set_title(f"{same}, {len(blocks.runs)} blocks; grey: noise, dotted: ± {blocks.delta:.0%}")
    axes.grid(axis="y", visible=False)
    style.hollow_note(axes, bool(blocks.faults))
    style.legend(axes, loc="upper left", bbox_to_anchor=(0, -0.25))
    return figure


def _named(metric: Metric) -> str:
    return f"{UNITS[metric]}\n({'lower' if METRICS[metric] else 'higher'} is better)"


def sentinels(data: Gathered) -> Figure | None:
    """The same small cell again and again: whether the machine drifts."""
    lines = {name: blocks.sentinel for name, blocks in data.blocks.items() if blocks.sentinel}
    if not any(len(line) > 1 for line in lines.values()):
        return None
    figure, axes = style.panels(height=3.2)
    for index, (name, line) in enumerate(lines.items()):
        speeds = [1 / tpot for tpot in line]
        axes.plot(range(len(line)), speeds, marker="o", color=style.colour(index), label=name)
    axes.set_xlabel("looks at the sentinel cell, in order")
    axes.set_ylabel("output tokens/s of one user")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.from_zero(axes)
    axes.set_title("Sentinel: drift of the machine")
    style.legend(axes)
    return figure


def turns(run: Run) -> Figure | None:
    """Of conversations: what the cache knew of each turn, and the time to its first token."""
    told = run.result.workload.turns
    if len(told) < 2:
        return None
    figure, (left, right) = style.panels(1, 2)
    known = [(t.turn, t.hit_share) for t in told if t.hit_share is not None]
    for turn, share in known:
        style.point(left, turn, share, valid=run.valid)
    left.plot([turn for turn, _ in known], [share for _, share in known], color=style.colour(0))
    left.set_ylim(0, 1)
    left.set_ylabel("share of the prompt from the cache")
    left.set_title("Hits by turn")
    first = [(t.turn, t.ttft) for t in told if t.ttft is not None]
    for turn, ttft in first:
        style.point(right, turn, ttft.mean, valid=run.valid)
    right.plot([turn for turn, _ in first], [ttft.mean for _, ttft in first], color=style.colour(0))
    high = [(turn, ttft.p95) for turn, ttft in first if ttft.p95 is not None]
    if high:
        right.plot(*zip(*high, strict=True), "--", color=style.colour(0), label="p95")
    right.set_ylim(bottom=0)
    right.set_ylabel("time to first token, s (mean)")
    right.set_title("Time to first token by turn")
    for axes in (left, right):
        axes.set_xlabel("turn")
        axes.set_xticks([t.turn for t in told][:: max(1, len(told) // style.MAX_TICKS)])
    style.hollow_note(left, not run.valid)
    style.legend(left)
    style.legend(right)
    return figure
