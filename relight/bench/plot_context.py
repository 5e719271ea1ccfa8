"""Pictures of long prompts: what a first token costs, where it ends, what is still found. Knows no
file."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from relight.bench import plot_style as style
from relight.bench.ladder import Ladder
from relight.bench.plot_data import Gathered
from relight.bench.schema import NeedleCell


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """(a, b) of seconds = a L + b L², with the least relative error; neither below 0. None of less
    than two lengths."""
    if len({length for length, _ in points}) < 2:
        return None
    # Both sides divided by the seconds: every length weighs the same.
    rows = [(length / s, length**2 / s) for length, s in points]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ya, yb = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    a, b = (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant
    if a < 0:
        return 0.0, yb / bb
    return (a, b) if b >= 0 else (ya / aa, 0.0)


def context(ladder: Ladder) -> Figure | None:
    measured = [
        (float(r.actual or r.asked), r.ttft, r.ok and r.asked not in ladder.implausible)
        for r in ladder.rungs
        if r.ttft
    ]
    if len({length for length, _, _ in measured}) < 2:  # one length is no curve
        return None
    figure, (left, right) = style.panels(1, 2)
    found = fit([(length, ttft) for length, ttft, ok in measured if ok])
    lengths = [length for length, _, _ in measured]
    for length, ttft, ok in measured:
        style.point(left, length, ttft, valid=ok)
        style.point(right, length, length / ttft, valid=ok)
    if found:
        a, b = found
        low, high = min(lengths), max(lengths)
        curve = [low * (high / low) ** (step / 60) for step in range(61)]
        label = f"{a * 1e6:.3g} µs L + {b * 1e9:.3g} ns L²"
        left.plot(curve, [a * x + b * x * x for x in curve], color=style.GREY, label=label)
        right.plot(curve, [1 / (a + b * x) for x in curve], color=style.GREY)
    left.set_ylabel("time to first token, s")
    right.set_ylabel("prompt tokens read, 1/s")
    left.set_title("Time to first token")
    right.set_title("Speed of reading")
    asked = [r.asked for r in ladder.rungs]
    failed = [r.actual or r.asked for r in ladder.rungs if not r.ok]
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("prompt, tokens")
        style.measured_ticks(axes.xaxis, asked)
        style.plain_log(axes.yaxis)
        for length in failed:
            axes.axvline(length, color=style.BAD, linewidth=1, linestyle=":")
            axes.plot(
                [length],
                [0.04],
                "x",
                color=style.BAD,
                transform=axes.get_xaxis_transform(),
                label="failed" if length == failed[0] else None,
            )
        if ladder.cliff and ladder.cliff[0]:
            axes.axvspan(*ladder.cliff, color=style.BAD, alpha=0.08)
    style.hollow_note(left, any(not ok for _, _, ok in measured))
    style.legend(left)
    return figure


def needles(data: Gathered) -> Figure | None:
    """Lengths from all results: a ladder has one in each."""
    cells = [cell for run in data.loads for cell in run.result.quality.cells]
    cells = [cell for cell in cells if cell.length and cell.depth is not None]
    if not cells:
        return None
    table = scores(cells)
    lengths = sorted({length for length, _ in table})
    depths = sorted({depth for _, depth in table})
    figure, axes = style.panels(height=1.8 + 0.32 * len(depths))
    grid = [[table.get((length, depth), math.nan) for length in lengths] for depth in depths]
    picture = axes.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    for row, depth in enumerate(depths):
        for column, length in enumerate(lengths):
            if (length, depth) in table:
                score = table[length, depth]
                shade = "white" if score < 0.15 or score > 0.85 else "black"
                axes.text(column, row, f"{score:.2f}", ha="center", va="center", color=shade)
    axes.grid(False)
    axes.set_xticks(range(len(lengths)), [style.short(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("depth")
    axes.set_title("Found of what was hidden")
    figure.colorbar(picture, ax=axes, label="share found")
    return figure


def scores(cells: Sequence[NeedleCell]) -> dict[tuple[int, float], float]:
    """By (length, depth), over all kinds, weighed by what was asked."""
    sums: dict[tuple[int, float], tuple[float, int]] = {}
    for cell in cells:
        assert cell.length is not None
        assert cell.depth is not None
        key = (round(cell.length), round(cell.depth, 2))
        score, asked = sums.get(key, (0.0, 0))
        sums[key] = (score + cell.score * cell.asked, asked + cell.asked)
    return {key: score / asked for key, (score, asked) in sums.items() if asked}
