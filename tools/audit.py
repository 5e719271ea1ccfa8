"""The promises of `relight audit` on a device: ember and ember-v4 with all kernels, steps recorded
and eager, without guesses and with those of their drafts, and a tiny model whose draft knows
nothing. Kernels are built first; then checks run beside each other, each in a process of its own,
those first that start most engines.

    python -m tools.audit --out FILE [--device cuda] [--minutes 2] [--workers 8]

Exits with 1 unless each promise that can be checked there was checked and kept.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from relight.base.config import read_config
from relight.base.packaged import EMBER, EMBER_V4, model_folder
from relight.base.settings import Settings
from relight.kernels.build import build_all, builder
from relight.kernels.catalogue import kernels
from relight.kernels.device import architecture
from relight.lab.audit import Audit
from relight.lab.inprocess import start_in_process
from tools.about import about
from tools.beside import run_all, tell

DRAFTED = Path(__file__).parents[1] / "tests" / "golden" / "v4_dspark" / "checkpoint"
TEXT = ("chunks", "generated", "starting_over", "warm", "batch", "widths")
"""Checks of one model without a draft, on any device."""
MADE_ROWS = ("batch", "widths")
"""Those of them that hang on whether steps are recorded. All else is where rows begin and what is
found again, and the check `recorded` compares both ways to compute them."""


GUESSED = ("speculation", "recorded", "widths")
"""Those that hang on a draft. The other requests have penalties, which go without guesses."""


@dataclass(frozen=True)
class Arm:
    settings: Settings
    checks: tuple[str, ...]
    num_slots: int = 8


def arms(device: str) -> dict[str, Arm]:
    """By name. Nothing can be recorded, and no kernel runs, but on CUDA devices. With guesses few
    sequences run: 15 of each make a step wide, and what of it has no kernels is not soon recorded.
    """
    is_cuda, found = device.startswith("cuda"), dict[str, Arm]()
    tiny = Settings(model=str(DRAFTED), device=device, kernels="reference", spec="dspark", spec_k=3)
    plain = {"on": ("recorded", *TEXT), "off": MADE_ROWS if is_cuda else (*TEXT, "threads")}
    guessed = {"on": GUESSED, "off": ("speculation",)}
    for name, graphs in (("recorded", "on"), ("eager", "off")):
        if not is_cuda and graphs == "on":
            continue
        how = {"graphs": graphs}
        for model in (EMBER, EMBER_V4):
            ember = Settings(model=model, device=device, kernels="cuda" if is_cuda else "auto")
            ember = msgspec.structs.replace(ember, **how)
            guesses = msgspec.structs.replace(ember, spec="dspark")
            found[f"{model}, guesses, {name}"] = Arm(guesses, guessed[graphs], num_slots=2)
            found[f"{model}, {name}"] = Arm(ember, plain[graphs])
        guessing = msgspec.structs.replace(tiny, **how)
        found[f"v4_dspark, {name}"] = Arm(guessing, ("speculation",), num_slots=2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8, help="that each request makes")
    parser.add_argument("--check", nargs=2, metavar=("ARM", "CHECK"), help="only this, told")
    args = parser.parse_args()
    if args.check:
        arm_name, check_name = args.check
        one(args.device, arm_name, check_name, args.tokens)
    else:
        sys.exit(0 if is_kept(gather(args)) else 1)


def gather(args: argparse.Namespace) -> dict[str, Any]:
    begun_s, wanted = time.monotonic(), arms(args.device)
    result: dict[str, Any] = about(args.device)
    result["arms"] = {
        name: {"settings": _changes(arm.settings), "promises": []} for name, arm in wanted.items()
    }
    base = [sys.executable, "-m", "tools.audit", "--out", str(args.out), "--device", args.device]
    base += ["--tokens", str(args.tokens), "--check"]
    jobs = {
        f"{name}: {check}": [*base, name, check]
        for name, arm in wanted.items()
        for check in arm.checks
    }
    if args.device.startswith("cuda"):
        result["kernels"] = build_kernels(args.device)
        result["build_s"] = round(time.monotonic() - begun_s, 1)

    def write() -> None:
        result["seconds"] = round(time.monotonic() - begun_s, 1)
        args.out.write_text(json.dumps(result, indent=1) + "\n")

    def take(name: str, told: dict[str, Any]) -> None:
        result["arms"][name.partition(": ")[0]]["promises"].append(told)
        print(name, told, flush=True)
        write()

    write()
    seconds = 60 * args.minutes - (time.monotonic() - begun_s)
    result["not_ended"] = run_all(jobs, take, seconds=seconds, workers=args.workers)
    write()
    return result


def build_kernels(device: str) -> int:
    """How many; else each process would compile them."""
    import torch

    arch = architecture(torch.device(device))
    made = builder(arch, lambda text: print(text, flush=True))
    return len(list(build_all([(made, kernel) for kernel in kernels(arch)])))


def one(device: str, arm: str, check: str, tokens: int) -> None:
    begun_s, asked = time.monotonic(), arms(device)[arm]
    config = read_config(model_folder(asked.settings.model) / "config.json").config
    audit = Audit(
        asked.settings,
        start_in_process,
        tokens=tokens,
        num_slots=asked.num_slots,
        vocab_size=config.vocab_size,
    )
    for promise in audit.promises((check,)):
        took_s = round(time.monotonic() - begun_s, 1)
        tell({"check": check, **msgspec.structs.asdict(promise), "took_s": took_s})


def is_kept(found: dict[str, Any]) -> bool:
    """Whether all checks came to their ends and found promises kept. An arm has those that can be
    checked there, so that one was not checked is a fault as well."""
    promises = [one for arm in found["arms"].values() for one in arm["promises"]]
    return found.get("not_ended") == {} and all(one["verdict"] == "kept" for one in promises)


def _changes(settings: Settings) -> dict[str, object]:
    """What differs from the defaults, but for the model, which its arm names."""
    usual = msgspec.structs.asdict(msgspec.structs.replace(Settings(), model=settings.model))
    return {k: v for k, v in msgspec.structs.asdict(settings).items() if usual[k] != v}


if __name__ == "__main__":
    main()
