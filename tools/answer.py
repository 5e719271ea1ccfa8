"""Four layers of V4-Flash of real size, every kind among them, with random weights: answers two
requests at once, with recorded and eager steps and each choice of kernels, and says what it took.

    python -m tools.answer --out FILE --folder DIR [--device cuda]

The folder gets the checkpoint (16 GB) if there is none.
"""

import argparse
import os
import sys
from pathlib import Path

from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.lab.synth import preset, synth
from tools.arms import GO_ON, Arm, compare, known

PROMPTS = {"short": 40, "long": 2200}
"""The longer one is beyond what every entry is attended to: 2,048 tokens."""
NUM_TOKENS = 16


def requests() -> list[Request]:
    return [
        Request(
            id=name,
            prompt=tuple((17 * i + 3) % 100_000 for i in range(length)),
            sampling=SamplingParams(temperature=1.0, seed=7, max_tokens=NUM_TOKENS),
        )
        for name, length in PROMPTS.items()
    ]


ARMS = [
    Arm(kernels, name, {"kernels": kernels, "graphs": graphs})
    for kernels in ("cuda", "reference")
    for name, graphs in (("eager", "off"), ("recorded", "on"))
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(GO_ON, action="store_true", help="behind the arms that the file has")
    args = parser.parse_args()
    if not (args.folder / "config.json").exists():
        synth(preset("v4-flash", 4), args.folder, seed=1, threads=os.cpu_count() or 1)
    base = Settings(
        model=str(args.folder),
        device=args.device,
        max_context=8192,
        num_slots=2,
        max_step_tokens=512,
        cache_bytes=2**30,
        prefix_cache="off",
    )
    found = compare(ARMS, base, requests(), args.out, known(args.out, args.go_on))
    sys.exit(0 if all(arm["equal"] for arm in found["arms"].values()) else 1)


if __name__ == "__main__":
    main()
