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


@dataclass
class Ran:
    tokens: Tokens
    load_s: float
    step_ms: dict[int, list[float]] = field(default_factory=dict)
    """By the number of requests that got a token, of steps without given rows."""


def run(settings: Settings, requests: Sequence[Request], company: int) -> tuple[Ran, EngineInfo]:
    begun = time.perf_counter()
    loop, info = assemble(settings, lambda done, total: None)
    ran = Ran({request.id: [] for request in requests}, time.perf_counter() - begun)
    company = company or len(requests)
    for at in range(0, len(requests), company):
        _answer(loop, requests[at : at + company], ran)
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


def compare(
    arms: Sequence[Arm],
    base: Settings,
    requests: Sequence[Request],
    out: Path,
    before: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Writes `out` after each arm, behind those `before`, which are not run again. An arm that
    cannot run says why; one that its settings refuse is no fault on a processor, where nothing is
    recorded and no kernel runs."""
    wanted: dict[str, tuple[str, Tokens]] = {}
    found: dict[str, dict[str, Any]] = dict(before or {})
    result = {**about(base.device), "requests": len(requests), "arms": found}
    for arm in arms:
        key = f"{arm.group}: {arm.name}"
        if key in found:
            continue
        line: dict[str, Any] = {"changes": arm.changes, "company": arm.company or len(requests)}
        found[key] = line
        try:
            settings = msgspec.structs.replace(base, **arm.changes)
            ran, info = run(settings, requests, arm.company)
        except BadSetting as refused:
            line.update(equal=base.device == "cpu", refused=refused.message)
        except (RelightError, RuntimeError) as error:
            line.update(equal=False, difference=f"{type(error).__name__}: {error}")
        else:
            first, tokens = wanted.setdefault(arm.group, (arm.name, ran.tokens))
            gone = difference(ran.tokens, tokens)
            line.update(
                equal=not gone,
                compared_with=None if first == arm.name else first,
                difference=gone,
                tokens=sum(map(len, ran.tokens.values())),
                different_tokens=len({t for made in ran.tokens.values() for t in made}),
                load_s=round(ran.load_s, 1),
                step_ms=_medians(ran.step_ms),
                operator=info.operator,
                notes=info.notes,
                measured=dict(info.measured),
            )
        print(arm.group, arm.name, {k: v for k, v in line.items() if k != "measured"}, flush=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        if not line["equal"] and not answers(torch.device(base.device)):
            again = [sys.executable, *sys.orig_argv[1:]]
            os.execv(sys.executable, again if GO_ON in again else [*again, GO_ON])
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
    return result


def known(out: Path, go_on: bool) -> dict[str, dict[str, Any]]:
    """The arms that a program which begins anew has run."""
    found: dict[str, dict[str, Any]] = json.loads(out.read_text())["arms"] if go_on else {}
    return found


def _medians(samples: dict[int, list[float]]) -> dict[int, float]:
    return {rows: round(statistics.median(ms), 2) for rows, ms in sorted(samples.items())}
