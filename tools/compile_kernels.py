"""Compiles every kernel for devices that need not be here, with an NVRTC of a given version.

    python -m tools.compile_kernels 12.9 --arch sm_70 --arch sm_90

The library is installed by pip into .cache/relight/nvrtc/VERSION, since an environment holds one
version only, and loaded by its path: a process uses one. Prints a JSON list of {arch, name,
registers, spill_bytes, stack_bytes, shared_bytes}. Exits with 3 if the library cannot be had.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from relight.kernels.build import Builder, Kernel, build_all
from relight.kernels.catalogue import ARCHITECTURES, kernels
from relight.kernels.cubins import CubinCache
from relight.kernels.nvrtc import Nvrtc, libraries

FOLDER = Path(__file__).parents[1] / ".cache" / "relight" / "nvrtc"
NO_LIBRARY = 3


class Line(msgspec.Struct, frozen=True):
    arch: str
    name: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def install(version: str) -> Path:
    """The library of that version, fetched if need be, by any number of processes at once. An
    OSError says why it cannot be had."""
    folder = FOLDER / version
    if not libraries(folder / "nvidia"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=FOLDER) as scratch:
            made = _fetch(version, Path(scratch) / "whole")
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                if not libraries(folder / "nvidia"):
                    raise
    return libraries(folder / "nvidia")[0]


def _fetch(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input"]
    command += ["--retries", "1", "--timeout", "20", "--disable-pip-version-check"]
    package = "nvidia-cuda-nvrtc" + "-cu12" * version.startswith("12.")
    command += ["--target", str(folder), f"{package}=={version}.*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"pip cannot fetch NVRTC {version}: {done.stderr.strip()[-300:]}")
    return folder


def one_each(some: list[Kernel]) -> list[Kernel]:
    """Of each source and entry point."""
    return list({(kernel.source, kernel.entry): kernel for kernel in some}.values())


def table(
    library: Path, architectures: list[str], cache: Path, workers: int, *, few: bool = False
) -> Iterator[Line]:
    nvrtc, kept = Nvrtc(library), CubinCache(cache, lambda text: print(text, file=sys.stderr))
    jobs: list[tuple[Builder, Kernel]] = []
    for arch in architectures:
        one = Builder(nvrtc, arch, kept)
        jobs += [(one, kernel) for kernel in (one_each if few else list)(kernels(arch))]
    for one, kernel, cubin in build_all(jobs, workers):
        yield Line(one.arch, kernel.name, **msgspec.structs.asdict(cubin.usage))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="of NVRTC, as 12.9")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
    parser.add_argument("--cache", type=Path, default=FOLDER.parent / "cubins")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--few", action="store_true", help="one of each entry point")
    args = parser.parse_args()
    try:
        library = install(args.version)
    except OSError as problem:
        print(problem, file=sys.stderr)
        sys.exit(NO_LIBRARY)
    architectures = args.arch or list(ARCHITECTURES)
    lines = list(table(library, architectures, args.cache, args.workers, few=args.few))
    print(msgspec.json.encode(lines).decode())


if __name__ == "__main__":
    main()
