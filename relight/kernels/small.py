"""The small kernels that go between products, of several ops. Knows no op."""

from relight.kernels.build import Kernel, Macros
from relight.kernels.forms import Form

SOURCE = "cuda/small.cu"

QUANT_BLOCK = 128
"""Values that share a scale."""


def act_quant(form: Form, *, x_bf16: bool) -> Kernel:
    """Tokens to E4M3 with a scale for each 128 values."""
    name = f"act-quant {'bf16' if x_bf16 else 'f32'}"
    return Kernel(name, SOURCE, "act_quant", _macros(form, x_bf16))


def slot_sum(form: Form) -> Kernel:
    """The sum over an expert row's slots."""
    return Kernel("slot-sum", SOURCE, "slot_sum", _macros(form))


def stream_read(form: Form) -> Kernel:
    """Reads bytes and nothing else: what times are compared with."""
    return Kernel("stream-read", SOURCE, "stream_read", _macros(form))


def _macros(form: Form, x_bf16: bool = False) -> Macros:
    return (
        ("STEP_FORM", form.number),
        ("OPERAND", '"f16"'),
        ("PDL", int(form.early)),
        ("X_BF16", int(x_bf16)),
    )
