"""Pictures of load: throughput against speed for one user, latency against users. Knows no file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relight.bench import plot_style as style
from relight.bench.plot_data import Gathered, Run, mean
from relight.bench.stats import Summary, mean_halfwidth

Figures = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of one series with the same number of users."""

    users: int
    runs: list[Run]

    @property
    def valid(self) -> bool:
        return all(run.valid for run in self.runs)

    def of(self, figure: Figures) -> tuple[float, float] | None:
        """Mean and half of its 95 % interval (0 of less than three runs, whose interval says
        little); None unless all runs have the figure."""
        values = [figure(run) for run in self.runs]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return mean(known), mean_halfwidth(known) if len(known) > 2 else 0.0


def cells(runs: Sequence[Run]) -> list[Cell]:
    found: dict[int, list[Run]] = {}
    for run in runs:
        if run.users:
            found.setdefault(run.users, []).append(run)
    return [Cell(users, found[users]) for users in sorted(found)]


def series(data: Gathered) -> dict[str, list[Cell]]:
    """Series with more than one load."""
    found = {name: cells(runs) for name, runs in data.by_series().items()}
    return {name: several for name, several in found.items() if len(several) > 1}


def pareto(data: Gathered) -> Figure | None:
    shown = series(data)
    if not shown:
        return None
    figure, axes = style.panels()
    all_runs = [run for several in shown.values() for cell in several for run in cell.runs]
    by_device = all(run.result.throughput.per_device is not None for run in all_runs)

    def output(run: Run) -> float | None:
        rate = run.result.throughput
        return rate.per_device if by_device else rate.out_tok_s

    for index, (name, several) in enumerate(shown.items()):
        line = []
        for cell in several:
            x, y = cell.of(lambda run: run.result.throughput.per_user), cell.of(output)
            if x is None or y is None:
                continue
            line.append((x[0], y[0]))
            style.point(axes, x[0], y[0], valid=cell.valid, index=index)
            bars = {"xerr": x[1] or None, "yerr": y[1] or None, "ecolor": style.colour(index)}
            axes.errorbar([x[0]], [y[0]], fmt="none", capsize=2, elinewidth=1, alpha=0.6, **bars)
            axes.annotate(
                f"{cell.users}", (x[0], y[0]), (6, 5), textcoords="offset points", fontsize=8
            )
        axes.plot(*zip(*line, strict=True), color=style.colour(index), alpha=0.6, label=name)
    axes.set_xlabel("output tokens/s of one user while decoding (1 / mean TPOT)")
    axes.set_ylabel(f"output tokens/s {'per device' if by_device else 'of the server'}")
    axes.set_title("Throughput against interactivity; numbers are users")
    style.from_zero(axes, x=True)
    style.hollow_note(axes, not all(run.valid for run in all_runs))
    style.legend(axes)
    return figure


def latency(data: Gathered) -> Figure | None:
    shown = series(data)
    if not shown:
        return None
    figure, axes = style.panels(2, 2, height=6.4)
    panels: list[tuple[str, Callable[[Run], Summary | None]]] = [
        ("time to first token", lambda run: run.result.client.ttft),
        ("time per output token", lambda run: run.result.client.tpot),
        ("whole answer", lambda run: run.result.client.e2e),
    ]
    for panel, (title, figures) in zip(axes.flat, panels, strict=False):
        for index, (name, several) in enumerate(shown.items()):
            _quantiles(panel, several, figures, index, name)
        panel.set_ylabel("s")
        panel.set_yscale("log")
        panel.set_title(title)
    running = axes.flat[3]
    for index, several in enumerate(shown.values()):
        _running(running, several, index)
    every = [cell.users for several in shown.values() for cell in several]
    running.plot(
        [min(every), max(every)], [min(every), max(every)], ":", color=style.GREY, label="all run"
    )
    running.legend(loc="upper left")
    running.set_title("sequences that decode at once")
    running.set_ylabel("mean, by Little's law")
    running.set_yscale("log")
    for panel in axes.flat:
        panel.set_xscale("log", base=2)
        style.measured_ticks(panel.xaxis, every)
        style.plain_log(panel.yaxis)
        panel.set_xlabel("users")
        _slots(panel, shown)
    invalid = any(not cell.valid for several in shown.values() for cell in several)
    style.hollow_note(axes.flat[0], invalid)
    style.legend(axes.flat[0])
    return figure


def _quantiles(
    axes: Axes,
    several: Sequence[Cell],
    figures: Callable[[Run], Summary | None],
    index: int,
    name: str,
) -> None:
    """Mean, drawn through; p95 broken, where the samples carry it."""

    def part(field: str) -> Figures:
        def of(run: Run) -> float | None:
            told = figures(run)
            return getattr(told, field) if told else None

        return of

    for field, line in (("mean", "-"), ("p95", "--")):
        found = [(cell, cell.of(part(field))) for cell in several]
        known = [(cell, value[0]) for cell, value in found if value]
        if not known:
            continue
        label = f"{name}: {field}"
        x, y = [cell.users for cell, _ in known], [value for _, value in known]
        axes.plot(x, y, line, color=style.colour(index), label=label)
        for cell, value in known:
            style.point(axes, cell.users, value, valid=cell.valid, index=index)


def _running(axes: Axes, several: Sequence[Cell], index: int) -> None:
    found = [(c, c.of(lambda run: run.result.throughput.implied_running)) for c in several]
    known = [(cell, value[0]) for cell, value in found if value and value[0] > 0]
    x, y = [cell.users for cell, _ in known], [value for _, value in known]
    axes.plot(x, y, "-", color=style.colour(index))
    for cell, value in known:
        style.point(axes, cell.users, value, valid=cell.valid, index=index)


def _slots(axes: Axes, shown: dict[str, list[Cell]]) -> None:
    """The line beyond which users only wait."""
    told = {
        run.result.throughput.slots
        for several in shown.values()
        for cell in several
        for run in cell.runs
    }
    for slots in sorted(slot for slot in told if slot):
        axes.axvline(slots, color=style.BAD, linewidth=1)
        axes.annotate(
            f"{slots} slots",
            (slots, 0),
            (-9, 4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            rotation="vertical",
            color=style.BAD,
            fontsize=8,
        )
