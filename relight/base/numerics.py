"""Which roundings a run makes. One value decides it for every op; see docs/notes/numerics.md."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["prefill", "step"]
"""Given tokens run the prefill family of kernels, made tokens the step family."""

DtypeName = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Numerics:
    """`quantised`: the fake-quantisation that the models were trained with (FP8 activations, FP8
    and FP4 cache rows). `boundary`: dtype of residual streams and of tensors between ops; sums are
    always float32."""

    name: str
    quantised: bool
    boundary: DtypeName


REFERENCE = Numerics("reference", quantised=False, boundary="float32")
"""No quantisation anywhere, every row float32: parity with an exact implementation."""

OFFICIAL = Numerics("official", quantised=True, boundary="float32")
"""Trained grids, float32 streams: the default where bf16 is not native (CPU, SM70, SM75)."""

OFFICIAL_BF16 = Numerics("official-bf16", quantised=True, boundary="bfloat16")
"""Trained grids and the official bf16 boundaries: the default on bf16 hardware."""
