"""A plugin of pytest: writes the outcome of each test as it comes, what failed with the end of its
traceback, and has those run first that are new on a device, and that a run before has not seen
pass. Knows no device.

    python -m pytest -p tools.gpu_report --report FILE [--known FILE]

The report goes behind what its file has. A run that is cut short has told all but the tests that
were running.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TRACE_LINES = 60
"""Of the end of a traceback."""

FIRST = ("v41", "bounded", "ngram", "guess", "draft", "spec")
"""In names of files: of V4.1, and of what is guessed."""

Passed = Mapping[str, Mapping[str, int]]
"""By file and function: how many tests passed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", help="file of outcomes")
    parser.addoption("--known", help="such a file of an earlier run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--report") and not hasattr(config, "workerinput"):
        report = Report(Path(config.getoption("--report")))
        config.pluginmanager.register(report, "gpu-report")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker has the same order, so each must come to it by itself."""
    known = config.getoption("--known")
    if not known:
        return
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    by_name = {item.nodeid: item for item in items}
    items[:] = [by_name[name] for name in dealt(list(by_name), passed_of(Path(known)), workers)]


def passed_of(file: Path) -> Passed:
    """Nothing of a file that is not there."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    passed: Passed = found.get("passed", {})
    return passed


def place(name: str) -> tuple[str, str]:
    """File and function of a test."""
    file, _, rest = name.partition("::")
    return file, rest.partition("[")[0]


def dealt(names: Sequence[str], passed: Passed, workers: int) -> list[str]:
    """The order in which each of so many workers begins with its share of the files in `FIRST`, and
    goes on with that of functions of which fewer tests have passed than there are. pytest-xdist
    gives each worker a piece, in one piece, so that tests that share what is made for a module stay
    together; then workers steal from the ends."""
    counts = Counter(map(place, names))

    def turn(name: str) -> int:
        file, function = place(name)
        if any(part in Path(file).name for part in FIRST):
            return 0
        return 1 if passed.get(file, {}).get(function, 0) < counts[file, function] else 2

    turns: list[list[str]] = [[], [], []]
    for name in names:
        turns[turn(name)].append(name)
    order: list[str] = []
    for number in range(workers, 0, -1):
        size = sum(map(len, turns)) // number  # as pytest-xdist cuts
        for i, some in enumerate(turns):
            share = min(size, len(some) if i == 2 else -(-len(some) // number))
            order += some[:share]
            turns[i], size = some[share:], size - share
    return [*order, *(name for some in turns for name in some)]


class Report:
    """Of the process that has the workers, or of the one that runs the tests itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._about: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self._names: list[str] = []
        self._outcomes: dict[str, str] = {}
        self._traces: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._begin(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Of a file that cannot be read no test would be missed."""
        if report.failed:
            self._outcomes[report.nodeid] = "error"
            self._traces[report.nodeid] = report.longreprtext.splitlines()[-TRACE_LINES:]
            self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _ = place(report.nodeid)
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration
        if report.failed:
            self._outcomes[report.nodeid] = "failed" if report.when == "call" else "error"
            self._traces[report.nodeid] = report.longreprtext.splitlines()[-TRACE_LINES:]
        elif report.when == "call" or report.skipped:
            self._outcomes[report.nodeid] = report.outcome
        else:
            return
        self.write()

    def _begin(self, names: Iterable[str]) -> None:
        self._names = self._names or list(names)
        self.write()

    def write(self) -> None:
        """The file is always whole, whenever the process ends."""
        passed: dict[str, dict[str, int]] = {}
        for name, outcome in sorted(self._outcomes.items()):
            if outcome == "passed":
                file, function = place(name)
                functions = passed.setdefault(file, {})
                functions[function] = functions.get(function, 0) + 1
        counts = Counter(self._outcomes.values())
        left = [name for name in self._names if name not in self._outcomes]
        if left:
            counts["not_run"] = len(left)
        found = {
            **self._about,
            "counts": counts,
            "not_passed": sorted(self._traces),
            "traces": self._traces,
            "not_run": left,
            "passed": passed,
            "seconds": {file: round(spent, 1) for file, spent in sorted(self._seconds.items())},
        }
        whole = self._file.with_suffix(".part")
        whole.write_text(json.dumps(found, indent=1) + "\n")
        os.replace(whole, self._file)
