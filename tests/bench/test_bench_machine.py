"""What is stored of a machine and of a server's process is what can be read, and no secret."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relight.bench import about, machine, process, redact
from relight.bench.http import target
from relight.bench.inside import resources
from relight.bench.watch import Point


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (["--api-key", "abc", "--port", "80"], ["--api-key", "[hidden]", "--port", "80"]),
        (["--api-key", "abc", "def", "--x"], ["--api-key", "[hidden]", "[hidden]", "--x"]),
        (["--api-key=abc"], ["--api-key=[hidden]"]),
        (["HF_TOKEN=abc", "serve"], ["HF_TOKEN=[hidden]", "serve"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--tokenizer", "/m", "--max-tokens=5"], ["--tokenizer", "/m", "--max-tokens=5"]),
        (["--note", "sk-abcdefgh12345"], ["--note", "[hidden]"]),
        (["--url", "http://me:word@host/x"], ["--url", "http://[hidden]host/x"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: [hidden]"]),
    ],
)
def test_a_command_line_is_stored_without_its_secrets(given: list[str], stored: list[str]) -> None:
    assert redact.argv(given) == stored


def test_settings_are_stored_without_their_secrets() -> None:
    told = {
        "api_key": ["abc", "def"],
        "nested": {"hf_token": "abc", "max_num_seqs": 32, "note": "hf_abcdefgh1"},
        "ssl_keyfile_password": None,
        "tokenizer": "/m",
    }
    assert redact.settings(told) == {
        "api_key": ["[hidden]", "[hidden]"],
        "nested": {"hf_token": "[hidden]", "max_num_seqs": 32, "note": "[hidden]"},
        "ssl_keyfile_password": None,
        "tokenizer": "/m",
    }


def test_accelerators_are_read_as_their_driver_tells_them() -> None:
    line = "H200, 143771, 143000, 580.65, 1980, 700.00, 75.50, 31\n"
    (device,) = machine.parse_devices(line)
    assert (device.name, device.driver) == ("H200", "580.65")
    assert device.memory_bytes == 143771 * 2**20
    assert (device.power_w, device.temperature_c) == (75.5, 31)
    (other,) = machine.parse_devices("X, [N/A], [N/A], 1, [N/A], [N/A], [N/A], 40\nbroken\n")
    assert (other.memory_bytes, other.power_cap_w, other.temperature_c) == (None, None, 40)


def test_energy_is_read_where_it_may_be_and_unknown_elsewhere(tmp_path: Path) -> None:
    assert machine.package_energy_j(tmp_path) is None
    for number in (0, 1):
        (tmp_path / f"intel-rapl:{number}").mkdir()
        (tmp_path / f"intel-rapl:{number}" / "energy_uj").write_text("1500000\n")
    assert machine.package_energy_j(tmp_path) == 3.0


def test_power_and_floors_are_of_the_window() -> None:
    line = "H200, 100, {}, 1, 1, 1, {}, {}"
    points = [
        Point(
            t=float(second),
            resident=100 + second,
            swapped=0,
            zombies=0,
            mem_available=1000 - second,
            devices=machine.parse_devices(line.format(50 - second, 100 + second, 30 + second)),
        )
        for second in range(3)
    ]
    found = resources(points, cpu_j=50.0, seconds=10.0, out_tokens=100)
    assert found is not None
    assert (found.resident_max, found.mem_available_min) == (102, 998)
    assert (found.device_free_min, found.temperature_max) == (48 * 2**20, 32)
    assert found.device_j == pytest.approx(1010)
    assert found.j_per_token == pytest.approx(10.6)
    assert resources([Point(t=0.0)], None, 1.0, 1) is None


SERVER = """
import socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
time.sleep(30)
"""


def test_a_server_s_process_is_found_by_its_port(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    header = b'{"a":{}}'
    weights = tmp_path / "model" / "m.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    command = [sys.executable, "-c", SERVER, "--model", "model", "--api-key", "very-secret"]
    environment = {**os.environ, "SOME_SIMULATE_FAULT": "very-secret"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            assert process.listener(port) == server.pid
            found = asyncio.run(about.about(target(f"http://127.0.0.1:{port}")))
        finally:
            server.kill()
    assert found.pid == server.pid
    assert found.argv[-2:] == ["--api-key", "[hidden]"]
    assert "SOME_SIMULATE_FAULT" in found.overrides
    assert found.config_hash == found.tokenizer_hash != None  # noqa: E711
    assert found.weights_hash == about.weights_hash(tmp_path / "model")
    assert "very-secret" not in repr(found)
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"12345")
    assert found.weights_hash != about.weights_hash(tmp_path / "model")


def test_the_age_of_a_process_is_known() -> None:
    age = process.age_s(os.getpid())
    assert age is not None
    assert 0 < age < 3600
    assert process.age_s(2**30) is None


def test_nobody_listens_where_nobody_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert process.listener(port) is None


def test_a_child_that_ended_and_was_not_waited_for_is_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    for _ in range(500):
        if process.is_zombie(child.pid):
            break
        time.sleep(0.02)
    assert process.is_zombie(child.pid)
    assert child.pid in process.family(os.getpid())
    child.wait()
    assert not process.is_zombie(child.pid)
