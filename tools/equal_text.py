"""Models on a device: equal text between recorded and eager steps, batch sizes and overlapping,
with each choice of kernels, with guesses or without. Kernels are built first; then arms run beside
each other, each in a process of its own, since what costs time is the host's.

    python -m tools.equal_text --out FILE [--device cuda] [--minutes 2] [--workers 10]
                               [--tokens 12] [--groups "ember by cuda,v41 by reference"]
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base.packaged import EMBER, EMBER_V4, model_folder
from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.ember.tasks import Task, instances
from relight.session.encoding import encoding_of
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer
from tools.about import about
from tools.arms import Arm, Found, compared, tried
from tools.audit import build_kernels
from tools.beside import run_all, tell

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
TINY = ("v4_dspark", "v41")
"""Models with drafts that guess at random."""
VOCAB = {EMBER: 4096, EMBER_V4: 4096, **dict.fromkeys(TINY, 320)}
LENGTHS = (1, 9, 127, 129, 500)
"""Over the ends of pages, and different, so that steps have every width from all down to one."""
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "top_k": 50},
    {"temperature": 0.0, "presence_penalty": 0.5},
    {"temperature": 0.8, "min_p": 0.01, "logprobs": 2},
)
"""Of each kind of draws."""
CHATS: dict[Task, dict[str, Any]] = {
    "tool call": {"temperature": 0.0},
    "arithmetic": {"temperature": 1.0},
}
"""Those of questions that a trained model has learnt, where guesses are right at times."""
SLOTS = len(LENGTHS) + len(CHATS)
CONTEXT = 1024
GUESSES = {"spec": "dspark", "spec_k": 5}


@dataclass(frozen=True)
class Group:
    """Arms that must give equal text."""

    model: str
    base: Settings
    tokens: int
    arms: tuple[Arm, ...]

    def requests(self) -> list[Request]:
        """Answers differ in length, so that the last steps are of one row. Of tiny models, which
        compute by definitions, fewer and no chats."""
        prompts = [*zip(_words(VOCAB[self.model]), SAMPLINGS, strict=True)]
        if self.model in TINY:
            prompts.pop()
        else:
            prompts += zip(_chats(self.base), CHATS.values(), strict=True)
        return [
            Request(
                id=f"r{number}",
                prompt=prompt,
                sampling=SamplingParams(seed=number, max_tokens=self.tokens + 2 * number, **how),
            )
            for number, (prompt, how) in enumerate(prompts)
        ]


def _words(vocab: int) -> Iterator[tuple[int, ...]]:
    for number, length in enumerate(LENGTHS):
        draw = random.Random(number)
        yield tuple(draw.randrange(4, vocab) for _ in range(length))


def _chats(settings: Settings) -> Iterator[tuple[int, ...]]:
    folder = model_folder(settings.model)
    tokenizer = Tokenizer.load(folder)
    encoder = PromptEncoder(tokenizer, encoding_of(settings, folder, tokenizer))
    for task in CHATS:
        question = next(instances(task, "en", 1, lambda text: len(tokenizer.encode_text(text))))
        yield tuple(encoder.encode(question.conversation).ids)


def groups(device: str, tokens: int) -> dict[str, Group]:
    """By the name of each. Those that compute by definitions take longest and come first."""
    found = [_ember(model, "reference", device, tokens) for model in (EMBER_V4, EMBER)]
    found += [_tiny(model, device, tokens) for model in TINY]
    found += [_ember(model, "cuda", device, tokens) for model in (EMBER_V4, EMBER)]
    return {group.arms[0].group: group for group in found}


def _settings(model: str, kernels: str, device: str, slots: int) -> Settings:
    return Settings(
        model=model,
        device=device,
        kernels="cuda" if kernels == "cuda" else "reference",
        num_slots=slots,
        max_context=CONTEXT,
        max_step_tokens=256,
        prefix_cache="off",
        step_target=0,
    )


def _ember(model: str, kernels: str, device: str, tokens: int) -> Group:
    """Alone, by threes (which fill a recording of four) and all together; guesses by kernels."""
    name, eager, recorded = f"{model} by {kernels}", {"graphs": "off"}, {"graphs": "on"}
    by_kernels = kernels == "cuda"
    arms = [
        Arm(name, "eager, together", {**eager}),
        Arm(name, "eager, alone", {**eager}, 1),
        Arm(name, "recorded, together", {**recorded}),
        Arm(name, "recorded, by threes", {**recorded, "overlap": "off"}, 3),
    ]
    if by_kernels:
        arms += [
            Arm(name, "eager, guesses", {**eager, **GUESSES}),
            Arm(name, "eager, guesses alone", {**eager, **GUESSES}, 1),
            Arm(name, "recorded, guesses", {**recorded, **GUESSES}),
            Arm(name, "recorded, guesses as they pay", {**recorded, "spec": "dspark"}, 3),
        ]
    base = _settings(model, kernels, device, SLOTS)
    return Group(model, base, tokens if by_kernels else tokens // 2, tuple(arms))


def _tiny(model: str, device: str, tokens: int) -> Group:
    """By definitions, since its shapes have no kernels; two at a time, so that steps are not wider
    than what is soon recorded so."""
    name, guesses = f"{model} by reference", {"spec": "dspark", "spec_k": 3}
    arms = (
        Arm(name, "eager, no guesses", {"graphs": "off"}, 2),
        Arm(name, "eager, guesses", {**guesses, "graphs": "off"}, 2),
        Arm(name, "recorded, guesses", {**guesses, "graphs": "on"}, 2),
    )
    base = _settings(str(GOLDEN / model / "checkpoint"), "reference", device, 2)
    return Group(model, base, tokens // 2, arms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=12, help="that the first request makes")
    parser.add_argument("--groups", help="only these")
    parser.add_argument("--arm", help="only this, told")
    args = parser.parse_args()
    known = groups(args.device, args.tokens)
    if args.arm:
        tell(one(known, args.arm))
        return
    names = args.groups.split(",") if args.groups else list(known)
    found = gather(args, [known[name] for name in names])
    sys.exit(0 if all(arm["equal"] for arm in found["arms"].values()) else 1)


def one(known: dict[str, Group], key: str) -> Found:
    group = known[key.partition(": ")[0]]
    (arm,) = (arm for arm in group.arms if arm.key == key)
    return tried(arm, group.base, group.requests())


def gather(args: argparse.Namespace, some: Sequence[Group]) -> Found:
    begun_s, arms = time.monotonic(), [arm for group in some for arm in group.arms]
    base = [sys.executable, "-m", "tools.equal_text", "--out", str(args.out)]
    base += ["--device", args.device, "--tokens", str(args.tokens), "--arm"]
    result: Found = about(args.device)
    if args.device.startswith("cuda"):
        result["kernels"] = build_kernels(args.device)
        result["build_s"] = round(time.monotonic() - begun_s, 1)
    found: dict[str, Found] = {}

    def write() -> None:
        result["seconds"] = round(time.monotonic() - begun_s, 1)
        result["arms"] = compared(arms, found, args.device)
        args.out.write_text(json.dumps(result, indent=1) + "\n")

    def take(key: str, told: Found) -> None:
        found[key] = {**told, "ended_s": round(time.monotonic() - begun_s, 1)}
        write()
        print(key, result["arms"][key].get("difference"), found[key]["ended_s"], flush=True)

    write()
    jobs = {arm.key: [*base, arm.key] for arm in arms}
    seconds = 60 * args.minutes - (time.monotonic() - begun_s)
    for key, why in run_all(jobs, take, seconds=seconds, workers=args.workers).items():
        found[key] = {"difference": why[0], "log": why[1:]}
    write()
    return result


if __name__ == "__main__":
    main()
