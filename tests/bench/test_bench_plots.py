"""Pictures of results, and the page around them."""

import asyncio
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from typer.testing import CliRunner

from relight.base.errors import BadSetting
from relight.bench import arms, plot_load, plot_pairs, plot_style, plot_time, plots, result
from relight.bench.ladder import Ladder, Rung
from relight.bench.plot_context import context, fit
from relight.bench.plot_data import Gathered, Run, from_zero, gather
from relight.bench.record import Record
from relight.bench.report import report
from relight.bench.result import Result
from relight.bench.selftest.harness import measure
from relight.bench.selftest.script import Script
from relight.cli import bench as commands
from tests.bench import simulated


@pytest.fixture(scope="module")
def base() -> Result:
    return asyncio.run(measure(Script())).result


@pytest.fixture(scope="module")
def data(base: Result) -> Gathered:
    return simulated.everything(base)


@pytest.fixture(scope="module")
def figures(data: Gathered) -> dict[str, Figure]:
    found = {}
    for name, about, _, drawn in plots.wanted(data):
        with plot_style.look():
            figure = drawn()
        if figure is not None:
            found[f"{name} {about}"] = figure
    return found


def marks(axes: Axes, x: float | None = None) -> list[bool]:
    """Of each single point (at x), whether it is filled."""
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    return [_filled(line) for line in points if x is None or line.get_xdata()[0] == x]


def _filled(line: Line2D) -> bool:
    return line.get_markerfacecolor() != "white"


def test_there_is_a_picture_of_each_kind(figures: dict[str, Figure]) -> None:
    names = {name.split()[0] for name in figures}
    assert names == {*plots.OVERALL, *plots.OF_RUN, "context", "forest", "soak", "mixture"}


def test_every_axis_has_a_name(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        for axes in figure.axes:
            assert axes.get_ylabel() or axes.get_yticklabels(), name
            shared = axes.get_shared_x_axes().get_siblings(axes)
            assert any(one.get_xlabel() for one in shared) or axes.get_label() == "<colorbar>", name


def test_hollow_marks_are_those_of_runs_that_are_not_valid(base: Result) -> None:
    data = Gathered(runs=simulated.loads(base))
    figure = plot_load.latency(data)
    assert figure is not None
    for axes in figure.axes:
        assert set(marks(axes, 8)) == {True}
        assert set(marks(axes, 64)) == {False}


def test_a_decision_with_faults_is_hollow(base: Result) -> None:
    for faults in (False, True):
        figure = plot_pairs.forest(simulated.blocks(base, faults=faults))
        assert figure is not None
        assert set(marks(figure.axes[0])) == {not faults}


def test_a_length_that_cannot_be_true_is_hollow_and_not_fitted() -> None:
    figure = context(simulated.ladder())
    assert figure is not None
    left = figure.axes[0]
    assert marks(left, 8192 * 0.99) == [False]
    assert marks(left, 65536 * 0.99) == [True]
    labels = [str(label) for label in left.get_legend_handles_labels()[1]]
    # The ladder was made of 1.3e-4 L + 2.8e-10 L² over 0.99 L.
    assert "131 µs L + 0.286 ns L²" in labels
    assert "failed" in labels


def test_a_ladder_that_fell_at_its_first_rung_has_no_picture() -> None:
    rung = Rung(asked=1024, ok=False, reasons=["T4"], actual=1000.0, ttft=0.1)
    assert context(Ladder(rungs=[rung], cliff=(0, 1024), implausible=[])) is None


def test_the_fit_recovers_what_the_times_were_made_of() -> None:
    lengths = (131072, 262144, 300000, 524288)
    found = fit([(n, 1.34506e-4 * n + 2.84635e-10 * n * n) for n in lengths])
    assert found == pytest.approx((1.34506e-4, 2.84635e-10))
    assert fit([(100, 1.0), (100, 1.1)]) is None
    assert fit([(100, 1.0), (200, 2.0), (400, 3.9)])[1] == 0.0  # type: ignore[index]


def test_phases_of_a_request_follow_each_other() -> None:
    chunks = ((3.0, 1), (3.1, 1), (3.2, 1), (3.3, 1), (5.3, 1))
    record = Record(
        id=0,
        kind="x",
        t_sched=1.0,
        t_send=1.5,
        t_first_any=3.0,
        t_last=5.3,
        t_end=5.4,
        chunks=chunks,
        server=msgspec.convert({"queue": 0.5}, type=simulated.ServerTimes),
    )
    assert plot_time.phases(record) == {
        "queue": [(1.0, 2.0)],
        "prompt": [(2.0, 3.0)],
        "answer": [(3.0, 5.3)],
        "stall": [(3.3, 5.3)],
    }
    failed = msgspec.structs.replace(record, t_first_any=None, t_last=None, chunks=())
    assert plot_time.phases(failed)["prompt"] == [(2.0, 5.4)]


def test_times_are_told_since_the_load_began(base: Result) -> None:
    run = simulated.run(base, [simulated.chat(2)])
    later = [
        msgspec.structs.replace(r, t_sched=r.t_sched + 60, t_send=r.t_send + 60, t_end=None)
        for r in run.records
        if r.t_send is not None
    ]
    shifted = from_zero(Run(run.result, later, simulated.series(2)))
    assert shifted.records[0].t_sched == 0
    assert shifted.records[0].t_send == pytest.approx(0.0003)
    assert [point.t for point in shifted.points] == [-60, -59]


@pytest.mark.parametrize(
    "keep",
    [
        lambda records: [],
        lambda records: [msgspec.structs.replace(records[0], failure="refused", t_first_any=None)],
        lambda records: [msgspec.structs.replace(r, chunks=r.chunks[:1]) for r in records],
        lambda records: [msgspec.structs.replace(r, t_send=None) for r in records],
    ],
    ids=["none", "refused", "one chunk", "never sent"],
)
def test_poor_data_draw_no_picture_but_break_nothing(base: Result, keep) -> None:  # type: ignore[no-untyped-def]
    whole = simulated.run(base, [simulated.chat(2)])
    poor = Run(whole.result, keep(whole.records), simulated.series(3))
    data = Gathered(runs=[poor])
    drawn = list(plots.draw(data))
    assert report(data, drawn)


def test_the_same_results_are_the_same_bytes(base: Result) -> None:
    data = Gathered(runs=[simulated.mixed(base)])
    assert list(plots.draw(data)) == list(plots.draw(data))


class Checker(HTMLParser):
    """Tags that are open, addresses that are named."""

    EMPTY = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [named[a] or "" for a in ("src", "href") if a in named]
        self.ids |= {named["id"] or ""} if "id" in named else set()
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_nothing_and_runs_nothing(data: Gathered, base: Result) -> None:
    server = msgspec.structs.replace(base.server, model="<script>alert(1)</script>")
    hostile = Gathered(
        runs=[*data.runs, simulated.run(base, [simulated.chat(2)], name="x", server=server)],
        blocks=data.blocks,
        ladders=data.ladders,
        skipped=["<b>file</b> is none"],
    )
    own = Gathered(runs=[hostile.runs[-1]], soaks={"s": simulated.soak()})
    page = report(hostile, list(plots.draw(own)))
    assert "<script" not in page
    assert "<b>" not in page
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    for address in checker.addresses:
        assert address.startswith(("#", "data:image/svg+xml;base64,")), address[:60]
        assert not address.startswith("#") or address[1:] in checker.ids


def test_the_page_says_what_may_not_be_believed_and_why(data: Gathered) -> None:
    page = report(data, [])
    assert "3 of 28 runs are not valid" in page
    assert "users-64-1: T4: 3 of 80 requests failed" in page


@pytest.fixture
def folder(tmp_path: Path, base: Result) -> Path:
    """Files as the commands write them, and others."""
    one = simulated.mixed(base)
    told = msgspec.structs.replace(
        one.result,
        requests_ref="m.jsonl",
        requests_hash=result.rows_hash(result.rows(one.records)),
        series_ref="m.series.jsonl",
    )
    result.write(tmp_path, told, one.records, secret="", series=one.points)
    arms.write(tmp_path, simulated.blocks(base), "1")
    (tmp_path / "ladder-1.json").write_bytes(msgspec.json.encode(simulated.ladder()))
    (tmp_path / "other.json").write_text('{"schema": "of somebody else"}')
    return tmp_path


def test_the_command_writes_page_and_pictures(folder: Path) -> None:
    done = CliRunner().invoke(commands.app, ["plot", str(folder), "--png"])
    assert done.exit_code == 0, done.output
    assert "1 runs, 0 of them not valid" in done.output
    assert (folder / "report.html").read_text(encoding="utf-8").count("<figure>") >= 5
    pictures = sorted(folder.glob("*.svg"))
    assert folder / "mixed-13-1-requests.svg" in pictures
    for picture in pictures:
        ElementTree.parse(picture)
        assert picture.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_files_that_are_no_results_are_named(folder: Path) -> None:
    found = gather([folder])
    assert len(found.runs) == len(found.blocks) == len(found.ladders) == 1
    assert len(found.runs[0].points) == 20
    (skipped,) = found.skipped
    assert "other.json" in skipped


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="bench run"):
        gather([tmp_path])


def test_a_missing_library_is_one_line_with_its_remedy(folder: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None; from relight.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, "bench", "plot", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4
    assert "relight[bench]" in done.stderr
    assert done.stderr.startswith("error: ")
