"""Compressors on CUDA devices: which kernels there are. Knows no layer, and not whether it is
chosen."""

import torch

from relight.base.formats import RowFormat, index_row, kv_row
from relight.kernels.block import Block, plain, short
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE, RAW_SOURCE = "compress/rows.cu", "compress/raw.cu"

ROPE = 64
OVERLAP_RATIO = 4
RATIOS = (2, 4, 128)
THREADS = {512: 256, 128: 32}
"""Of a block that pools entries of so many values: values that share a scale are a warp's or half
of one's."""

HADAMARD_WIDTH = 128

VALUES = "values"
END = {VALUES: 0, "fp8": 2, "fp4": 3}
"""Of the source, by the format of entries; values come out as they are, not rotated."""

RAW_THREADS = 256


def pool_threads(dim: int, ratio: int) -> int:
    return THREADS[dim] * _split(dim, ratio)


def _split(dim: int, ratio: int) -> int:
    """How many threads pool a pair of channels: two of many members, where they have one pair."""
    return 2 if ratio == max(RATIOS) and dim == 2 * THREADS[dim] else 1


def put_raw(form: Form, channels: int, ratio: int) -> Kernel:
    macros = (
        *plain(form),
        ("CHANNELS", channels),
        ("RATIO", ratio),
    )
    return Kernel(f"compress raw {channels} by {ratio}", RAW_SOURCE, "put_raw", macros)


def pool(form: Form, stored: RowFormat, ratio: int, boundary: torch.dtype) -> Kernel:
    return _pool(form, stored.name, stored.dim, ratio, boundary)


def latents(form: Form, dim: int, ratio: int, boundary: torch.dtype) -> Kernel:
    return _pool(form, VALUES, dim, ratio, boundary)


def _pool(form: Form, end: str, dim: int, ratio: int, boundary: torch.dtype) -> Kernel:
    overlap = ratio == OVERLAP_RATIO
    macros = (
        *Block(dim, THREADS[dim]).macros(form, torch.float32, boundary),
        ("MEMBERS", 2 * ratio if overlap else ratio),
        ("OVERLAP", int(overlap)),
        ("SPLIT", _split(dim, ratio)),
        ("ROPE", ROPE),
        ("END", END[end]),
    )
    name = f"compress pool {ratio} to {end} of {dim} {short(boundary)}"
    return Kernel(name, SOURCE, "pool", macros)


def kernels(form: Form) -> list[Kernel]:
    """Those of V4-Flash's compressors and of V4.1-Flash's."""
    boundary = torch.bfloat16 if form.bf16 else torch.float32
    kv, keys = kv_row(512, ROPE), index_row(HADAMARD_WIDTH)
    shapes = ((kv, 4), (kv, 128), (keys, 4))
    return [
        *(put_raw(form, *shape) for shape in ((1024, 4), (512, 128), (256, 4), (512, 2))),
        *(pool(form, *shape, boundary) for shape in shapes),
        latents(form, 512, 2, boundary),
    ]
