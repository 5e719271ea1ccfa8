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
    assert (code, "give a TOML file or one of: chat" in text) == (4, True)
    assert not list(tmp_path.iterdir())


def test_one_case_of_the_selftest_runs_alone() -> None:
    code, text = relight("selftest", "--only", "T32")
    assert code == 0
    assert text.startswith("ok     T32")
