"""Helpers of the ops' tests: devices, comparisons of bits, and the row invariance that every op
promises. Knows no op."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from relight.base.numerics import Family

FAMILIES: tuple[Family, Family] = ("prefill", "step")

THREADS = (1, 2, 3)

STEP_WIDTHS = tuple(range(1, 17))

CUTS = (1, 17, 64, 128)
"""Rows of a call of the prefill family."""

Result = Tensor | tuple[Tensor, ...]
Op = Callable[..., Result]


def devices() -> list[Any]:
    """Parameters of the `device` fixture: the CPU, and the accelerator where there is one."""
    import pytest

    found: list[Any] = ["cpu"]
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        found.append(pytest.param(accelerator.type, marks=pytest.mark.gpu))
    return found


def num_draws(device: str) -> int:
    """For the distribution of draws. By definition four rows are drawn at a time: of an accelerator
    those of a processor would be 5,000 times all launches."""
    return 20_000 if device == "cpu" else 4_000


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch's CPU threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tells_waits(device: str) -> bool:
    """Whether torch can tell of each call that waits for the device."""
    return torch.device(device).type == "cuda"


@contextmanager
def waits(*, allowed: bool) -> Iterator[None]:
    """Whether the host may wait for a CUDA device inside the block; else a call that does raises.
    Events may be waited for."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        _watch_waits("default" if allowed else "error")
        yield
    finally:
        _watch_waits(before)


def _watch_waits(mode: int | str) -> None:
    """torch says once a process that it does not find every wait, and has set the mode by then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def bits(x: Tensor) -> Tensor:
    """The bits of x as integers; all NaNs are one."""
    if x.is_floating_point():
        x = x.masked_fill(x.isnan(), float("nan")).contiguous()
        x = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return x


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def assert_bits_equal(found: Result, wanted: Result, what: str = "results") -> None:
    """Fails with the number of differing elements and the first one."""
    if isinstance(found, tuple):
        assert isinstance(wanted, tuple)
        for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert_bits_equal(a, b, f"{what}[{index}]")
        return
    assert isinstance(wanted, Tensor)
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype}, not {wanted.dtype}"
    differs = bits(found) != bits(wanted)
    if differs.any():
        at = tuple(differs.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.numel()} differ, first {at}: "
            f"{found[at].item()!r}, not {wanted[at].item()!r}"
        )


def bf16_steps(found: Tensor, wanted: Tensor, scale: Tensor | None = None) -> float:
    """The largest difference in bf16 steps of the larger value, or of `scale` where given."""
    a, b = found.float().cpu(), wanted.float().cpu()
    size = torch.maximum(a.abs(), b.abs()) if scale is None else scale.float().cpu()
    step = torch.exp2(size.clamp(min=2.0**-100).log2().floor() - 7)
    return float(((a - b).abs() / step).max())


def assert_rows_invariant(op: Op, inputs: Mapping[str, Tensor], family: Family) -> None:
    """`op(**inputs)` maps rows to rows. Its rows must have the same bits in any order, in any
    company, cut into calls in any way, beside rows of NaN and with any number of threads."""
    count = next(iter(inputs.values())).shape[0]
    whole = op(**inputs)
    for rows in _row_choices(count, family):
        found = op(**{name: x[rows.to(x.device)] for name, x in inputs.items()})
        assert_bits_equal(found, _pick(whole, rows), f"rows {rows.tolist()[:8]}… of {len(rows)}")
    for number in THREADS:
        with threads(number):
            assert_bits_equal(op(**inputs), whole, f"{number} threads")
    sick = torch.arange(count) % 3 == 1
    found = op(**{name: _poisoned(x, sick) for name, x in inputs.items()})
    healthy = torch.where(~sick)[0]
    assert_bits_equal(_pick(found, healthy), _pick(whole, healthy), "beside rows of NaN")


def _pick(result: Result, rows: Tensor) -> Result:
    if isinstance(result, tuple):
        return tuple(part[rows.to(part.device)] for part in result)
    return result[rows.to(result.device)]


def _poisoned(x: Tensor, sick: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    x = x.clone()
    x[sick.to(x.device)] = float("nan")
    return x


def _row_choices(count: int, family: Family) -> Iterator[Tensor]:
    """Index lists of calls: no row, all rows in another order, repeated rows, and of every width
    the first, a middle and the last call."""
    yield torch.arange(0)
    yield torch.randperm(count)
    yield torch.randint(count, (min(count, 40),))
    widths = STEP_WIDTHS if family == "step" else CUTS
    for width in widths:
        chunks = torch.arange(count).split(width)
        for at in sorted({0, len(chunks) // 2, len(chunks) - 1}):
            yield chunks[at]
