"""Turns CUDA C++ sources into code for a device: compiled at first use, kept by content. Knows no
op; what there is to build is in `catalogue`.

A kernel is one entry point of one source, specialised by macros. Its key hashes the source, every
header, the options, the architecture and the version of NVRTC, so nothing stale is ever loaded.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from relight.kernels.cubins import Cubin, CubinCache, Tell, default_folder, key_of
from relight.kernels.nvrtc import Compiled, load
from relight.kernels.ptxas import usage

OPTIONS = ("--std=c++17", "--ptxas-options=-v")

Macros = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point, specialised. `name` is what people read: op, format, shape."""

    name: str
    source: str  # path under relight/kernels
    entry: str
    macros: Macros

    def arch(self, arch: str) -> str:
        """What it is compiled for on a device of `arch`: code with warp groups runs on no later
        device, which the name says."""
        return arch + "a" * (("WARP_GROUPS", 1) in self.macros)

    def options(self) -> list[str]:
        return [*OPTIONS, *(f"-D{name}={value}" for name, value in self.macros)]


class Sources:
    """The CUDA C++ texts of the package."""

    def text(self, path: str) -> str:
        return files("relight.kernels").joinpath(path).read_text(encoding="utf-8")

    @cached_property
    def headers(self) -> dict[str, str]:
        folder = files("relight.kernels").joinpath("cuda")
        found = (item for item in folder.iterdir() if item.name.endswith(".cuh"))
        return {item.name: item.read_text(encoding="utf-8") for item in found}


class Compiler(Protocol):
    """As `nvrtc.Nvrtc`."""

    @property
    def name(self) -> str: ...

    def check_architecture(self, arch: str) -> None: ...

    def compile(
        self, source: str, headers: Mapping[str, str], arch: str, options: Sequence[str]
    ) -> Compiled: ...


class Builder:
    """Builds for one architecture, with one NVRTC, into one cache."""

    def __init__(self, nvrtc: Compiler, arch: str, cache: CubinCache) -> None:
        nvrtc.check_architecture(arch)
        self.arch = arch
        self._nvrtc = nvrtc
        self._cache = cache
        self._sources = Sources()

    def key(self, kernel: Kernel) -> str:
        headers = self._sources.headers
        return key_of(
            self._sources.text(kernel.source),
            *(part for name in sorted(headers) for part in (name, headers[name])),
            *kernel.options(),
            kernel.entry,
            kernel.arch(self.arch),
            self._nvrtc.name,
        )

    def build(self, kernel: Kernel) -> Cubin:
        key = self.key(kernel)
        found = self._cache.get(key)
        if found is None:
            compiled = self._nvrtc.compile(
                self._sources.text(kernel.source),
                self._sources.headers,
                kernel.arch(self.arch),
                kernel.options(),
            )
            found = Cubin(compiled.code, usage(compiled.log, kernel.entry))
            self._cache.put(key, found)
        return found


def builder(
    arch: str, tell: Tell, folder: Path | None = None, library: Path | None = None
) -> Builder:
    """For `arch`, as sm_90. Raises NoNvrtc, which names the remedy."""
    return Builder(load(arch, library), arch, CubinCache(folder or default_folder(), tell))


Done = Callable[[int, int], None]
"""Told (kernels built, kernels in all)."""


def build_all(
    jobs: Iterable[tuple[Builder, Kernel]], workers: int = 0, done: Done | None = None
) -> Iterator[tuple[Builder, Kernel, Cubin]]:
    """Builds in parallel, 0 workers: as many as there are cores, and yields in the order of jobs.
    NVRTC works outside of Python's lock."""
    listed = list(jobs)
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        running = [pool.submit(one.build, kernel) for one, kernel in listed]
        if done is not None:
            for count, _ in enumerate(as_completed(running), 1):
                done(count, len(running))
        for (one, kernel), result in zip(listed, running, strict=True):
            yield one, kernel, result.result()
