"""Routing on CUDA devices: which kernels there are. Knows no expert, and not whether it is
chosen."""

from relight.kernels.block import plain
from relight.kernels.build import Kernel
from relight.kernels.forms import Form

SOURCE = "route/rows.cu"

WARP = 32
MOST_EXPERTS = 1024
"""A block has a row, and but for a table a thread for each expert."""

V4_SHAPE, V41_SHAPES = (256, 6), ((384, 6), (128, 3))
"""Experts and how many are chosen; V4.1's draft has fewer."""


def threads(experts: int, *, hashed: bool) -> int:
    return WARP if hashed else experts


def kernel(form: Form, experts: int, chosen: int, *, hashed: bool) -> Kernel:
    macros = (
        *plain(form),
        ("EXPERTS", experts),
        ("K", chosen),
        ("HASHED", int(hashed)),
    )
    how = "a table" if hashed else "bias"
    return Kernel(f"route {chosen} of {experts} by {how}", SOURCE, "route", macros)


def kernels(form: Form) -> list[Kernel]:
    v4 = [kernel(form, *V4_SHAPE, hashed=hashed) for hashed in (False, True)]
    return [*v4, *(kernel(form, *shape, hashed=False) for shape in V41_SHAPES)]
