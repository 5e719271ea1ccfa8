"""What is looked at while kernels run lane by lane on a processor: each fault is told, and what is
right is not."""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from relight.kernels.build import Kernel
from tools.emulate import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

START = """
extern "C" __global__ void __launch_bounds__(64) look(const float* x, float* y) {
  __shared__ float s[64];
  const int i = threadIdx.x;
"""
COPIES = """
__shared__ uint4 ring[64];
extern "C" __global__ void __launch_bounds__(64) look(const float* x, float* y) {
  const int i = threadIdx.x;
  waited();
  copy_later(ring + i, x, 16);
  copies_sent_by_lane();
  copies_landed_but(%d);
  y[i] = __uint_as_float(ring[i].x);
}
"""

RIGHT = {
    "shared by a block": "waited(); s[i] = x[i]; __syncthreads(); y[i] = s[63 - i]; }",
    "shared by a warp": "waited(); s[i] = x[i]; __syncwarp(); y[i] = s[i ^ 31]; }",
    "read again": (
        "waited(); s[i] = x[i]; __syncthreads(); y[i] = s[0]; __syncthreads(); s[i] = 1; }"
    ),
    "two write the same": "waited(); s[0] = x[0]; __syncthreads(); y[i] = s[0]; }",
    "words": "waited(); const uint4 v = *(const uint4*)(x + 4 * (i & 7)); y[i] = v.y; }",
    "lists before the one in front ends": "const float v = x[i]; waited(); y[i] = v; }",
}
WRONG = {
    "no barrier": ("waited(); s[i] = x[i]; y[i] = s[63 - i]; }", "of shared memory"),
    "a warp's for a block": (
        "waited(); s[i] = x[i]; __syncwarp(); y[i] = s[63 - i]; }",
        "meanwhile",
    ),
    "read, then written": (
        "waited(); s[i] = x[i]; __syncthreads(); y[i] = s[0]; s[i] = 1; }",
        "meanwhile",
    ),
    "two write": (
        "waited(); s[0] = x[i]; __syncthreads(); y[i] = s[0]; }",
        "do not meet between writing",
    ),
    "nobody wrote": ("waited(); y[i] = s[i]; }", "which nobody wrote"),
    "some miss a barrier": (
        "waited(); if (i < 40) __syncthreads(); y[i] = x[i]; }",
        "wait for others that never come",
    ),
    "other barriers": (
        "waited();\n if (i < 40) {\n __syncthreads();\n } else {\n __syncthreads();\n }\n }",
        "threads meet at line",
    ),
    "half words": ("waited(); const uint4 v = *(const uint4*)(x + i); y[i] = v.y; }", "multiple"),
    "beyond the end": ("waited(); y[i] = x[i + 1]; }", "reads 4 bytes outside"),
    "before the start": ("waited(); y[i - 1] = x[i]; }", "writes 4 bytes outside"),
    "too early": ("y[i] = x[i]; waited(); }", "writes before the kernel in front has ended"),
}


def ran(
    source: str,
    folder: Path,
    *,
    grid: tuple[int, int] = (2, 1),
    threads: int = 64,
    changed: bool = False,
) -> str:
    """What is told of it; `changed`: the kernel in front has written x."""
    kernel = Kernel("look", "", "look", (("PDL", 1),))
    go = library(source, kernel, folder)
    x, y = torch.arange(64.0), torch.zeros(64)
    memory = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in (x, y)]
    addresses = [ctypes.c_void_p(begin) for begin, _ in memory]
    problem, written = go(grid, threads, addresses, memory, memory[:1] if changed else [])
    if not problem:
        assert written == memory[1:]
    return problem


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_let_by(name: str, tmp_path: Path) -> None:
    assert ran(START + RIGHT[name], tmp_path) == ""


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_told(name: str, tmp_path: Path) -> None:
    source, words = WRONG[name]
    assert words in ran(START + source, tmp_path)


def test_what_the_kernel_in_front_writes_is_not_read_early(tmp_path: Path) -> None:
    early = START + RIGHT["lists before the one in front ends"]
    assert "reads what the kernel in front writes" in ran(early, tmp_path, changed=True)


def test_a_copy_is_not_read_before_it_has_landed(tmp_path: Path) -> None:
    assert ran(COPIES % 0, tmp_path) == ""
    (tmp_path / "late").mkdir()
    assert "which nobody wrote" in ran(COPIES % 1, tmp_path / "late")


def test_more_threads_than_launch_bounds_are_told(tmp_path: Path) -> None:
    source = START + "waited(); y[i % 64] = x[i % 64]; }"
    assert "more threads than its launch bounds" in ran(source, tmp_path, threads=96)


@pytest.mark.parametrize("grid", [(0, 1), (1, 0), (1, 65_536)])
def test_a_grid_that_no_device_has_is_told(tmp_path: Path, grid: tuple[int, int]) -> None:
    assert "no such grid" in ran(START + "waited(); y[i] = x[i]; }", tmp_path, grid=grid)
