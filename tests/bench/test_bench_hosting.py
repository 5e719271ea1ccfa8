"""A server that is started here answers before it is measured, and never stays behind."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relight.base.errors import BadSetting, Unavailable
from relight.bench import metrics, process
from relight.bench.hosting import Hosted, Hosts
from relight.bench.http import target
from relight.bench.scenario import Limits
from relight.cli import bench

LIMITS = Limits(canary_s=5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def command(port: int) -> str:
    return f"{sys.executable} -m relight.bench.selftest {port}"


def gone(pid: int, patience_s: float = 20.0) -> bool:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if not process.argv(pid) or process.is_zombie(pid):
            return True
        time.sleep(0.05)
    return False


def tokens_made(port: int) -> float:
    """Those of canaries and calibration are few: from some hundreds on it is being measured."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            series = metrics.parse(page.read().decode())
    except OSError:
        return 0.0
    return metrics.total(series, "vllm:generation_tokens_total") or 0.0


def test_a_started_server_answers_and_is_gone_after() -> None:
    port = free_port()
    to = target(f"http://127.0.0.1:{port}")
    with Hosts({"A": command(port)}, {"A": to}, ready_s=60, limits=LIMITS) as hosts:
        hosts.have("A")
        pid = process.listener(port)
        assert pid is not None
        hosts.have("A")
        assert process.listener(port) == pid, "it was started twice"
    assert gone(pid)
    assert process.listener(port) is None


def test_arms_have_the_machine_one_at_a_time_unless_they_may_not() -> None:
    ports = {"A": free_port(), "B": free_port()}
    commands = {name: command(port) for name, port in ports.items()}
    targets = {name: target(f"http://127.0.0.1:{port}") for name, port in ports.items()}
    for together in (False, True):
        with Hosts(commands, targets, ready_s=60, together=together, limits=LIMITS) as hosts:
            hosts.have("A")
            hosts.have("B")
            assert (process.listener(ports["A"]) is not None) == together
            assert process.listener(ports["B"]) is not None
        assert all(process.listener(port) is None for port in ports.values())


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("{python} -c 'print(\"no model\"); raise SystemExit(3)'", "ended with code 3\nno model"),
        ("{python} -c 'import time; time.sleep(60)'", "nothing listens"),
        ("/no/such/program", "ended with code 127"),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_last_words(start: str, told: str) -> None:
    hosted = Hosted(
        start.format(python=sys.executable), target(f"http://127.0.0.1:{free_port()}"), "key"
    )
    with pytest.raises(Unavailable) as problem:
        hosted.wait("", 3.0, LIMITS)
    assert told in problem.value.message


def test_an_address_that_is_taken_and_a_command_that_is_none_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = target(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(BadSetting, match="answers already"):
            Hosted("true", taken)
    free = target(f"http://127.0.0.1:{free_port()}")
    for start in ("", "one 'two"):
        with pytest.raises(BadSetting, match="start is"):
            Hosted(start, free)


FAMILY = """
import subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import time; time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_what_a_server_left_behind_ends_when_the_measuring_is_killed() -> None:
    """Children in sessions of their own, one that ignores SIGTERM, and a parent that dies by
    SIGKILL."""
    keep = (
        "import sys, relight.bench.keeper as k; k.GRACE_S = 0.5; "
        f"k.end.__defaults__ = (0.5,); k.main([sys.executable, '-c', {FAMILY!r}])"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {keep!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        grandchild = int(killed.stdout.readline())
        family = process.family(killed.pid)[1:]
        assert grandchild in family
        os.kill(killed.pid, signal.SIGKILL)
    assert all(gone(pid) for pid in family)


def test_a_b_of_two_started_servers_ends_with_neither(tmp_path: Path) -> None:
    port = free_port()
    limits = "limits: {lag_s: 1, closure_low: 0, ttft_s: 1, drift: 9, input_tokens: 1}"
    scenario = tmp_path / "small.yaml"
    scenario.write_text(
        "name: small\nwarm_up: 1\nclasses:\n"
        "  - {name: one, users: 1, requests: 2, input_tokens: 200, output_tokens: 4}\n" + limits
    )
    url = f"http://127.0.0.1:{port}"
    told = CliRunner().invoke(
        bench.app,
        f"ab {scenario} --url-a {url} --url-b {url} --start-a '{command(port)}' "
        f"--start-b '{command(port)} 0.05' --blocks 2 --out {tmp_path}",
    )
    assert told.exit_code == 3, told.output  # two blocks decide nothing
    assert len(list(tmp_path.glob("ab-*.json"))) == 1
    assert process.listener(port) is None


def test_a_first_ctrl_c_leaves_partial_results_that_say_so(tmp_path: Path) -> None:
    port = free_port()
    run = [sys.executable, "-m", "relight.cli.main", "bench", "run", "chat"]
    run += ["--url", f"http://127.0.0.1:{port}", "--start", command(port) + " 0.02 0.01"]
    run += ["--cell", "users=2,requests=500,output_tokens=20", "--clients", "2"]
    run[1:3] = ["-c", "from relight.cli.main import main; main()"]
    with subprocess.Popen([*run, "--out", str(tmp_path)], stdout=subprocess.PIPE) as measuring:
        until = time.monotonic() + 60
        while process.listener(port) is None and time.monotonic() < until:
            time.sleep(0.1)
        while tokens_made(port) < 300 and time.monotonic() < until:
            time.sleep(0.1)
        measuring.send_signal(signal.SIGINT)
        output, _ = measuring.communicate(timeout=60)
    assert measuring.returncode in (2, 3), output
    (result,) = [p for p in tmp_path.glob("*.json") if "series" not in p.name]
    assert b'"complete": false' in result.read_bytes()
    assert process.listener(port) is None
