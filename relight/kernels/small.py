"""The small kernels that go between products, of several ops. Knows no op."""

from relight.kernels.build import Kernel, Macros
from relight.kernels.forms import Form

SOURCE = "cuda/small.cu"

ROUNDED = 128
"""Values that a warp rounds."""


def act_quant(form: Form, *, x_bf16: bool, block: int = 128) -> Kernel:
    """Tokens to E4M3 with a scale for each `block` values."""
    return _rounding("act_quant", "act-quant", form, x_bf16, block)


def act_round(form: Form, *, x_bf16: bool, block: int = 128) -> Kernel:
    """The same as bf16 values."""
    return _rounding("act_round", "act-round", form, x_bf16, block)


def _rounding(entry: str, what: str, form: Form, x_bf16: bool, block: int) -> Kernel:
    name = f"{what} {'bf16' if x_bf16 else 'f32'} by {block}"
    return Kernel(name, SOURCE, entry, _macros(form, x_bf16, block))


def slot_sum(form: Form) -> Kernel:
    """The sum over an expert row's slots."""
    return Kernel("slot-sum", SOURCE, "slot_sum", _macros(form))


def stream_read(form: Form) -> Kernel:
    """Reads bytes and nothing else: what times are compared with."""
    return Kernel("stream-read", SOURCE, "stream_read", _macros(form))


def _macros(form: Form, x_bf16: bool = False, block: int = 128) -> Macros:
    return (
        ("STEP_FORM", form.number),
        ("OPERAND", '"f16"'),
        ("PDL", int(form.early)),
        ("X_BF16", int(x_bf16)),
        ("BLOCK", block),
    )
