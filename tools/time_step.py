"""The step benchmark of `relight step`, for where the command's packages are not installed.

python -m tools.time_step --out FILE [--device cuda] [--kernels cuda] [--rows 1,6,8,16] [--small]
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from relight.engine.assemble import choose_device
from relight.lab.step import measure
from relight.lab.step_bench import SMALL, Found, Wanted

CHUNK = 8192
USUAL = Wanted(widths=(1, 6, 8, 16), contexts=(8192, 1024, 131072), layers=16)
"""What fits in a call of minutes: layers take much memory. Those of a kind share the start of their
recording: eight have a microsecond each that a model of 43 has not."""


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--rows", type=numbers, help="1,6,8,16")
    parser.add_argument("--context", type=numbers, help="8192,1024,131072; the first for all ops")
    parser.add_argument(
        "--chunk", type=numbers, help="8192 with all kernels, else none: a definition takes long"
    )
    parser.add_argument("--layers", type=int, help="16, if they fit")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    usual = SMALL if args.small else USUAL
    contexts = args.context or usual.contexts
    by_kernels = (CHUNK,) if args.kernels == "cuda" else ()
    chunks = usual.chunks if args.small else by_kernels
    wanted = replace(
        usual,
        widths=args.rows or usual.widths,
        contexts=contexts,
        context=contexts[0] if args.context else usual.context,
        chunks=chunks if args.chunk is None else args.chunk,
        layers=args.layers or usual.layers,
        kernels=args.kernels,
        seconds=args.seconds,
    )

    def tell(found: Found) -> None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")

    command = shlex.join(["python", "-m", "tools.time_step", *sys.argv[1:]])
    found = measure(wanted, choose_device(args.device), tell, command)
    for name, model in found["models"].items():
        for line in (*model["prefill"], *model["layers"], *model["ops"]):
            what = line.get("layer") or line["op"]
            what += ", same experts" if "experts" in line else ""
            print(f"{name} {what}: {line['rows']} rows at {line['context']}: {line['us']} us, "
                  f"{line['share_of_stream']:.0%} of the stream")  # fmt: skip
        for line in model["transformers"]:
            print(f"{name} beside transformers' layer: {line}")


if __name__ == "__main__":
    main()
