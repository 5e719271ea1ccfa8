"""A whole server with a tiny checkpoint: two processes, from the start to the end."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from relight.base.errors import BadCheckpoint, BadConfig
from relight.base.settings import Settings, load
from relight.serve.main import curl_line, serve
from tests.serve.fakes import FOLDER, HELLO

CHECKPOINT = FOLDER.parent / "v4" / "checkpoint"
START_S = 60
SCRIPT = """
import json, sys
from relight.base.settings import load
from relight.serve.main import serve

def ready(one):
    assert "torch" not in sys.modules
    print(json.dumps([one.url, one.curl, one.info.max_context]), flush=True)

settings = load({"model": sys.argv[1], "served_name": "tiny", "port": "0", "threads": "1",
                 "device": "cpu", "num_slots": "4"}, {}).settings
serve(settings, progress=lambda done, total: None, ready=ready)
print("ended", flush=True)
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Tiny weights beside the tiny tokenizer: both have 320 tokens."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    shutil.copy(FOLDER / "tokenizer.json", folder)
    return folder


@pytest.fixture
def server(checkpoint: Path) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(checkpoint)], stdout=subprocess.PIPE, text=True
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_a_server_answers_and_ends_with_no_child_left(server: "subprocess.Popen[str]") -> None:
    assert server.stdout
    url, curl, max_context = json.loads(server.stdout.readline())
    engines = children(server.pid)
    assert engines
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 5, "temperature": 0}
    body["thinking"] = {"type": "disabled"}
    with httpx.Client(base_url=url, timeout=START_S) as http:
        answers = [http.post("/v1/chat/completions", json=body).json() for _ in range(2)]
        assert answers[0]["usage"]["completion_tokens"] <= 5
        assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
        assert http.get("/v1/models").json()["data"][0]["max_model_len"] == max_context
        assert http.get("/health").json() == {"state": "idle"}
        assert "vllm:prompt_tokens_total" in http.get("/metrics").text
    if shutil.which("curl"):
        command = shlex.split(curl.replace('"stream":true', '"stream":true,"max_tokens":3'))
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert text.endswith("data: [DONE]\n\n")
    server.send_signal(signal.SIGTERM)
    assert server.stdout.read() == "ended\n"
    assert server.wait(20) == 0
    assert not any(exists(engine) for engine in engines)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_ctrl_c_twice_ends_a_running_answer_and_leaves_nothing(checkpoint: Path) -> None:
    """The keys reach the server and its engine. No process, port or folder is left, nor shared
    memory, of which they use none; and the client is told why its answer ends."""
    scratch = tempfile.mkdtemp()  # short: it is part of a socket's path
    server = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(checkpoint)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": scratch},
    )
    assert server.stdout
    try:
        url = json.loads(server.stdout.readline())[0]
        engines = children(server.pid)
        assert engines
        assert not any(map(uses_shared_memory, [server.pid, *engines]))
        body = {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=START_S) as answer:
            events = answer.iter_lines()
            assert next(events).startswith("data: ")
            os.killpg(server.pid, signal.SIGINT)
            while httpx.get(f"{url}/health").json()["state"] != "draining":
                time.sleep(0.05)
            os.killpg(server.pid, signal.SIGINT)
            told = [event for event in events if event]
        assert "the server is stopping" in told[-1]
        assert server.stdout.read() == "ended\n"
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    assert not any(exists(engine) for engine in engines)
    Path(scratch).rmdir()  # which is empty
    with socket.create_server(("127.0.0.1", httpx.URL(url).port or 0)):
        pass


def uses_shared_memory(pid: int) -> bool:
    return "/dev/shm" in Path(f"/proc/{pid}/maps").read_text()


def test_a_signal_while_the_model_is_loaded_ends_all(server: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 20
    while not (engines := children(server.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert not any(exists(engine) for engine in engines)


def settings(model: Path) -> Settings:
    return load({"model": str(model), "port": "0"}, {}).settings


def test_a_folder_without_a_tokenizer_is_told_before_an_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json does not exist"):
        serve(settings(tmp_path), progress=lambda *_: None, ready=lambda _: None)


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    with pytest.raises(BadConfig, match=r"config\.json"):
        serve(settings(tmp_path), progress=lambda *_: None, ready=lambda _: None)


def test_the_curl_line_is_one_that_a_shell_reads() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:1", "it's"))
    assert words[:2] == ["curl", "-N"]
    assert json.loads(words[-1])["model"] == "it's"
