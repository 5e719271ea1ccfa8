"""Draws the steps of a mixed run: who is computed when, and how long streams wait.

    python -m tools.gantt docs/notes/scheduling.svg

Eight answers stream when a prompt of 100,000 tokens comes, and later four short prompts; once with
the step target, once without. Nothing is computed: a step takes as long as the measured costs of
the full model say, by a clock that only steps move, so that the picture is the same everywhere.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.types import Request, SamplingParams
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.cost import FIRST_GUESS, Load
from relight.engine.loop import Loop
from relight.engine.plan import StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.steps import InTurn

TARGET_S = 0.1
STREAMS = 8
ARRIVALS = {0.5: [("100,000 tokens", 100_000)], 1.5: [(f"short {n + 1}", 1500) for n in range(4)]}
END_S = 4.0

WIDTH, LEFT, LANE, GAP_HEIGHT = 900, 110, 13, 70
MADE, GIVEN, LINE, TEXT = "#2f6f9f", "#d9822b", "#b8b8b8", "#333333"


@dataclass
class Bar:
    lane: str
    start_s: float
    end_s: float
    rows: int
    given: bool


@dataclass
class Run:
    """What happened: bars of rows, and (time, gap) of each token of a stream that waited."""

    bars: list[Bar] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    now: float = 0.0


class Machine:
    """Takes the time of a step and draws nothing of interest."""

    def __init__(self, run: Run, scheduler: Scheduler) -> None:
        self._run = run
        self._scheduler = scheduler

    def launch(self, plan: StepPlan) -> list[int]:
        run, begun = self._run, self._run.now
        run.now += FIRST_GUESS.seconds(Load.of(plan))
        names = {s.slot: s.request.id for s in self._scheduler.running}
        for given, segment in ((False, plan.made), (True, plan.given)):
            for rows in segment:
                run.bars.append(Bar(names[rows.slot], begun, run.now, len(rows.tokens), given))
        return [7] * len(plan.draws)

    def read(self, launched: list[int]) -> list[int]:
        return launched


def simulate(target_s: float) -> Run:
    run = Run()
    limits = Limits(
        num_slots=32,
        max_context=2**20,
        max_step_tokens=8192,
        admit_output=4096,
        max_queue=100,
        vocab_size=10,
        step_target_s=target_s,
    )
    index = PrefixIndex(BlockPool(8000), RecordPool(100), "none")
    scheduler = Scheduler(limits, index)
    loop = Loop(scheduler, InTurn(Machine(run, scheduler)), clock=lambda: run.now)
    for number in range(STREAMS):
        loop.add(request(f"stream {number + 1}", 200))
    while loop.stats().generated_tokens < STREAMS:
        loop.step()
    run.now, run.bars = 0.0, []
    due = dict(ARRIVALS)
    last: dict[str, float] = {}
    while run.now < END_S:
        for at in [at for at in due if at <= run.now]:
            for name, length in due.pop(at):
                loop.add(request(name, length))
        for delta in loop.step():
            if delta.tokens:
                if delta.id.startswith("stream") and delta.id in last:
                    run.gaps.append((run.now, run.now - last[delta.id]))
                last[delta.id] = run.now
    return run


def request(name: str, length: int) -> Request:
    prompt = tuple((len(name) * 7 + ord(name[-1]) + i * i) % 10 for i in range(length))
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=10_000))


def draw(runs: Sequence[tuple[str, Run]]) -> str:
    lanes = [f"stream {n + 1}" for n in range(STREAMS)]
    lanes += [name for group in ARRIVALS.values() for name, _ in group]
    panel = 44 + LANE * len(lanes) + GAP_HEIGHT + 40
    longest = max(gap for _, run in runs for _, gap in run.gaps)
    parts = []
    for number, (title, run) in enumerate(runs):
        top = number * panel + 24
        parts.append(text(LEFT, top, title, bold=True))
        parts += lane_parts(run, lanes, top + 12)
        parts += gap_parts(run, top + 12 + LANE * len(lanes) + 16, longest)
    height = panel * len(runs) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def lane_parts(run: Run, lanes: Sequence[str], top: float) -> list[str]:
    """A bar is as long as its step; that of given rows is as high as they are many."""
    parts = [text(LEFT - 6, top + LANE * i + 10, lane, end=True) for i, lane in enumerate(lanes)]
    most = max(bar.rows for bar in run.bars)
    for bar in run.bars:
        if bar.start_s >= END_S:
            continue
        share = 0.35 + 0.65 * bar.rows / most if bar.given else 0.35
        height = (LANE - 2) * share
        x, y = at(bar.start_s), top + LANE * lanes.index(bar.lane) + LANE - 2 - height
        width = max(0.6, at(min(bar.end_s, END_S)) - x - 0.5)
        fill = GIVEN if bar.given else MADE
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{fill}"/>'
        )
    return parts


def gap_parts(run: Run, top: float, longest: float) -> list[str]:
    """The gap before each token of a stream, and the bound on it."""

    def height(gap: float) -> float:
        return top + GAP_HEIGHT * (1 - gap / longest)

    bound = height(2 * TARGET_S)
    parts = [
        f'<line x1="{LEFT}" x2="{at(END_S):.0f}" y1="{bound:.1f}" y2="{bound:.1f}" '
        f'stroke="{GIVEN}" stroke-dasharray="4 3"/>',
        text(LEFT - 6, bound + 4, f"{2000 * TARGET_S:.0f} ms", end=True),
        text(LEFT - 6, top + 4, f"{1000 * longest:.0f} ms", end=True),
        text(LEFT - 6, top + GAP_HEIGHT + 4, "gap 0", end=True),
    ]
    for second in range(int(END_S) + 1):
        x = at(second)
        parts.append(
            f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{top}" y2="{top + GAP_HEIGHT}" stroke="{LINE}"/>'
        )
        parts.append(text(x + 2, top + GAP_HEIGHT + 14, f"{second} s"))
    for when, gap in dict(run.gaps).items():
        if when <= END_S:
            parts.append(
                f'<circle cx="{at(when):.1f}" cy="{height(gap):.1f}" r="1.6" fill="{MADE}"/>'
            )
    return parts


def at(second: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * second / END_S


def text(x: float, y: float, words: str, *, end: bool = False, bold: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{TEXT}"{anchor}{weight}>{words}</text>'


def main() -> None:
    runs = [
        ("--step-target 100: given rows (orange) fill a step up to 0.1 s", simulate(TARGET_S)),
        ("--step-target 0: a step takes all the given rows that it can", simulate(math.inf)),
    ]
    Path(sys.argv[1]).write_text(draw(runs))
    for title, run in runs:
        print(f"{title}: longest gap {max(gap for _, gap in run.gaps):.3f} s")


if __name__ == "__main__":
    main()
