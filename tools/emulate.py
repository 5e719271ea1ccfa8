"""Runs the CUDA kernels on a processor, lane by lane. For tests without a device.

g++ compiles them: each instruction that is written in PTX is replaced by a function of emulate.h
that does the same; all else of a source is compiled as it stands. Left out are copies into shared
memory, the conversion of E4M3 by an instruction, and programmatic launches.
"""

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from relight.kernels.build import Kernel, Sources
from relight.kernels.cubins import Cubin
from relight.kernels.launch import Grid, Launch
from relight.kernels.ptxas import Usage
from relight.kernels.toolbox import Toolbox

HERE = Path(__file__).parent

NOT_EMULATED = {"RING": 0, "PDL": 0, "CONVERTS_E4M3": 0}

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
        "const float up = __uint_as_float(0x7B800000u);"
        "r = __float_as_uint(__uint_as_float(a << 16) * up) >> 16"
        " | (__float_as_uint(__uint_as_float(a & 0xFFFF0000u) * up) & 0xFFFF0000u);",
    ),
    (
        r'asm\("\{ \.reg \.b16 l, h; cvt\.rn\.f16\.f32 l.*?256\.f\)\);',
        "r = half_bits(__uint_as_float(w << 16) * 256.f)"
        " | (u32)half_bits(__uint_as_float(w & 0xFFFF0000u) * 256.f) << 16;",
    ),
)

SIGNATURES = {
    "step_linear": "const u8*,const u8*,const u8*,const float*,Y*,int,int,int,int",
    "step_gate_up": "const u8*,const u8*,const u8*,const u8*,const u8*,const float*,const i64*,"
    "const float*,float*,int,int,int,float",
    "step_down": "const u8*,const u8*,const u8*,const float*,const i64*,float*,int,int",
    "act_quant": "const X*,u32*,float*,int",
    "slot_sum": "const float*,float*,int,int",
}


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
            go(*grid, threads, *map(_passed, arguments))

        return launch


def compiled(kernel: Kernel, folder: Path) -> Callable[..., None]:
    types = SIGNATURES[kernel.entry].split(",")
    names = [f"a{number}" for number in range(len(types))]
    taken = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
    text = (
        f'#include "{HERE / "emulate.h"}"\n{on_a_processor(kernel)}\n'
        f'extern "C" void go(int columns, int rows, int threads, {taken}) {{\n'
        f"  run(columns, rows, threads, [=] {{ {kernel.entry}({', '.join(names)}); }});\n}}\n"
    )
    name = re.sub(r"\W+", "-", kernel.name)
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    macros = {name: value for name, value in kernel.macros if name != "OPERAND"} | NOT_EMULATED
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    command = ["g++", "-O1", "-w", "-std=c++20", "-shared", "-fPIC", "-pthread", *flags]
    done = subprocess.run(
        [*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    go: Callable[..., None] = ctypes.CDLL(str(library)).go
    return go


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
        text = re.sub(instruction, lambda _, to=function: to, text, flags=re.DOTALL)  # type: ignore
    return text


def _passed(argument: Tensor | int | float | None) -> object:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if argument is None:
        return ctypes.c_void_p(0)
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)
