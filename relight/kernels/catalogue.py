"""All kernels that there are to build for a device. Knows no argument of any."""

from relight.kernels import vectors
from relight.kernels.attend import cuda as attend
from relight.kernels.build import Kernel
from relight.kernels.compress import cuda as compress
from relight.kernels.engram import cuda as engram
from relight.kernels.experts import cuda as experts
from relight.kernels.experts import given as experts_given
from relight.kernels.experts import groups as experts_groups
from relight.kernels.experts import shared
from relight.kernels.forms import Form, form_of
from relight.kernels.hyper import cuda as hyper
from relight.kernels.index import cuda as index
from relight.kernels.linear import cuda as linear
from relight.kernels.linear import given as linear_given
from relight.kernels.route import cuda as route
from relight.kernels.sample import cuda as sample
from relight.kernels.small import act_quant, act_round, slot_sum, stream_read
from relight.kernels.store import cuda as store

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
"""What every kernel is compiled for in tests."""


def kernels(arch: str) -> list[Kernel]:
    """Of sm_NN or compute_NN, the shapes of V4-Flash and V4.1-Flash."""
    form = form_of(arch)
    routed = (experts, experts_given, experts_groups, shared)
    products = (linear, linear_given, *routed, attend, index)
    between = (hyper, vectors, store, compress, route, sample, engram)
    found = (kernel for op in (*products, *between) for kernel in op.kernels(form))
    return [*found, *_small(form)]


def _small(form: Form) -> list[Kernel]:
    dtypes = (False, True) if form.bf16 else (False,)
    rounding = [act_quant(form, x_bf16=one, block=size) for one in dtypes for size in linear.BLOCKS]
    if form.bf16:
        blocks = (32,) if form.converts_e4m3 else linear.BLOCKS
        rounding += [act_round(form, x_bf16=one, block=size) for one in dtypes for size in blocks]
    return [*rounding, slot_sum(form), stream_read(form)]
