"""Pictures of speculation: what is accepted where, and what a step costs for it. Knows no file."""

from matplotlib.figure import Figure

from relight.bench import plot_style as style
from relight.bench.plot_data import Gathered, Run


def acceptance(run: Run) -> Figure | None:
    spec = run.result.spec
    if spec is None or not (spec.per_pos_uncond or any(s.per_pos_uncond for s in spec.slices)):
        return None
    figure, axes = style.panels()
    lines = [(f"all, AL {spec.al_pooled:.2f}", spec.per_pos_uncond, "-")]
    lines.append(("all, given drafted", spec.per_pos_given_drafted, "--"))
    lines.append(("all, given all before", spec.cond, ":"))
    for one in spec.slices:
        length = f", AL {one.al_pooled:.2f}" if one.al_pooled is not None else ""
        lines.append((f"{one.corpus}{length}", one.per_pos_uncond, "-"))
    shown = [line for line in lines if line[1]]
    for index, (label, values, dash) in enumerate(shown):
        axes.plot(
            range(1, len(values) + 1),
            values,
            dash,
            marker=style.mark(index),
            color=style.colour(index),
            markerfacecolor=style.colour(index) if run.valid else "white",
            label=label,
        )
    most = max(len(values) for _, values, _ in shown)
    axes.set_xticks(range(1, most + 1))
    axes.set_ylim(0, 1)
    axes.set_xlabel("position of the draft")
    axes.set_ylabel("share accepted")
    kind = " (random words: says nothing of real use)" if spec.synthetic else ""
    axes.set_title(f"Drafts accepted by position{kind}")
    style.hollow_note(axes, not run.valid)
    style.legend_beside(axes)
    return figure


def advance(data: Gathered) -> Figure | None:
    """One point for each run that speculates."""
    shown = []
    for run in data.loads:
        spec, engine = run.result.spec, run.result.engine
        if spec is not None and engine is not None and engine.step_interval:
            shown.append((run, engine.step_interval * 1000, spec.al_pooled, spec.depth))
    if not shown:
        return None
    figure, axes = style.panels()
    for index, name in enumerate(dict.fromkeys(run.series for run, *_ in shown)):
        for run, step_ms, length, depth in shown:
            if run.series == name:
                style.point(axes, step_ms, length, valid=run.valid, index=index)
                label = f"k = {depth:g}" if depth is not None else ""
                axes.annotate(label, (step_ms, length), (6, 5), textcoords="offset points")
        axes.plot([], [], style.mark(index), color=style.colour(index), label=name)
    right = 1.25 * max(step_ms for _, step_ms, _, _ in shown)
    top = 1.25 * max(length for _, _, length, _ in shown)
    best = min(step_ms / length for _, step_ms, length, _ in shown)
    for factor in (0.75, 1.0, 1.33, 1.78, 2.37):
        tpot = best * factor
        end = min(right, top * tpot)
        axes.plot([0, end], [0, end / tpot], color="#bbbbbb", linewidth=0.8)
        axes.annotate(f"{tpot:.3g} ms", (end, end / tpot), fontsize=7, color=style.GREY)
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.set_xlabel("time of a step, ms")
    axes.set_ylabel("tokens a verification")
    axes.set_title("Advance against step time; on a grey line the time per token is equal")
    style.hollow_note(axes, not all(run.valid for run, *_ in shown))
    style.legend(axes, loc="lower right")
    return figure
