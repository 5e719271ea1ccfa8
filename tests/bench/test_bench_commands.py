"""Each command measures a scripted server and leaves files that say what its exit code said."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from relight.base.errors import Unavailable
from relight.bench import hosting
from relight.bench.hosting import Hosted
from relight.bench.http import target
from relight.bench.scenario import Limits
from relight.bench.schema import Place
from relight.bench.selftest.harness import measure
from relight.bench.selftest.harness import scenario as harness_scenario
from relight.bench.selftest.script import Script
from relight.cli import bench
from relight.cli.bench_view import print_cells

LOOSE = "limits: {lag_s: 5, closure_low: 0, ttft_s: 5, drift: 99, input_tokens: 1, hits_cold: 1}\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    found = f"http://127.0.0.1:{port}"
    server = Hosted(f"{sys.executable} -m relight.bench.selftest {port}", target(found))
    try:
        server.wait("", 60, Limits(canary_s=10))
        yield found
    finally:
        server.stop()


def scenario(folder: Path, classes: str, more: str = "") -> Path:
    path = folder / "scenario.yaml"
    path.write_text(f"name: small\nwarm_up: 1\nclasses: [{classes}]\n{more}{LOOSE}")
    return path


def bench_command(*words: object) -> Result:
    return CliRunner().invoke(bench.app, [str(word) for word in words])


def summary(folder: Path, kind: str) -> dict[str, object]:
    """The one file of that schema."""
    found: list[dict[str, object]] = [json.loads(p.read_text()) for p in folder.glob("*.json")]
    (told,) = [one for one in found if one["schema"] == f"relight.bench.{kind}/1"]
    return told


def checked(folder: Path, name: str) -> None:
    """Every run of that scenario's name is judged again as it was."""
    paths = [path for path in folder.glob(f"{name}-*.json") if '"validity"' in path.read_text()]
    assert paths
    for path in paths:
        status = json.loads(path.read_text())["validity"]["status"]
        told = bench_command("check", path)
        assert told.output.startswith(status), told.output
        assert told.exit_code == {"valid": 0, "invalid": 2}[status]


ONE = "{name: one, users: 2, requests: 4, input_tokens: 200, output_tokens: 8}"


def test_cells_and_repeats_are_runs_of_one_session(tmp_path: Path, url: str) -> None:
    path = scenario(tmp_path, ONE, "cells: [users=1, users=2]\n")
    told = bench_command("run", path, "--url", url, "--repeat", 2, "--out", tmp_path)
    assert told.exit_code == 0, told.output
    assert "2 runs" in told.output
    places = [json.loads(p.read_text())["protocol"]["place"] for p in tmp_path.glob("small-*.json")]
    assert sorted((p["cell"], p["repeat"]) for p in places) == [
        ("users=1", 0),
        ("users=1", 1),
        ("users=2", 0),
        ("users=2", 1),
    ]
    assert len({p["session"] for p in places}) == 1
    checked(tmp_path, "small")


def test_agents_have_a_row_for_each_turn(tmp_path: Path, url: str) -> None:
    classes = ONE[:-1] + ", sessions: {turns: 2, shared_tokens: 300, turn_tokens: 60}}"
    path = scenario(tmp_path, classes, "cache: shared\n")
    words = ["agent", "--scenario", path, "--url", url, "--sessions", 2, "--turns", 3]
    told = bench_command(*words, "--rounds", 1, "--out", tmp_path)
    assert told.exit_code == 0, told.output
    assert "of them cached" in told.output
    checked(tmp_path, "small")
    plain = scenario(tmp_path, ONE)
    refused = bench_command("agent", "--scenario", plain, "--url", url, "--out", tmp_path)
    assert refused.exit_code == 4


def test_a_trace_is_replayed_and_its_name_kept(tmp_path: Path, url: str) -> None:
    trace = tmp_path / "rows.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": i * 50, "input_length": 150 + i, "output_length": 5}) + "\n"
            for i in range(6)
        )
    )
    base = scenario(tmp_path, ONE)
    words = ["trace", trace, "--url", url, "--scenario", base, "--scale", 2]
    told = bench_command(*words, "--clients", 2, "--out", tmp_path)
    assert told.exit_code == 0, told.output
    (row,) = json.loads(next(tmp_path.glob("trace-*.json")).read_text())["scenario"]["classes"]
    assert row["trace"]["file"] == str(trace)
    checked(tmp_path, "trace")


def test_a_mixture_is_three_runs_and_a_summary(tmp_path: Path, url: str) -> None:
    base = scenario(tmp_path, ONE)
    words = ["mixed", "--url", url, "--scenario", base, "--long", "1x2000/8", "--short", "2x200/8"]
    told = bench_command(
        *words, "--probe", "10/s", "--rounds", 2, "--after", 0.1, "--out", tmp_path
    )
    assert told.exit_code == 0, told.output
    runs = summary(tmp_path, "mixed")["runs"]
    assert set(runs) == {"short", "long", "mixed"}  # type: ignore[arg-type]


def test_a_score_below_the_least_is_told_by_the_code(tmp_path: Path, url: str) -> None:
    base = scenario(tmp_path, ONE)
    words = ["needle", "--url", url, "--scenario", base, "--from", 300, "--to", 600]
    words += ["--kinds", "single,keys", "--depths", 2, "--output", 8, "--out", tmp_path]
    told = bench_command(*words)
    assert told.exit_code == 2, told.output
    assert "found in all: 0.0%" in told.output
    assert summary(tmp_path, "needles")["score"] == 0.0
    assert bench_command(*words[:-1], tmp_path / "other", "--least", 0).exit_code == 0


def test_a_soak_has_windows_and_sentinels(tmp_path: Path, url: str) -> None:
    path = scenario(tmp_path, ONE.replace("requests: 4", "requests: 4000"), "cache: shared\n")
    words = ["soak", "--url", url, "--scenario", path, "--time", "1s", "--sentinel", "1s"]
    told = bench_command(*words, "--limit", 99, "--out", tmp_path)
    assert told.exit_code == 0, told.output
    found = summary(tmp_path, "soak")
    assert len(found["windows"]) >= 1  # type: ignore[arg-type]
    assert len(found["sentinels"]) == len(found["windows"]) + 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [
        "run {file}",
        "mixed --scenario {file}",
        "soak --scenario {file}",
        "trace {rows} --scenario {file}",
        "agent --scenario {file}",
        "needle --scenario {file}",
    ],
)
def test_a_server_that_is_started_is_ready_by_the_limits_of_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    found: list[Limits] = []

    class Never:
        def __init__(self, *_: object) -> None:
            pass

        def wait(self, model: str, ready_s: float, limits: Limits) -> None:
            found.append(limits)
            raise Unavailable("it does not answer")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(hosting, "Hosted", Never)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"timestamp": 0, "input_length": 150, "output_length": 5}\n')
    talks = ONE[:-1] + ", sessions: {turns: 2, shared_tokens: 300, turn_tokens: 60}}"
    file = scenario(tmp_path, talks, "cache: shared\n")
    file.write_text(file.read_text().replace("limits: {", "limits: {done: false, "))
    told = bench_command(
        *words.format(file=file, rows=rows).split(),
        *("--url", "http://127.0.0.1:9", "--start", "any", "--out", tmp_path / "out"),
    )
    assert told.exit_code == 4, told.output
    (limits,) = found
    assert not limits.done


@pytest.mark.parametrize(
    "words",
    [
        "run chat --url ftp://host",
        "run no-such --url {url}",
        "run chat --url {url} --cell users=none",
        "run chat --url {url} --model other",
        "run chat --url http://127.0.0.1:9",
        "ab chat --url-a {url} --url-b {url}",
        "mixed --url {url} --long 1x/2",
        "soak --url {url} --time soon",
        "needle --url {url} --kinds gold",
        "needle --url {url} --from 8K --to 4K",
        "trace no-such-file --url {url}",
        "check no-such-file",
    ],
)
def test_what_cannot_be_run_is_one_line_and_code_4(url: str, words: str, tmp_path: Path) -> None:
    told = bench_command(
        *words.format(url=url).split(), *([] if words.startswith("check") else ["--out", tmp_path])
    )
    assert told.exit_code == 4, told.output
    assert told.output.startswith("error: ") or "error: " in told.output
    assert not list(tmp_path.glob("*.json"))


def test_slices_of_a_server_that_counts_drafts_have_a_row_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [
        asyncio.run(
            measure(
                Script(spec_depth=2, spec_accept=accept),
                harness_scenario(corpus=corpus),
                place=Place(session="s", cell=f"corpus={corpus}"),
            )
        ).result
        for corpus, accept in (("code", (0.8, 0.6)), ("json", (0.5, 0.2)))
    ]
    assert [r.spec.al_pooled for r in results if r.spec] == pytest.approx([2.4, 1.7])
    print_cells(results)
    shown = capsys.readouterr().out
    for expected in ("corpus=code", "2.400", "0.80 0.60", "corpus=json", "1.700", "0.50 0.20"):
        assert expected in shown
