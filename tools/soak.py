"""Loads a server with clients that come, go and change their minds, and checks what is left of it.

    python -m tools.soak [--model FOLDER] [--minutes 20] [--clients 32] [--seed 0]

The server runs on a small page pool, so that requests wait, share prefixes and give way. Prompts
are token ids of mixed lengths, many with a common beginning; a quarter of the streams is closed at
a random token, some are closed by a deadline. In the end every request must have one outcome that
the server has counted as well, all pages must be free of holders, nothing may run or wait, and
memory must have stopped growing. Prints a report, whose last line has all figures, and returns 1 if
a check fails.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from relight.base.config import read_config
from relight.base.errors import RelightError
from relight.base.packaged import DEFAULT_MODEL, NAMES, model_folder

SCRIPT = """
import json, sys
from relight.base.settings import load
from relight.serve.main import serve

settings = load(json.loads(sys.argv[1]), {}).settings
serve(settings, progress=lambda done, total: None,
      ready=lambda one: print(json.dumps([one.url, one.info.max_context]), flush=True))
"""
SETTINGS = {
    "device": "cpu",
    "port": "0",
    "num_slots": 8,
    "max_step_tokens": 128,
    "cache_bytes": "2 MiB",
    "max_queue": 20,
    "threads": 1,
    "log_level": "error",
}
GROWTH = 1.05
SLACK_BYTES = 16 * 2**20
"""Memory may end at most so much above what it was after the first half."""
SETTLE_S = 30


@dataclass
class Report:
    """`outcomes` as clients saw them, `counted` as the server did; `memory` in bytes over time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, float] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    num_tokens: int = 0
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def num_streams(self) -> int:
        return sum(self.outcomes[name] for name in ("complete", "closed", "late", "failed"))

    def memory_bytes(self) -> tuple[float, float]:
        """In the second quarter of the time and in the last."""
        half = len(self.memory) // 2
        if not half:
            return 0.0, 0.0
        before = statistics.median(self.memory[half // 2 : half])
        return before, statistics.median(self.memory[-max(1, half // 2) :])

    def mistakes(self) -> Iterator[str]:
        if not self.outcomes["complete"]:
            yield "no answer was complete"
        if sum(self.counted.values()) != self.num_streams:
            yield f"{self.num_streams} streams began and the server counted {dict(self.counted)}"
        if self.outcomes["failed"]:
            yield f"{self.outcomes['failed']} requests failed: {dict(self.errors.most_common(3))}"
        for name, value in self.gauges.items():
            if value:
                yield f"{name} is {value:g} when all is done"
        before, after = self.memory_bytes()
        if after > GROWTH * before + SLACK_BYTES:
            yield f"memory grew from {before:,.0f} to {after:,.0f} bytes"
        if self.exit_code:
            yield f"the server ended with {self.exit_code}"

    def __str__(self) -> str:
        lines = [
            f"outcomes {dict(self.outcomes)}, {self.num_tokens} events",
            f"counted by the server {dict(self.counted)}, left {self.gauges}",
        ]
        if self.memory:
            step = max(1, len(self.memory) // 10)
            sizes = " ".join(f"{size / 2**20:.0f}" for size in self.memory[::step])
            lines.append(f"memory over time, MiB: {sizes}")
        return "\n".join([*lines, *(f"MISTAKE: {m}" for m in self.mistakes()), self.verdict()])

    def verdict(self) -> str:
        """One line with all that was counted."""
        mistakes, of = list(self.mistakes()), self.outcomes
        before, after = (size / 2**20 for size in self.memory_bytes())
        left = ", ".join(f"{value:g} {name}" for name, value in self.gauges.items())
        return (
            f"soak {f'FAILED ({len(mistakes)} mistakes)' if mistakes else 'passed'}: "
            f"{self.num_streams} streams = {of['complete']} complete + {of['closed']} closed + "
            f"{of['late']} late + {of['failed']} failed, {of['refused']} refused, "
            f"{self.num_tokens} events; server counted {sum(self.counted.values())}; left {left}; "
            f"memory {before:.0f} then {after:.0f} MiB; exit code {self.exit_code}; "
            f"{self.seconds:.0f} s"
        )


@contextmanager
def server(model: str | Path, **settings: object) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server in processes of its own; yields its address."""
    told = json.dumps({"model": str(model), **SETTINGS, **settings})
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, told], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        if not told:
            sys.exit(f"the server did not start (exit code {process.wait()}); it says why above")
        url, _ = json.loads(told)
        yield url, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def memory_bytes(pid: int) -> int:
    """What a process and its children have in RAM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 + sum(memory_bytes(int(child)) for child in children)


class Client:
    def __init__(self, http: httpx.AsyncClient, rng: random.Random, report: Report) -> None:
        self.http = http
        self.rng = rng
        self.report = report

    async def run(self, until_s: float, vocab: int) -> None:
        while time.monotonic() < until_s:
            outcome = await self.ask(vocab)
            self.report.outcomes[outcome] += 1
            if outcome == "refused":
                await asyncio.sleep(self.rng.uniform(0.1, 0.5))

    def prompt(self, vocab: int) -> list[int]:
        """Short, middling or long; half of them begin like others."""
        rng = self.rng
        length = rng.choice([rng.randint(1, 20), rng.randint(20, 120), rng.randint(120, 300)])
        family = random.Random(rng.randrange(6)) if rng.random() < 0.5 else rng
        begin = [family.randrange(4, vocab) for _ in range(length)]
        return begin + [rng.randrange(4, vocab) for _ in range(rng.randint(0, 5))]

    async def ask(self, vocab: int) -> str:
        rng = self.rng
        limit = rng.randint(0, 10) if rng.random() < 0.25 else None
        headers = {"x-relight-priority": rng.choice(["interactive", "batch"])}
        if rng.random() < 0.1:
            headers["x-relight-deadline-ms"] = str(rng.randint(50, 2000))
        body = {"prompt": self.prompt(vocab), "max_tokens": rng.randint(1, 24), "stream": True}
        async with self.http.stream(
            "POST", "/v1/completions", json=body, headers=headers
        ) as response:
            if response.status_code == 429:
                await response.aread()
                return "refused"
            count = 0
            async for line in response.aiter_lines():
                if limit is not None and count >= limit:
                    return "closed"
                if line.startswith("data: {"):
                    if '"error"' in line:
                        return self.failure(line)
                    count += 1
                    self.report.num_tokens += 1
                if line == "data: [DONE]":
                    return "complete"
        return self.failure(f"the stream ended, status {response.status_code}")

    def failure(self, told: str) -> str:
        if "deadline_passed" in told:
            return "late"
        self.report.errors[told] += 1
        return "failed"


async def soak(
    url: str, pid: int, *, seconds: float, clients: int, vocab: int, seed: int
) -> Report:
    report = Report()
    began_s = time.monotonic()
    limits = httpx.Limits(max_connections=clients + 1, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        until_s = time.monotonic() + seconds
        tasks = [
            asyncio.ensure_future(
                Client(http, random.Random(f"{seed} {number}"), report).run(until_s, vocab)
            )
            for number in range(clients)
        ]
        while not all(task.done() for task in tasks):
            report.memory.append(memory_bytes(pid))
            await asyncio.wait(tasks, timeout=max(0.2, seconds / 200))
        await asyncio.gather(*tasks)
        settled_s = time.monotonic() + SETTLE_S
        while True:
            text = (await http.get("/metrics")).text
            report.gauges = gauges(text)
            if not any(report.gauges.values()) or time.monotonic() > settled_s:
                break
            await asyncio.sleep(0.2)
        report.seconds = time.monotonic() - began_s
        report.counted = Counter(
            {
                match[1]: int(float(match[2]))
                for match in re.finditer(
                    r'^vllm:request_success_total\{.*finished_reason="(\w+)".*\} (\S+)$', text, re.M
                )
            }
        )
    return report


def gauges(text: str) -> dict[str, float]:
    """What must be nothing when nobody asks."""
    names = {
        "running": r"^vllm:num_requests_running\{.*\} (\S+)$",
        "waiting": r"^vllm:num_requests_waiting\{.*\} (\S+)$",
        "pages held": r'^relight:pages\{.*state="held".*\} (\S+)$',
    }
    found = {name: re.search(pattern, text, re.M) for name, pattern in names.items()}
    return {name: float(match[1]) for name, match in found.items() if match}


def vocab_size(model: str) -> int:
    """Of a checkpoint by folder or name, as all commands take it. Raises RelightError."""
    return read_config(model_folder(model)).config.vocab_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"folder of a checkpoint, or {NAMES}"
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        vocab = vocab_size(options.model)
    except RelightError as error:
        sys.exit(error.message)
    with server(options.model) as (url, process):
        report = asyncio.run(
            soak(
                url,
                process.pid,
                seconds=60 * options.minutes,
                clients=options.clients,
                vocab=vocab,
                seed=options.seed,
            )
        )
    report.exit_code = process.returncode
    print(report)
    return 1 if list(report.mistakes()) else 0


if __name__ == "__main__":
    sys.exit(main())
