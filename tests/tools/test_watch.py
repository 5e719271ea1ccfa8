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

PEERS = """
struct alignas(8) Told { float v[2][128]; };
extern "C" __global__ void __launch_bounds__(64) look(const float* x, float* y) {
  __shared__ Told s;
  const int i = threadIdx.x, rank = blockIdx.x & 1;
  if (i == 0) want_told(1024);
  waited();
  meet_cluster(1);
  for (int peer = 0; peer < %d; peer++) tell_block(&s.v[rank][2 * i], peer, x[i], x[i]);
  %s
  y[i] = s.v[1 - rank][2 * i];
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
    peers: int = 0,
) -> str:
    """What is told of it; `changed`: the kernel in front has written x; `peers`: blocks that are a
    cluster, if any are."""
    kernel = Kernel("look", "", "look", (("PDL", 1), *((("PEERS", peers),) if peers else ())))
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


@pytest.mark.parametrize(
    ("told", "wait", "words"),
    [
        (2, "hear_all(2);", ""),
        (2, "", "of shared memory"),
        (1, "hear_all(2);", "waits for 1024 bytes and is told"),
    ],
)
def test_blocks_wait_for_what_others_tell_them(
    told: int, wait: str, words: str, tmp_path: Path
) -> None:
    found = ran(PEERS % (told, wait), tmp_path, grid=(4, 2), peers=2)
    assert words in found if words else not found
    assert "no such grid" in ran(PEERS % (told, wait), tmp_path, grid=(3, 1), peers=2)


def test_more_threads_than_launch_bounds_are_told(tmp_path: Path) -> None:
    source = START + "waited(); y[i % 64] = x[i % 64]; }"
    assert "more threads than its launch bounds" in ran(source, tmp_path, threads=96)


@pytest.mark.parametrize("grid", [(0, 1), (1, 0), (1, 65_536)])
def test_a_grid_that_no_device_has_is_told(tmp_path: Path, grid: tuple[int, int]) -> None:
    assert "no such grid" in ran(START + "waited(); y[i] = x[i]; }", tmp_path, grid=grid)
