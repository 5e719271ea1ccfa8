"""How products of given rows are cut (`cuda/tile.cuh`), and the macros that say so. Knows no op.

Nothing here decides bits: tiles of any size sum in one order.
"""

from dataclasses import dataclass

from relight.kernels.build import Macros
from relight.kernels.forms import UNIT, Form

MOST_STAGES = 4
GROUP_BYTES = 1024
"""What stages are aligned to where warp groups read them."""


@dataclass(frozen=True, slots=True)
class Tile:
    format: int  # bits of a weight: 8 E4M3, 16 bf16
    x_bytes: int  # of a token's value: 1 E4M3 with scales, 2 bf16
    block: int  # of E4M3 scales: 128 or 32
    row_warps: int
    token_warps: int
    tiles: int  # of 16 rows, a warp
    token_tiles: int  # of 8 tokens, a warp
    min_blocks: int = 1
    most_stages: int = MOST_STAGES
    turn: int = 1  # units between two barriers
    groups: bool = False  # four warps multiply together (`cuda/groups.cuh`): SM90's own code

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.token_warps

    @property
    def rows(self) -> int:
        """Of weights."""
        return 16 * self.tiles * self.row_warps

    @property
    def tokens(self) -> int:
        return 8 * self.token_tiles * self.token_warps

    @property
    def stage_bytes(self) -> int:
        """Of shared memory for one unit: both sides and the scales of tokens."""
        unit = UNIT[self.format]
        token = unit * self.x_bytes + (4 * unit // self.block if self.x_bytes == 1 else 0)
        found = self.rows * (unit * self.format // 8) + self.tokens * token
        return -(-found // GROUP_BYTES) * GROUP_BYTES if self.groups else found

    def stages(self, form: Form) -> int:
        """Units in shared memory: before SM80 one that is read and one that is written."""
        if not form.copies:
            return 2
        room = form.shared_limit // self.min_blocks - self._spare_bytes
        return min(self.most_stages, room // self.stage_bytes)

    @property
    def _spare_bytes(self) -> int:
        """To begin at a multiple, and what the device takes for itself of each block."""
        return 2 * GROUP_BYTES if self.groups else 0

    def shared_bytes(self, form: Form, result_bytes: int) -> int:
        """Of a block, which in the end gathers results of so many bytes each, rows 16 bytes
        apart."""
        gathered = self.tokens * (self.rows * result_bytes + 16)
        return max(self.stages(form) * self.stage_bytes + GROUP_BYTES * self.groups, gathered)

    def macros(self, form: Form) -> Macros:
        wide = self.x_bytes == 2
        stages = self.stages(form)
        assert stages >= 2, f"{self.stage_bytes} bytes a stage on sm_{form.capability}"
        return (
            ("FORMAT", self.format),
            ("BLOCK", self.block),
            ("ROW_WARPS", self.row_warps),
            ("TOKEN_WARPS", self.token_warps),
            ("TILES", self.tiles),
            ("TOKEN_TILES", self.token_tiles),
            ("STAGES", stages),
            ("TURN", self.turn),
            ("COPIES", int(form.copies)),
            ("MIN_BLOCKS", self.min_blocks),
            ("WARP_GROUPS", int(self.groups)),
            ("STEP_FORM", form.number),
            ("PDL", int(form.early)),
            ("X_BYTES", self.x_bytes),
            ("X_BF16", int(wide and form.bf16)),
            ("OPERAND", '"bf16"' if wide and form.bf16 else '"f16"'),
            ("CONVERTS_E4M3", int(form.converts_e4m3 and not wide)),
        )


ROOM_FOR_TWO = 200 * 1024
"""Of shared memory: two blocks of four stages."""


def wide_tiles(
    form: Form, format: int, x_bytes: int, block: int, *, groups: bool = False
) -> tuple[Tile, ...]:
    """For many rows, the widest first. From SM80 on a warp has 32 x 64: its sums, of a unit and of
    all, are 128 registers. Where there is room two blocks of 128 x 64 share a processor, of which
    one multiplies while the other waits: 10 % faster on an H200 than one of 128 x 128. Before SM80,
    units in flight are in registers, too: 128 x 64. Of warp groups each warp has 16 x 128 or, where
    one sum goes through all of K, twice that; with codes, which nobody decodes, three blocks of 64
    x 128 hide each other's beginning and end."""
    if groups and (format, x_bytes) == (8, 1):
        return (Tile(format, x_bytes, block, 4, 1, 1, 16, min_blocks=3, groups=True),)
    if groups:
        tiles = (2, 1) if format == 8 else (1,)
        made = (
            Tile(format, x_bytes, block, 8, 1, n, 16, most_stages=6, groups=True) for n in tiles
        )
        return tuple(made)
    if form.shared_limit >= ROOM_FOR_TWO:
        return (Tile(format, x_bytes, block, 4, 1, tiles=2, token_tiles=8, min_blocks=2),)
    token_tiles = 8 if form.copies else 4
    return (Tile(format, x_bytes, block, 4, 2, tiles=2, token_tiles=token_tiles),)


def narrow_tile(format: int, x_bytes: int, block: int, *, groups: bool = False) -> Tile:
    """64 x 32, for few rows or outputs: eight times the blocks, of which several share a
    processor."""
    if groups:
        return Tile(format, x_bytes, block, 4, 1, 1, 4, 2, most_stages=8, groups=True)
    return Tile(format, x_bytes, block, 2, 2, tiles=2, token_tiles=2, min_blocks=2)
