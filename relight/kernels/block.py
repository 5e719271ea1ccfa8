"""How threads of a device hold one vector (`cuda/row.cuh`), and the macros that say so. Knows no
op."""

from dataclasses import dataclass

import torch
from torch import Tensor

from relight.kernels.build import Macros
from relight.kernels.forms import Form
from relight.kernels.launch import Long
from relight.kernels.rows import Rows

MOST_THREADS = 256


def plain(form: Form) -> Macros:
    """Of kernels without a matrix unit."""
    return (("STEP_FORM", form.number), ("OPERAND", '"f16"'), ("PDL", int(form.early)))


@dataclass(frozen=True, slots=True)
class Block:
    """A vector of `width` values in pairs: a multiple of twice `threads`, a power of two."""

    width: int
    threads: int

    def macros(self, form: Form, x: torch.dtype, y: torch.dtype) -> Macros:
        """For what comes in as x and goes out as y, float32 or bfloat16."""
        return (
            *plain(form),
            ("WIDTH", self.width),
            ("THREADS", self.threads),
            ("IN_BF16", int(x == torch.bfloat16)),
            ("OUT_BF16", int(y == torch.bfloat16)),
        )


def block_of(width: int, most: int = MOST_THREADS) -> Block | None:
    """The most threads that share a vector evenly; None where 32 do not."""
    threads = most
    while threads >= 32:
        if width and width % (2 * threads) == 0:
            return Block(width, threads)
        threads //= 2
    return None


def rounds(width: int, threads: int) -> bool:
    """Whether so many threads can round rows of `width` for products, too (`cuda/round.cuh`)."""
    return width % 128 == 0 and threads % 64 == 0


def rounded_by(act_block: int) -> str:
    """In the name of a kernel that does."""
    return f" and rounded by {act_block}" if act_block else ""


def in_place(*tensors: Tensor) -> bool:
    """Whether kernels may read these as they lie: in one piece, from a multiple of 16 bytes on."""
    return all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in tensors)


def short(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "f32"


def in_words(rows: Rows) -> bool:
    """Whether the bytes of each row begin at a multiple of four."""
    data = rows.data
    return all(at % 4 == 0 for at in (data.data_ptr(), *data.stride()[:2]))


def strides(rows: Rows) -> tuple[Tensor, Tensor, Long, Long, int, int, int]:
    """Where rows lie, as `Store` of the source has it: bytes from one to the next."""
    data, scale = rows.data, rows.scale
    assert data.stride(2) == 1, "the bytes of a row lie apart"
    return (
        data,
        scale,
        Long(data.stride(0)),
        Long(scale.stride(0)),
        data.shape[1],
        data.stride(1),
        scale.stride(1),
    )
