"""ember-v4 on a device: equal text between recorded and eager steps, batch sizes and overlapping,
with each choice of kernels; and of tiny models with drafts, with guesses or without.

    python -m tools.equal_text --out FILE [--device cuda] [--tokens 16]
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from relight.base.packaged import EMBER_V4
from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from tools.arms import GO_ON, Arm, compare, known

VOCAB = 4096
LENGTHS = (1, 9, 127, 129, 500)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "top_k": 50},
    {"temperature": 0.0, "presence_penalty": 0.5},
    {"temperature": 0.8, "min_p": 0.01, "logprobs": 2},
)
"""Of each kind of draws."""
CONTEXT = 1024
GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
DRAFTED = {"v4_dspark": 320, "v41": 320}
"""Tiny models with drafts, and their vocabularies."""


def requests(tokens: int, vocab: int = VOCAB) -> list[Request]:
    """Over the ends of pages, of different lengths, so that steps have every width from all of them
    down to one."""
    found = []
    for number, (length, how) in enumerate(zip(LENGTHS, SAMPLINGS, strict=False)):
        draw = random.Random(number)
        sampling = SamplingParams(seed=number, max_tokens=tokens + 3 * number, **how)
        prompt = tuple(draw.randrange(4, vocab) for _ in range(length))
        found.append(Request(id=f"r{number}", prompt=prompt, sampling=sampling))
    return found


def arms() -> list[Arm]:
    """Alone, by threes (which fill a recording of four) and all together."""
    found = []
    for kernels in ("cuda", "reference"):
        eager: dict[str, object] = {"kernels": kernels, "graphs": "off"}
        recorded: dict[str, object] = {"kernels": kernels, "graphs": "on"}
        found += [
            Arm(kernels, "eager, together", eager),
            Arm(kernels, "eager, alone", eager, 1),
            Arm(kernels, "recorded, together", recorded),
            Arm(kernels, "recorded, by threes", {**recorded, "overlap": "off"}, 3),
        ]
    return found


def drafted_arms(name: str) -> list[Arm]:
    """Two at a time, so that steps are not wider than what is soon recorded by definitions."""
    plain: dict[str, object] = {"model": str(GOLDEN / name / "checkpoint"), "kernels": "reference"}
    plain["num_slots"] = 2
    guessing = {**plain, "spec": "dspark", "spec_k": 3}
    return [
        Arm(name, "eager, no guesses", {**plain, "graphs": "off"}, 2),
        Arm(name, "eager, guesses", {**guessing, "graphs": "off"}, 2),
        Arm(name, "recorded, guesses", {**guessing, "graphs": "on"}, 2),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument(GO_ON, action="store_true", help="behind the arms that the file has")
    args = parser.parse_args()
    base = Settings(
        model=EMBER_V4,
        device=args.device,
        num_slots=len(LENGTHS),
        max_context=CONTEXT,
        max_step_tokens=256,
        prefix_cache="off",
        step_target=0,
    )
    before = known(args.out, args.go_on)
    found = compare(arms(), base, requests(args.tokens), args.out, before)
    for name, vocab in DRAFTED.items():
        some = requests(args.tokens // 2, vocab)[:4]  # by definitions, which take long
        found = compare(drafted_arms(name), base, some, args.out, found["arms"])
    sys.exit(0 if all(arm["equal"] for arm in found["arms"].values()) else 1)


if __name__ == "__main__":
    main()
