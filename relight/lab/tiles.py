"""FP8 matrices with a scale a tile. Knows no checkpoint and no name."""

from torch import Tensor

from relight.kernels.codec import E4M3_MAX, e4m3_decode, e8m0_decode, fp8_quantise

LEAST_BLOCK_MAX = E4M3_MAX * 2.0**-126
"""Below this the scale would not be a normal float32."""


def fp8_tiles(values: Tensor, tile: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """float32 [N, K] -> E4M3 codes [N, K] and a UE8M0 scale for each tile of rows × columns."""
    rows, columns = values.shape
    high, wide = tile
    down, across = -(-rows // high), -(-columns // wide)
    padded = values.new_zeros(down * high, across * wide)
    padded[:rows, :columns] = values
    tiles = padded.view(down, high, across, wide).transpose(1, 2)
    codes, scales = fp8_quantise(
        tiles.reshape(down, across, high * wide), high * wide, floor=LEAST_BLOCK_MAX
    )
    grid = codes.view(down, across, high, wide).transpose(1, 2).reshape(padded.shape)
    return grid[:rows, :columns].contiguous(), scales.view(down, across)


def fp8_untile(data: Tensor, scale: Tensor, tile: tuple[int, int]) -> Tensor:
    """The float32 values of what `fp8_tiles` made."""
    rows, columns = data.shape
    grid = e8m0_decode(scale).repeat_interleave(tile[1], 1)[:, :columns]
    return e4m3_decode(data).mul_(grid.repeat_interleave(tile[0], 0)[:rows])
