"""Runs the same requests on engines with different settings that must not matter, and compares
their tokens. For the tools that need an accelerator.

A kernel that takes the device down ends what its process can do: the program begins anew behind the
arm that met it.
"""

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from relight.base.errors import BadSetting, RelightError
from relight.base.settings import Settings
from relight.base.types import EngineInfo, Request
from relight.engine.assemble import assemble
from relight.engine.loop import Loop
from relight.kernels.device import answers
from tools.about import about

Tokens = dict[str, list[int]]
Found = dict[str, Any]

GO_ON = "--go-on"
"""The option of a program that begins anew."""


@dataclass(frozen=True)
class Arm:
    """`company`: requests that run at once, 0 for all. Arms of a `group` must give equal tokens;
    the first of a group that runs is what the others are compared with, itself with none."""

    group: str
    name: str
    changes: dict[str, object]
    company: int = 0

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass
class Ran:
    tokens: Tokens
    load_s: float
    run_s: float = 0.0
    guessed: int = 0
    right: int = 0
    """Of the tokens that were guessed, with all before them."""
    step_ms: dict[int, list[float]] = field(default_factory=dict)
    """By the number of requests that got a token, of steps without given rows."""


def run(settings: Settings, requests: Sequence[Request], company: int) -> tuple[Ran, EngineInfo]:
    begun = time.perf_counter()
    loop, info = assemble(settings, lambda done, total: None)
    ran = Ran({request.id: [] for request in requests}, time.perf_counter() - begun)
    company = company or len(requests)
    for at in range(0, len(requests), company):
        _answer(loop, requests[at : at + company], ran)
    stats = loop.stats()
    ran.guessed, ran.right = sum(stats.spec_drafted), sum(stats.spec_accepted)
    ran.run_s = time.perf_counter() - begun - ran.load_s
    return ran, info


def _answer(loop: Loop, requests: Sequence[Request], ran: Ran) -> None:
    for request in requests:
        loop.add(request)
    open_ = {request.id for request in requests}
    while open_:
        begun, reading = time.perf_counter(), any(not ran.tokens[id] for id in open_)
        deltas = loop.step()
        if deltas and not reading:
            took = 1e3 * (time.perf_counter() - begun)
            ran.step_ms.setdefault(len(deltas), []).append(took)
        for delta in deltas:
            ran.tokens[delta.id] += delta.tokens
            if delta.finish == "error":
                raise RuntimeError(delta.error)
            if delta.finish is not None:
                open_.discard(delta.id)
    while not loop.idle:
        loop.step()


def difference(found: Tokens, wanted: Tokens) -> str:
    """The first difference; empty if there is none."""
    for id, tokens in wanted.items():
        if found[id] != tokens:
            pairs = zip(found[id], tokens, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), -1)
            return f"request {id}: token {place}"
    return ""


def tried(arm: Arm, base: Settings, requests: Sequence[Request]) -> Found:
    """What became of an arm: tokens and what it took, or why there are none. As JSON has it."""
    about_it: Found = {"changes": arm.changes, "company": arm.company or len(requests)}
    try:
        ran, info = run(msgspec.structs.replace(base, **arm.changes), requests, arm.company)
    except BadSetting as refused:
        return {**about_it, "refused": refused.message}
    except (RelightError, RuntimeError) as error:
        return {**about_it, "difference": f"{type(error).__name__}: {error}"}
    return {
        **about_it,
        "made": ran.tokens,
        "load_s": round(ran.load_s, 1),
        "run_s": round(ran.run_s, 1),
        "guessed": ran.guessed,
        "right": ran.right,
        "step_ms": _medians(ran.step_ms),
        "operator": info.operator,
        "notes": info.notes,
        "measured": dict(info.measured),
    }


def compared(arms: Sequence[Arm], found: Mapping[str, Found], device: str) -> dict[str, Found]:
    """A line for each arm of which it is `found` what became of it, in the order of `arms`. One
    that its settings refuse is no fault on a processor, where nothing is recorded and no kernel
    runs."""
    wanted: dict[str, tuple[str, Tokens]] = {}
    lines: dict[str, Found] = {}
    for arm in arms:
        if arm.key not in found:
            continue
        line = dict(found[arm.key])
        made: Tokens | None = line.pop("made", None)
        if made is None:
            line["equal"] = "refused" in line and device == "cpu"
        else:
            first, tokens = wanted.setdefault(arm.group, (arm.name, made))
            line["difference"] = difference(made, tokens)
            line["equal"] = not line["difference"]
            line["compared_with"] = None if first == arm.name else first
            line["tokens"] = sum(map(len, made.values()))
            line["different_tokens"] = len({t for tokens in made.values() for t in tokens})
        lines[arm.key] = line
    return lines


def compare(
    arms: Sequence[Arm],
    base: Settings,
    requests: Sequence[Request],
    out: Path,
    before: Mapping[str, Found] | None = None,
) -> Found:
    """In this process, one after the other. Writes `out` after each arm, behind those `before`,
    which are not run again. An arm that cannot run says why."""
    found: dict[str, Found] = {}
    result = {**about(base.device), "requests": len(requests), "arms": dict(before or {})}
    for arm in arms:
        if arm.key in result["arms"]:
            continue
        found[arm.key] = tried(arm, base, requests)
        result["arms"] |= compared(arms, found, base.device)
        line = result["arms"][arm.key]
        print(arm.key, {k: v for k, v in line.items() if k != "measured"}, flush=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        if not line["equal"] and not answers(torch.device(base.device)):
            again = [sys.executable, *sys.orig_argv[1:]]
            os.execv(sys.executable, again if GO_ON in again else [*again, GO_ON])
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
    return result


def known(out: Path, go_on: bool) -> dict[str, Found]:
    """The arms that a program which begins anew has run."""
    found: dict[str, Found] = json.loads(out.read_text())["arms"] if go_on else {}
    return found


def _medians(samples: dict[int, list[float]]) -> dict[int, float]:
    return {rows: round(statistics.median(ms), 2) for rows, ms in sorted(samples.items())}
