"""Decides by hash which instances are for training and which for measuring. Knows no task."""

import zlib
from typing import Literal

Split = Literal["train", "held-out"]

HELD_OUT_OF = 8
"""One instance in so many is held out."""


def split_of(kind: str, text: str) -> Split:
    """The side of an instance. `kind` keeps the splits of different tasks independent."""
    held_out = zlib.crc32(f"{kind}\n{text}".encode()) % HELD_OUT_OF == 0
    return "held-out" if held_out else "train"
