"""Storage formats as data: what a row of a cache or of a weight costs in bytes. Knows no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How one cached row of `dim` values is stored: a data part and a group of scales.

    All data parts of a page come first, then all scale groups; no row is padded.
    """

    name: str
    dim: int
    data_bytes: int
    scale_bytes: int

    @property
    def bytes(self) -> int:
        return self.data_bytes + self.scale_bytes


FP8_SCALE_GROUP = 64
"""Values per UE8M0 scale of a V4 KV row (model.py of V4: act_quant with block 64)."""

FP4_SCALE_GROUP = 32
"""Values per UE8M0 scale of an FP4 index key."""


FINE_FP4_GROUP = 16
"""Values per E4M3 scale of a V4.1 compressed row."""

SMALL_FP8_GROUP = 32
"""Values per UE8M0 scale of a V4.1 window row."""


def kv_row(dim: int, rope_dim: int) -> RowFormat:
    """A V4 window or compressed row: FP8 in groups of 64 for the dims before the rotary ones, bf16
    for those, one UE8M0 byte a group and one byte of padding: 448 + 128 + 8 = 584 for 512 dims."""
    nope = dim - rope_dim
    assert nope % FP8_SCALE_GROUP == 0
    groups = nope // FP8_SCALE_GROUP
    return RowFormat("fp8", dim, nope + 2 * rope_dim, groups + groups % 2)


def window_row_v41(dim: int) -> RowFormat:
    """A V4.1 window row: all dims FP8 in groups of 32: 512 + 16 = 528 for 512 dims."""
    return RowFormat("fp8-all", dim, dim, dim // SMALL_FP8_GROUP)


def compressed_row_v41(dim: int) -> RowFormat:
    """A V4.1 compressed row: all dims FP4 in groups of 16, an E4M3 scale each: 256 + 32 = 288 for
    512 dims."""
    return RowFormat("fp4-fine", dim, dim // 2, dim // FINE_FP4_GROUP)


def token_row() -> RowFormat:
    """A token id, as int64."""
    return RowFormat("token", 1, 8, 0)


def index_row(dim: int) -> RowFormat:
    """An index key: FP4 in groups of 32, one UE8M0 byte a group: 64 + 4 = 68 for 128 dims."""
    return RowFormat("fp4", dim, dim // 2, dim // FP4_SCALE_GROUP)


def float_row(dim: int) -> RowFormat:
    """A row of float32, the form that every row has in reference numerics."""
    return RowFormat("float32", dim, 4 * dim, 0)


def fp8_index_row(dim: int) -> RowFormat:
    """An index key in FP8 with one float32 scale: 132 for 128 dims. A figure of other engines that
    we do not store: the model was trained with FP4 keys."""
    return RowFormat("fp8-scaled", dim, dim, 4)
