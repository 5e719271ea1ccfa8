"""A hash of the sources that results on an accelerator are about: kernels, cache, model, engine."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("kernels", "cache", "model", "engine")
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")


def sources_hash() -> str:
    """Sixteen hex digits over the names and contents of the rooms' sources, tests left out."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((ROOT / "relight" / room).rglob("*")):
            if path.suffix in SUFFIXES and not path.name.startswith("test_"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
