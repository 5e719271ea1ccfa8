"""Runs the CUDA kernels on a processor, lane by lane. For tests without a device.

g++ compiles them: each instruction that is written in PTX is replaced by a function of emulate.h
that does the same; all else of a source is compiled as it stands. Blocks and lanes run in a drawn
order, and each access to memory is looked at (watch.h): what a device's checking tools would tell
fails here, with the kernel's name. Not seen are races between blocks, and between lanes on memory
that is not shared.
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

INSTRUCTIONS = (
    (r'asm volatile\("ld\.global\.nc[^\n]*\n[^\n]*\n[^\n]*\);', "v[j] = p[i + j * step];"),
    (r'asm volatile\("ld\.global"[^;]*;"[^;]*;', "v = *(const uint4*)p;"),
    (r'asm volatile\("prefetch\.global[^;]*;"[^;]*;', "watch::touch(p, 1, false);"),
    (r'asm\("mma\.sync\.aligned\.m8n8k4.*?"r"\(b1\)\);', "m8n8k4(d, a0, a1, b0, b1);"),
    (r'asm\("mma\.sync\.aligned\.m16n8k8.*?"r"\(b\)\);', "m16n8(d, a0, a1, 0, 0, b, 0, 1);"),
    (
        r'asm\("mma\.sync\.aligned\.m16n8k16.*?"r"\(b1\)\);',
        "m16n8(c, a0, a1, a2, a3, b0, b1, 2);",
    ),
    (r'asm\("cvt\.rn\.bf16x2\.f32 %0, 0f.*?\);', "r = bf16_bits(v);"),
    (
        r'asm\("cvt\.rn\.bf16x2\.f32.*?\);',
        "r = to_bf16(a) | (u32)to_bf16(b) << 16;",
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
    (r'asm\("cvt\.rn\.satfinite\.e4m3x2.*?\);', "r = to_e4m3(a) | to_e4m3(b) << 8;"),
    (
        r'asm\("max\.NaN\.bf16x2.*?\);',
        "r = max(a & 0xFFFF0000u, b & 0xFFFF0000u) | max(a & 0xFFFFu, b & 0xFFFFu);",
    ),
    (r'asm\("lop3\.b32 %0, %1, %2, %3, 0xA8;.*?\);', "r = (a | b) & mask;"),
    (r'asm\("mul\.rn\.f16x2.*?\);', "r = half_products(pair, lift);"),
    (r'asm volatile\("cp\.async\.cg[^;]*;"[^;]*"l"\(from\)[^;]*;', "copy_later(to, from, 16);"),
    (r'asm volatile\("cp\.async\.ca[^;]*;"[^;]*"l"\(from\)[^;]*;', "copy_later(to, from, 4);"),
    (r'asm volatile\("cp\.async\.commit_group;[^;]*;', "copies_sent_by_lane();"),
    (
        r'asm volatile\("cp\.async\.wait_group %0;" ::"n"\(([^;]*)\) : "memory"\);',
        r"copies_landed_but(\1);",
    ),
    (
        r'asm volatile\("cp\.async\.cg[^;]*;"[^;]*"l"\(p\)[^;]*;',
        "copy_later(shared_at(to), p, 16);",
    ),
    (r"__reduce_max_sync\(~0u, v\)", "lanes_max(v, 16)"),
    (r"extern __shared__ uint4 (\w+)\[\];", r"__shared__ uint4 \1[RING_BYTES / 16];"),
    (r'asm volatile\("fence\.proxy\.async[^;]*;[^;]*;', ""),
    (r'asm volatile\("wgmma\.(?:fence|commit)[^;]*;[^;]*;', ""),
    (r'asm volatile\("wgmma\.wait_group[^;]*;[^;]*;', ""),
    (
        r'asm volatile\("\{ \.reg \.pred r; setp\.[^"]*" AT2.*?"r"\(more\)\);',
        "group_products(&d[0][0], C, a, nullptr, b, more, 2);",
    ),
    *(
        (
            rf'asm volatile\("\{{ \.reg \.pred {kind}; setp\.[^"]*" {more}.*?"r"\(more\)\);',
            f"group_products(&d[0][0], C, {given}, b, more, {int(kind == 'q')});",
        )
        for kind in "pq"
        for more, given in (("AT2", "a, nullptr"), ("AT5", "0, a"))
    ),
    (r'asm volatile\("griddepcontrol\.[^"]*"[^;]*;', "waited();"),
    (r'asm volatile\("mbarrier\.init.*?"memory"\);', "want_told(bytes);"),
    (r'asm volatile\("barrier\.cluster\.arrive.*?"memory"\);', ""),
    (r'asm volatile\("barrier\.cluster\.wait.*?"memory"\);', "meet_cluster(__LINE__);"),
    (r'asm volatile\("\{ \.reg \.u32 at; mapa.*?"memory"\);', "tell_block(place, peer, v);"),
    (r'asm volatile\("\{ \.reg \.u32 to, at; mapa.*?"memory"\);', "tell_block(place, peer, a, b);"),
    (r'asm volatile\("\{ \.reg \.pred all;.*?"memory"\);', "hear_all(__LINE__);"),
)


def emulated(arch: str, folder: Path) -> Toolbox:
    """The kernels of `arch` on this processor; what is compiled lies in `folder`."""
    emulator = _Emulator(arch, folder)
    return Toolbox(emulator, emulator)  # type: ignore[arg-type]


class Range(ctypes.Structure):
    """Of watch.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("begin", "end", "least", "most"))


class _Given(ctypes.Structure):
    """Of emulate.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("columns", "rows", "threads", "bound", "count")),
        *((name, ctypes.c_int) for name in ("num_ranges", "num_changed")),
        *((name, ctypes.c_void_p) for name in ("arguments", "sizes", "ranges", "changed")),
    )


class _Emulator:
    """Stands for the builder and for the launcher of a toolbox, which asks them in turn."""

    def __init__(self, arch: str, folder: Path) -> None:
        self.arch = arch
        self._folder = folder
        self._asked: Kernel | None = None
        self._changed: list[tuple[int, int]] = []  # what the last kernel wrote
        self._held: tuple[object, ...] = ()  # its arguments, so that nothing else lies there now

    def build(self, kernel: Kernel) -> Cubin:
        self._asked = kernel
        return Cubin(b"", Usage())

    def load(
        self, cubin: Cubin, entry: str, *, threads: int, ring_bytes: int = 0, early: bool = False
    ) -> Launch:
        assert self._asked is not None
        name, go = self._asked.name, compiled(self._asked, self._folder, ring_bytes)

        def launch(grid: Grid, *arguments: Tensor | int | float | None) -> None:
            passed = [_passed(argument) for argument in arguments]
            ranges = [_memory(one) for one in arguments if isinstance(one, Tensor)]
            problem, self._changed = go(grid, threads, passed, ranges, self._changed)
            assert not problem, f"{name}, grid {grid}: {problem}"
            self._held = arguments

        return launch


Go = Callable[..., tuple[str, list[tuple[int, int]]]]
"""(grid, threads, arguments, memory of the arguments, what the last kernel wrote) -> what went
wrong, and what this kernel wrote."""


def compiled(kernel: Kernel, folder: Path, ring_bytes: int = 0) -> Go:
    return library(on_a_processor(kernel), kernel, folder, ring_bytes)


def library(source: str, kernel: Kernel, folder: Path, ring_bytes: int = 0) -> Go:
    """`source` is C++ already; of `kernel` its name, entry and macros count."""
    bound = re.search(rf"__launch_bounds__\(([^,)]*)[^)]*\)\s*{kernel.entry}\(", source)
    assert bound is not None, f"{kernel.entry} does not say how many threads it has"
    text = (
        f'#include "{HERE / "emulate.h"}"\nnamespace {{\n{source}\n}}\n'
        'extern "C" __attribute__((visibility("default"))) const char* go(Given given) {\n'
        f"  given.bound = {bound[1]};\n  return launch({kernel.entry}, given);\n}}\n"
    )
    name = re.sub(r"\W+", "-", kernel.name)
    written, made = folder / f"{name}.cpp", folder / f"{name}.so"
    written.write_text(text)
    macros = {name: value for name, value in kernel.macros if name != "OPERAND"}
    flags = [f"-D{name}={value}" for name, value in {**macros, "RING_BYTES": ring_bytes}.items()]
    flags += ["-O1", "-w", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    flags += ["-U_FORTIFY_SOURCE", "-fno-threadsafe-statics", "-fsanitize=thread"]
    _run("g++", "-c", *flags, "-o", f"{made}.o", str(written))
    _run("g++", "-shared", "-o", str(made), f"{made}.o")  # without the library of that option
    call = ctypes.CDLL(str(made)).go
    call.argtypes, call.restype = (_Given,), ctypes.c_char_p

    def go(
        grid: Grid,
        threads: int,
        passed: list["ctypes._SimpleCData[Any]"],
        ranges: list[tuple[int, int]],
        changed: list[tuple[int, int]],
    ) -> tuple[str, list[tuple[int, int]]]:
        given = (ctypes.c_void_p * len(passed))(*map(ctypes.addressof, passed))
        sizes = (ctypes.c_int * len(passed))(*map(ctypes.sizeof, passed))
        mine, before = (
            (Range * len(some))(*(Range(*one, None, None) for one in some))
            for some in (ranges, changed)
        )
        counts = (threads, 0, len(passed), len(ranges), len(changed))
        addresses = [ctypes.addressof(one) for one in (given, sizes, mine, before)]
        problem = call(_Given(*grid, *counts, *addresses)).decode()
        return problem, [(one.least, one.most) for one in mine if one.least]

    return go


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def _memory(x: Tensor) -> tuple[int, int]:
    """Where the memory begins that a tensor is a part of, and where it ends."""
    whole = x.untyped_storage()
    return whole.data_ptr(), whole.data_ptr() + whole.nbytes()


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
