"""Writes constraints.txt: the versions of all packages in this environment, for tests to repeat."""

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "constraints.txt"
HEAD = """\
# Versions that the tests are run with: every package, direct or not. Written by `make lock`.
"""
CUDA_ONLY = ("nvidia-", "triton", "cuda-")


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    lines = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.splitlines()
    # The build tag (+cpu, +cu130) is a matter of the machine, and so are CUDA's own packages.
    pins = [line.split("+")[0] for line in lines if not line.startswith(CUDA_ONLY)]
    FILE.write_text(HEAD + "\n".join(sorted(pins, key=str.lower)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
