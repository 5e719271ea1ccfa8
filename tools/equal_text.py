"""ember-v4 on a device: equal text between recorded and eager steps, batch sizes and overlapping,
with each choice of kernels.

    python -m tools.equal_text --out FILE [--device cuda] [--tokens 16]
"""

import argparse
import random
import sys
from pathlib import Path

from relight.base.packaged import EMBER
from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from tools.arms import Arm, compare

VOCAB = 4096
LENGTHS = (1, 9, 127, 129, 500)
CONTEXT = 1024


def requests(tokens: int) -> list[Request]:
    """Greedy and sampled, over the ends of pages, of different lengths, so that steps have every
    width from all of them down to one."""
    found = []
    for number, length in enumerate(LENGTHS):
        draw = random.Random(number)
        sampling = SamplingParams(
            temperature=float(number % 2), seed=number, max_tokens=tokens + 3 * number
        )
        prompt = tuple(draw.randrange(4, VOCAB) for _ in range(length))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    base = Settings(
        model=EMBER,
        device=args.device,
        num_slots=len(LENGTHS),
        max_context=CONTEXT,
        max_step_tokens=256,
        prefix_cache="off",
        step_target=0,
    )
    found = compare(arms(), base, requests(args.tokens), args.out)
    sys.exit(0 if all(arm["equal"] for arm in found["arms"].values()) else 1)


if __name__ == "__main__":
    main()
