"""The commands that measure: exit codes, errors in a line, and nothing heavy imported."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relight.bench.selftest.script import Script
from relight.bench.selftest.server import ScriptedServer
from relight.cli.bench import app

CELL = "users=2,requests=4,input_tokens=150,output_tokens=8"


@pytest.fixture
def url() -> Iterator[str]:
    """A scripted server on a loop of its own."""
    loop = asyncio.new_event_loop()
    server = ScriptedServer(Script(max_model_len=4096))
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def relight(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})
    return done.exit_code, done.output


def test_a_run_writes_a_result_that_check_and_compare_read(url: str, tmp_path: Path) -> None:
    arguments = ("run", "chat", "--url", url, "--cell", CELL, "--out", str(tmp_path))
    code, text = relight(*arguments)
    found = list(tmp_path.glob("*.json"))
    assert len(found) == 1, text
    status = json.loads(found[0].read_text())["validity"]["status"]
    # Whether this machine was quiet enough is not what is tested: code and verdict agree.
    assert code == {"valid": 0, "invalid": 2}[status], text
    assert "TTFT" in text
    assert relight("check", str(found[0]))[0] == code
    told = relight("compare", str(found[0]), str(found[0]), "--allow")
    assert told[0] == 0
    assert "One run each tells no difference from noise." in told[1]


def test_what_cannot_be_run_is_code_4(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    code, text = relight("run", "chat", "--url", "http://127.0.0.1:9", *out)
    assert (code, "does not answer" in text) == (4, True)
    code, text = relight("run", "none", "--url", "http://127.0.0.1:9", *out)
    assert (code, "one of: agent, chat, ember" in " ".join(text.split())) == (4, True)
    assert not list(tmp_path.iterdir())


def test_one_case_of_the_selftest_runs_alone() -> None:
    code, text = relight("selftest", "--only", "T32")
    assert code == 0
    assert text.startswith("ok     T32")


def test_blocks_and_a_ladder_write_what_they_decide(url: str, tmp_path: Path) -> None:
    where = ("--out", str(tmp_path))
    cell = CELL.replace("requests=4", "requests=2").replace("users=2", "users=1")
    code, text = relight("aa", "chat", "--url", url, "--blocks", "2", "--cell", cell, *where)
    floor = next(tmp_path.glob("aa-*.json"))
    told = json.loads(floor.read_text())
    assert code == (2 if told["faults"] else 0), text
    assert told["floor"]["tpot"] > 0
    other = url.replace("127.0.0.1", "localhost")
    urls = ("--url-a", url, "--url-b", other, "--blocks", "2", "--cell", cell)
    code, text = relight("ab", "chat", *urls, "--floor", str(floor), *where)
    # Two blocks decide nothing.
    assert code in (2, 3), text
    lengths = ("--from", "200", "--to", "400", "--repeat", "1", "--output", "8")
    code, text = relight("ladder", "--url", url, *lengths, *where)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("ladder-*.json")]
    (ladder,) = (one for one in found if one["schema"] == "relight.bench.ladder/1")
    asked = [rung["asked"] for rung in ladder["rungs"]]
    went = [rung["ok"] for rung in ladder["rungs"]]
    # A machine that is too busy refuses a rung: the ladder goes on if, and only if, the first went.
    assert (asked[0], asked[-1]) == (200, 400 if went[0] else 200)
    assert (ladder["cliff"] is None) == all(went)
    assert all(str(length) in text for length in asked), text
    assert len(list(tmp_path.glob("ladder-*.json"))) > 1


def test_clients_that_do_not_come_up_are_code_4(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relight.bench.crew.START_S", 0.0)
    arguments = ("--url", url, "--cell", CELL, "--clients", "2", "--out", str(tmp_path))
    code, text = relight("run", "chat", *arguments)
    assert (code, "too busy to measure from" in text) == (4, True), text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ab", "chat", "--url-a", "http://h", "--url-b", "http://h", "--metric", "x"), "metric"),
        (("ladder", "--url", "http://h", "--from", "2K", "--to", "1K"), "wanted a longer"),
        (("ladder", "--url", "http://h", "--from", "0"), "length is '0'"),
        (("check", "no-such-file.json"), "cannot be read"),
        (("selftest", "--only", "T99"), "cases are"),
    ],
)
def test_a_wrong_flag_is_code_4_and_one_line(arguments: tuple[str, ...], told: str) -> None:
    code, text = relight(*arguments)
    assert (code, told in text, text.count("\n")) == (4, True, 1), text
