"""The commands that run a model, on a tiny checkpoint and as a user starts them."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from relight.cli.main import main

GOLDEN = Path(__file__).parent.parent / "golden"
COMMAND = [sys.executable, "-c", "from relight.cli.main import main; main()"]
ENVIRONMENT = os.environ | {"COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
TINY = ["--served-name", "small", "--device", "cpu", "--threads", "1", "--num-slots", "4"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cli") / "checkpoint"
    shutil.copytree(GOLDEN / "v4" / "checkpoint", folder)
    shutil.copy(GOLDEN / "text" / "tokenizer.json", folder)
    return str(folder)


def test_serve_prints_settings_memory_and_a_curl_line_that_works(checkpoint: str) -> None:
    arguments = ["serve", "--model", checkpoint, "--port", "0", *TINY]
    with subprocess.Popen(
        COMMAND + arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        try:
            printed = ""
            while not printed.splitlines()[-1:] or "curl " not in printed.splitlines()[-1]:
                line = process.stdout.readline()
                assert line, f"the server ended early, after {printed}"
                printed += line
            words = shlex.split(printed.splitlines()[-1])
            body = json.loads(words[words.index("-d") + 1]) | {"max_tokens": 2}
            url = next(word for word in words if word.startswith("http"))
            answer = httpx.post(url, json=body, timeout=60).text
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert "data: [DONE]" in answer
    assert "flag --threads" in printed
    assert "longest context" in printed
    assert "weights" in printed
    assert "boundary records" in printed


def relight(monkeypatch: pytest.MonkeyPatch, *arguments: str, typed: str = "") -> int:
    """Runs the command line in this process; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["relight", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_generate_prints_the_answer_and_only_that_on_standard_output(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--model", checkpoint, *TINY, "--raw", "--max-tokens", "3"]
    assert relight(monkeypatch, *arguments, "--seed", "1", typed="hello") == 0
    piped = capsys.readouterr()
    assert "prompt tokens, 3 made]" in piped.err
    assert piped.out.strip()
    assert relight(monkeypatch, *arguments, "--seed", "1", "hello") == 0
    assert capsys.readouterr().out == piped.out


@pytest.mark.parametrize("command", ["generate", "audit", "serve"])
def test_a_missing_checkpoint_is_one_clear_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [command, "--model", str(tmp_path / "absent"), *TINY]
    assert relight(monkeypatch, *arguments, typed="x") == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert error.startswith("error: ")
    assert "absent" in error


def test_a_random_checkpoint_can_be_written_and_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "random")
    config = str(GOLDEN / "v4" / "checkpoint" / "config.json")
    arguments = ["synth", folder, "--config", config, "--no-tokenizer"]
    assert relight(monkeypatch, *arguments) == 0
    assert "tensors" in capsys.readouterr().out
    assert relight(monkeypatch, "inspect", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["folder"] == folder
    assert relight(monkeypatch, *arguments) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert "--force" in error
