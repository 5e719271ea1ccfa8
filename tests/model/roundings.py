"""How far what we compute may be from what the official code computes with bf16 in places where we
have float32. Knows no layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.codec import e2m1_round, e4m3_round


@dataclass
class Listed:
    """The entries that rows selected, and how far the official bf16 scores may be off."""

    entries: Tensor  # [rows, 16], -1 behind
    noise: Tensor  # [rows, entries]


def step_of(x: Tensor) -> Tensor:
    """The distance between bf16 values around x."""
    exponent = torch.frexp(x.float().abs().clamp(min=1e-30))[1]
    return torch.ldexp(torch.ones_like(x, dtype=torch.float32), exponent - 8)


def check_codes(
    name: str, got: Tensor, want: Tensor, raw: Tensor, block: int, *, fp4: bool = False
) -> int:
    """Rows on the FP8 or FP4 grid: equal, but where `raw`, the values before rounding, lie within
    one bf16 step of a tie or of a change of scale. Returns the number of differences."""
    got, want, raw = got.float(), want.float(), raw.float()
    reach = step_of(raw) * 1.01  # a tie that is one whole step away counts as within it
    low, high = raw - reach, raw + reach
    grid, limit, floor = (e2m1_round, 6.0, 6 * 2.0**-126) if fp4 else (e4m3_round, 448.0, 1e-4)
    ok = got == want
    blocks = raw.unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True)
    for near in (amax - step_of(amax), amax, amax + step_of(amax)):
        scale = torch.exp2(torch.ceil(torch.log2(near.clamp(min=floor) / limit)))
        scale = scale.expand_as(blocks).reshape(raw.shape)
        ok |= (grid(low / scale) * scale <= want) & (want <= grid(high / scale) * scale)
    count = int((got != want).sum())
    print(f"{name}: {count} of {got.numel()} codes differ")
    assert ok.all(), f"{name}: {int((~ok).sum())} codes are wrong by more than a tie"
    return count


def check_streams(
    name: str, got: Tensor, want: Tensor, ours: Tensor, theirs: Tensor, margin: Tensor | None
) -> Tensor:
    """Streams of rows that are routed alike; the others must have had next to no margin. Returns
    each row's largest difference."""
    alike = (ours == theirs).all(1)
    other = (~alike).nonzero().flatten().tolist()
    assert len(other) <= 2, f"{name}: {len(other)} rows are routed differently"
    assert all(margin is not None and margin[row] < 2e-3 for row in other)
    worst = (got - want.float()).abs().flatten(1).amax(1)[alike]
    print(f"{name}: streams differ by at most {worst.max():.3f}, median {worst.median():.4f}")
    assert worst.max() <= 0.45
    return worst
