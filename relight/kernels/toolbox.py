"""Kernels of one device, compiled and loaded when they are first asked for. Knows no op."""

from functools import cached_property

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from relight.kernels.build import Builder, Kernel
from relight.kernels.forms import Form, Walk, form_of
from relight.kernels.launch import Launch, Launcher
from relight.kernels.small import ROUNDED, act_quant, act_round, slot_sum
from relight.kernels.streams import SideStream

MOST_BLOCKS = 2048
"""That round rows: as many as an H200 has room for. With more to do each warp goes on."""


class Toolbox:
    """`side`: what a step may run beside its main work, where the device can. What makes the input
    of products may round it, too, and hand that over: they find it by the tensor, as long as it
    lives. So nobody may write into such a tensor later."""

    def __init__(
        self, builder: Builder, launcher: Launcher, side: SideStream | None = None
    ) -> None:
        self.side = side
        self._builder = builder
        self._launcher = launcher
        self._loaded: dict[Kernel, Launch] = {}
        self._handed = WeakTensorKeyDictionary()

    @cached_property
    def form(self) -> Form:
        return form_of(self._builder.arch)

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Launch:
        """What is loaded once is kept: it has the device's memory, and a recorded graph its
        address."""
        found = self._loaded.get(kernel)
        if found is None:
            cubin = self._builder.build(kernel)
            found = self._launcher.load(
                cubin,
                kernel.entry,
                threads=threads,
                ring_bytes=ring_bytes,
                early=self.form.early,
            )
            self._loaded[kernel] = found
        return found

    def load_walk(self, made: tuple[Kernel, Walk]) -> tuple[Launch, Walk]:
        kernel, walk = made
        return self.load(kernel, walk.threads, walk.ring_bytes), walk

    def hand_over(self, x: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """Codes and scales of x as `quantise` gives them, for the caller to fill in the launch that
        fills x."""
        self._handed[x] = found = _room(x, block)
        return found

    def handed_over(self, x: Tensor, block: int) -> tuple[Tensor, Tensor] | None:
        """What was, if it was."""
        codes, scales = self._handed.get(x, (None, None))
        fits = scales is not None and scales.shape[1] * block == x.shape[1]
        return (codes, scales) if fits else None

    def quantise(self, x: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
        """x [n, K] float32 or bfloat16 -> E4M3 codes [n, K] uint8 and scales [n, K / block] float32
        as `codec.fp8_quantise` makes them; a block that is not finite has the scale NaN. K is a
        multiple of 128, block 128 or 32. What was handed over is not made again."""
        if (known := self.handed_over(x, block)) is not None:
            return known
        x = x.contiguous()
        codes, scales = _room(x, block)
        kernel = act_quant(self.form, x_bf16=x.dtype == torch.bfloat16, block=block)
        self._rounded(kernel, x, codes, scales)
        return codes, scales

    def round(self, x: Tensor, block: int) -> Tensor:
        """The same as values: bfloat16 [n, K], NaN where a block is not finite."""
        x = x.contiguous()
        values = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
        kernel = act_round(self.form, x_bf16=x.dtype == torch.bfloat16, block=block)
        self._rounded(kernel, x, values)
        return values

    def _rounded(self, kernel: Kernel, x: Tensor, *found: Tensor) -> None:
        warps = x.numel() // ROUNDED
        if warps:
            blocks = min(-(-warps // 4), MOST_BLOCKS)
            self.load(kernel, 128)((blocks, 1), x, *found, warps)

    def sum_slots(self, parts: Tensor) -> Tensor:
        """parts [n, slots, N] float32 -> [n, N], slots in ascending order."""
        rows, slots, columns = parts.shape
        out = parts.new_empty((rows, columns))
        if rows == 0:
            return out
        launch = self.load(slot_sum(self.form), 256)
        launch((-(-columns // 256), rows), parts, out, columns, slots)
        return out


def _room(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    return codes, x.new_empty((x.shape[0], x.shape[1] // block), dtype=torch.float32)
