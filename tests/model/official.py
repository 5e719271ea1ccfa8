"""Reads a checkpoint of DeepSeek's layout and de-quantises it exactly. Knows nothing of the loader,
which it is used to check: slow and simple on purpose."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

# Value of each UE8M0 byte; 0 is a subnormal float32.
UE8M0 = torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")])

# Value of each FP4 (e2m1) code; bit 3 is the sign.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M1 = torch.cat([E2M1, -E2M1])


def dequantised(folder: Path, fp8_block: int = 128) -> dict[str, Tensor]:
    """All tensors of the checkpoint by name, without the scales: float32, integers as they are."""
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            stored |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors = {}
    for name, tensor in stored.items():
        scale = stored.get(name.removesuffix("weight") + "scale")
        if name.endswith(".scale"):
            continue
        if tensor.dtype == torch.float8_e4m3fn:
            assert scale is not None, name
            is_table = ".engram.embed." in name  # a scale for 32 values of one row
            tensors[name] = fp8(tensor, scale, 32, 1) if is_table else fp8(tensor, scale, fp8_block)
        elif tensor.dtype == torch.int8:
            assert scale is not None, name
            tensors[name] = fp4(tensor, scale)
        elif tensor.is_floating_point():
            tensors[name] = tensor.float()
        else:
            tensors[name] = tensor
    return tensors


def fp8(codes: Tensor, scale: Tensor, block: int, rows: int | None = None) -> Tensor:
    """e4m3 [out, in] with a UE8M0 factor for each block × block square, or as many `rows` of it;
    edge squares may be cut."""
    grid = ue8m0(scale).repeat_interleave(rows or block, 0).repeat_interleave(block, 1)
    return codes.float() * grid[: codes.shape[0], : codes.shape[1]]


def fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Bytes [out, in / 2], low nibble = even column, a UE8M0 factor per 32 columns of a row."""
    low, high = packed.view(torch.uint8) & 15, packed.view(torch.uint8) >> 4
    values = E2M1[torch.stack([low, high], dim=-1).flatten(-2).long()]
    return values * ue8m0(scale).repeat_interleave(32, 1)


def ue8m0(scale: Tensor) -> Tensor:
    return UE8M0[scale.view(torch.uint8).long()]
