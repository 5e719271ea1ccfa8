"""A trial of what is handed over to products: their input, rounded where it is made. Knows no
network."""

from collections.abc import Callable

import torch
from torch import Tensor

from relight.kernels.experts.shared import RowShared
from relight.kernels.hyper.rows import RowHyper
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_small import EPS, randoms
from relight.kernels.vectors import RowVectors

WIDTH = 512


def assert_input_comes_rounded(tools: Toolbox, device: torch.device, block: int) -> None:
    """From a norm, the streams and the gate: values with the same bits as without, codes and scales
    with those of the kernel that rounds alone, also of rows that are tiny and not finite."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    x = randoms(9, WIDTH, device=device, dtype=boundary)
    x[0, :256] *= 1e-9
    x[1, 130] = float("nan")
    for number, way in enumerate(_ways(tools, x)):
        plain, made = way(0), way(block)
        assert_bits_equal(made, plain, f"way {number}")
        codes, scales = tools.quantise(made, block)
        assert codes is tools.quantise(made, block)[0], f"way {number} hands nothing over"
        wanted, wanted_scales = tools.quantise(plain, block)
        assert wanted is not tools.quantise(plain, block)[0]
        assert_bits_equal(codes, wanted, f"codes of way {number}")
        assert_bits_equal(scales, wanted_scales, f"scales of way {number}")
        assert tools.quantise(made, 160 - block)[1].shape != scales.shape


def _ways(tools: Toolbox, x: Tensor) -> tuple[Callable[[int], Tensor], ...]:
    hyper, vectors, shared = RowHyper(tools), RowVectors(tools), RowShared(tools)
    shapes = ((24, 4 * WIDTH), (24,), (3,), (len(x), 4), (WIDTH,))
    fn, base, scale, pre, norm = (torch.rand(shape, device=x.device) for shape in shapes)
    streams = x.unsqueeze(1).repeat(1, 4, 1)

    def read(block: int) -> Tensor:
        given = (streams, fn, base, scale, pre, norm)
        return hyper.mix_and_read(*given, iterations=3, eps=EPS, norm_eps=EPS, act_block=block)[2]

    return (
        lambda block: vectors.norm(x, norm, EPS, block),
        read,
        lambda block: shared.swiglu(x, x.flip(0), 10.0, block),
    )
