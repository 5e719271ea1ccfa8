"""Which form of the step kernels a device runs, and the macros that say so. Knows no op.

A form is a matrix instruction with what goes around it (`cuda/lanes.cuh`). Its number and the cut
of K decide bits, so both are part of what a device computes; all else here is speed.
"""

import re
from dataclasses import dataclass

from relight.kernels.build import Macros

SHARED_LIMITS = {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227}
"""KiB of shared memory that a block may have, by capability; CUDA C++ Programming Guide, technical
specifications per compute capability."""


@dataclass(frozen=True, slots=True)
class Form:
    capability: int  # as 90
    number: int  # STEP_FORM

    @property
    def bf16(self) -> bool:
        """Whether operands of the matrix unit may be bf16."""
        return self.number == 80

    @property
    def converts_e4m3(self) -> bool:
        return self.capability >= 89

    @property
    def early(self) -> bool:
        """Whether a kernel may begin before the one in front of it has ended."""
        return self.capability >= 90

    @property
    def clusters(self) -> bool:
        """Whether blocks may write into the shared memory of each other."""
        return self.capability >= 90

    @property
    def groups(self) -> bool:
        """Whether four warps may multiply together what lies in shared memory."""
        return self.capability == 90

    @property
    def copies(self) -> bool:
        """Whether memory can be copied into shared memory past the registers."""
        return self.capability >= 80

    @property
    def shared_limit(self) -> int:
        """Bytes a block may have; of an unknown device those of the last known one before it."""
        known = max(one for one in SHARED_LIMITS if one <= max(self.capability, 70))
        return SHARED_LIMITS[known] * 1024


def form_of(arch: str) -> Form:
    """Of sm_NN or compute_NN."""
    found = re.fullmatch(r"(?:sm|compute)_(\d+)", arch)
    assert found is not None, f"{arch!r} is no architecture"
    capability = int(found[1])
    return Form(capability, 80 if capability >= 80 else 75 if capability >= 75 else 70)


UNIT = {4: 128, 8: 128, 16: 64}
"""Values of a row that are asked for at once, by bits of a value: rows are whole units."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How a product is cut (`cuda/walk.cuh`). `slices` decides bits, the rest is speed."""

    format: int  # bits of a weight: 8 E4M3, 16 bf16, 4 E2M1
    inner: int  # K
    slices: int
    row_warps: int = 1
    tiles: int = 1
    ahead: int = 2
    min_blocks: int = 1
    ring: bool = False
    paired: bool = False
    block: int = 128  # of E4M3 scales
    peers: int = 1  # blocks of a cluster, which share the slices of their rows

    @property
    def units(self) -> int:
        """Of a slice."""
        return self.inner // self.slices // UNIT[self.format]

    @property
    def threads(self) -> int:
        return 32 * self.slices * self.row_warps // self.peers

    @property
    def block_rows(self) -> int:
        """Outputs of a block, or of the blocks of a cluster: N is a multiple of it."""
        return 16 * self.tiles * self.row_warps // (2 if self.paired else 1)

    @property
    def ring_bytes(self) -> int:
        """Shared memory that a launch adds: two halves of 8 rows a tile, 16 bytes a lane."""
        chunks = 1 if self.format == 4 else 2
        return self.ahead * self.tiles * 2 * chunks * self.threads * 16 if self.ring else 0

    def macros(self, form: Form, *, token_tiles: int = 1, x_bf16: bool | None = None) -> Macros:
        """`x_bf16` None: tokens are E4M3 with scales; else two bytes each, bf16 or fp16."""
        wide = x_bf16 is not None
        return (
            ("FORMAT", self.format),
            ("K", self.inner),
            ("SLICES", self.slices),
            ("ROW_WARPS", self.row_warps),
            ("TILES", self.tiles),
            ("TOKEN_TILES", token_tiles),
            ("AHEAD", self.ahead),
            ("RING", int(self.ring)),
            ("MIN_BLOCKS", self.min_blocks),
            ("PAIRED", int(self.paired)),
            ("BLOCK", self.block),
            ("PEERS", self.peers),
            ("STEP_FORM", form.number),
            ("PDL", int(form.early)),
            ("X_BYTES", 2 if wide else 1),
            ("X_BF16", int(bool(x_bf16))),
            ("OPERAND", '"bf16"' if x_bf16 else '"f16"'),
            ("CONVERTS_E4M3", int(form.converts_e4m3 and not x_bf16)),
        )
