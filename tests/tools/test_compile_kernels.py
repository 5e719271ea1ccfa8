"""Every kernel compiles for every device with both NVRTC versions, and uses what it may."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relight.kernels.catalogue import ARCHITECTURES, kernels

ROOT = Path(__file__).parents[2]
NO_LIBRARY = 3  # tools/compile_kernels.py

VERSIONS = ("12.6", "12.9")

SPILLS = {
    "attend scores 64x512 fp8-all+fp4-fine bf16": 8,
    "attend values by 64 64x512 fp8+fp8 bf16": 8,
    "attend values by 128 64x512 fp8+fp8 bf16": 164,
    "attend values by 128 64x512 fp8-all+fp4-fine bf16": 8,
    "experts fp4 gate-up K=4096 to bf16": 212,
    "experts fp4 down K=2048 to bf16": 136,
    "experts fp4 down of few rows K=2048 to bf16": 8,
    "experts fp4 by 32 gate-up K=5120 to bf16": 208,
    "experts fp4 by 32 down K=2304 to bf16": 208,
    "experts fp4 by 32 given gate-up to bf16": 64,
    "experts fp4 by 32 given down to bf16": 32,
    "linear fp8 K=1024 rows<=16 to bf16": 32,
    "linear fp8 K=8192 rows<=16 to bf16": 32,
    "linear fp8 rounding K=8192 rows<=8 to bf16": 8,
    "linear fp8 rounding by 32 K=8192 rows<=8 to bf16": 8,
    "linear fp8 by 32 K=1280 rows<=16 to bf16": 60,
    "linear fp8 by 32 K=6144 rows<=8 to bf16": 24,
    "linear fp8 by 32 K=6144 rows<=16 to bf16": 112,
    "linear fp8 by 32 K=8192 rows<=16 to bf16": 216,
    "linear fp8 by 32 K=15360 rows<=16 to bf16": 232,
}
"""Bytes that a thread may spill from SM80 on, where 128 registers are held for the sake of two
blocks, or 168 for that of three or of 11 warps, and a few bytes go through the cache, or what a
tile of experts needs before or behind its loop waits outside of it. No other kernel spills, and on
older devices none."""


def compiled(*arguments: str) -> list[dict]:
    """In a process of its own, since one process loads one NVRTC."""
    command = [sys.executable, "-m", "tools.compile_kernels", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == NO_LIBRARY:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_kernel_compiles_and_spills_no_more_than_it_may(version: str, arch: str) -> None:
    """A test for each device and version, half a minute of a core, so that cores share them."""
    lines = {line["name"]: line for line in compiled(version, "--arch", arch)}
    assert set(lines) == {kernel.name for kernel in kernels(arch)}
    for name, line in lines.items():
        allowed = SPILLS.get(name, 0) if arch >= "sm_80" else 0
        assert line["spill_bytes"] <= allowed, line
        assert 0 < line["registers"] <= 255, line
        assert line["shared_bytes"] <= 48 * 1024, line


@pytest.mark.slow
def test_nvrtc_of_cuda_13_compiles_each_entry_point() -> None:
    """torch brings it; of Volta it knows nothing."""
    lines = compiled("13.0", "--arch", "sm_90", "--few")
    assert len(lines) == len({kernel.entry for kernel in kernels("sm_90")})
    assert all(line["registers"] > 0 for line in lines)
