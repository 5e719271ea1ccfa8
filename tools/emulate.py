"""Runs the CUDA kernels on a processor, lane by lane. For tests without a device.

g++ compiles them: each instruction that is written in PTX is replaced by a function of emulate.h
that does the same; all else of a source is compiled as it stands. Left out are the copies of step
products into shared memory, and programmatic launches.
"""

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from relight.kernels.build import Kernel, Sources
from relight.kernels.cubins import Cubin
from relight.kernels.launch import Grid, Launch, Long
from relight.kernels.ptxas import Usage
from relight.kernels.toolbox import Toolbox

HERE = Path(__file__).parent

NOT_EMULATED = {"RING": 0, "PDL": 0}

INSTRUCTIONS = (
    (r'asm volatile\("ld\.global\.nc[^\n]*\n[^\n]*\n[^\n]*\);', "v[j] = p[i + j * step];"),
    (r'asm volatile\("ld\.global"[^;]*;"[^;]*;', "v = *(const uint4*)p;"),
    (r'asm\("mma\.sync\.aligned\.m8n8k4.*?"r"\(b1\)\);', "m8n8k4(d, a0, a1, b0, b1);"),
    (r'asm\("mma\.sync\.aligned\.m16n8k8.*?"r"\(b\)\);', "m16n8(d, a0, a1, 0, 0, b, 0, 1);"),
    (
        r'asm\("mma\.sync\.aligned\.m16n8k16.*?"r"\(b1\)\);',
        "m16n8(c, a0, a1, a2, a3, b0, b1, 2);",
    ),
    (
        r'asm\("fma\.rn\.bf16x2.*?\);',
        "const float by = __uint_as_float(up & 0xFFFF0000u);"
        "r = __float_as_uint(__uint_as_float(a << 16) * by) >> 16"
        " | (__float_as_uint(__uint_as_float(a & 0xFFFF0000u) * by) & 0xFFFF0000u);",
    ),
    (
        r'asm\("\{ \.reg \.b16 l, h; cvt\.rn\.f16\.f32 l.*?256\.f\)\);',
        "r = half_bits(__uint_as_float(w << 16) * 256.f)"
        " | (u32)half_bits(__uint_as_float(w & 0xFFFF0000u) * 256.f) << 16;",
    ),
    (
        r'asm\("\{ \.reg \.b16 l, h; mov\.b32 \{l, h\}, %2; cvt\.rn\.f16x2\.e4m3x2.*?\);',
        "p = e4m3_pair(w); q = e4m3_pair(w >> 16);",
    ),
    (r'asm\("mul\.rn\.f16x2.*?\);', "r = half_products(pair, lift);"),
    (r'asm volatile\("cp\.async\.cg[^;]*;"[^;]*"l"\(from\)[^;]*;', "copy_later(to, from, 16);"),
    (r'asm volatile\("cp\.async\.ca[^;]*;"[^;]*"l"\(from\)[^;]*;', "copy_later(to, from, 4);"),
    (r'asm volatile\("cp\.async\.commit_group;[^;]*;', "copies_sent_by_lane();"),
    (
        r'asm volatile\("cp\.async\.wait_group[^;]*;[^;]*STAGES[^;]*;',
        "copies_landed_but(STAGES - 2 * TURN);",
    ),
    (r"extern __shared__ uint4 (\w+)\[\];", r"static uint4 \1[(227 << 10) / 16];"),
)


def emulated(arch: str, folder: Path) -> Toolbox:
    """The kernels of `arch` on this processor; what is compiled lies in `folder`."""
    emulator = _Emulator(arch, folder)
    return Toolbox(emulator, emulator)  # type: ignore[arg-type]


class _Emulator:
    """Stands for the builder and for the launcher of a toolbox, which asks them in turn."""

    def __init__(self, arch: str, folder: Path) -> None:
        self.arch = arch
        self._folder = folder
        self._asked: Kernel | None = None

    def build(self, kernel: Kernel) -> Cubin:
        self._asked = kernel
        return Cubin(b"", Usage())

    def load(
        self, cubin: Cubin, entry: str, *, threads: int, ring_bytes: int = 0, early: bool = False
    ) -> Launch:
        assert self._asked is not None
        go = compiled(self._asked, self._folder)

        def launch(grid: Grid, *arguments: Tensor | int | float | None) -> None:
            passed = [_passed(argument) for argument in arguments]
            given = (ctypes.c_void_p * len(passed))(*map(ctypes.addressof, passed))
            sizes = (ctypes.c_int * len(passed))(*map(ctypes.sizeof, passed))
            fits = go(*grid, threads, given, sizes, len(passed))
            assert fits, f"arguments of {entry} have sizes {list(sizes)}, not those it takes"

        return launch


def compiled(kernel: Kernel, folder: Path) -> Callable[..., bool]:
    source = on_a_processor(kernel)
    text = (
        f'#include "{HERE / "emulate.h"}"\n{source}\n'
        'extern "C" bool go(int columns, int rows, int threads, void** given, int* sizes,'
        " int count) {\n"
        f"  return launch({kernel.entry}, columns, rows, threads, given, sizes, count);\n}}\n"
    )
    name = re.sub(r"\W+", "-", kernel.name)
    written, library = folder / f"{name}.cpp", folder / f"{name}.so"
    written.write_text(text)
    macros = {name: value for name, value in kernel.macros if name != "OPERAND"} | NOT_EMULATED
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    command = ["g++", "-O1", "-w", "-std=c++20", "-shared", "-fPIC"]
    command += ["-ffp-contract=off", "-U_FORTIFY_SOURCE", *flags]
    done = subprocess.run(
        [*command, "-o", str(library), str(written)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    go = ctypes.CDLL(str(library)).go
    go.restype = ctypes.c_bool
    found: Callable[..., bool] = go
    return found


def on_a_processor(kernel: Kernel) -> str:
    """The source with its headers in place and its instructions replaced."""
    sources, seen = Sources(), set[str]()

    def whole(text: str) -> str:
        def header(found: re.Match[str]) -> str:
            if found[1] in seen:
                return ""
            seen.add(found[1])
            return whole(sources.headers[found[1]])

        return re.sub(r'#include "(\w+\.cuh)"', header, text)

    text = (
        whole(sources.text(kernel.source)).replace("#pragma once", "").replace("__restrict__", "")
    )
    for instruction, function in INSTRUCTIONS:
        text = re.sub(instruction, function, text, flags=re.DOTALL)
    return text


def _passed(argument: Tensor | int | float | None) -> "ctypes._SimpleCData[Any]":
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_int64(argument) if isinstance(argument, Long) else ctypes.c_int(argument)
