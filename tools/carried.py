"""PTX that was compiled beforehand, in place of an NVRTC that is not there. Knows no kernel.

    relight kernels build --arch compute_70 --cache FOLDER --nvrtc LIBRARY

makes such a folder, half a megabyte when it is packed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from relight.kernels.build import Builder
from relight.kernels.cubins import CubinCache, Tell
from relight.kernels.nvrtc import Compiled, NoNvrtc

REMEDY = "make it by: relight kernels build --arch ARCH --cache FOLDER --nvrtc LIBRARY"
RELEASE = re.compile(rb"^// Cuda compilation tools, release (\d+\.\d+),", re.MULTILINE)
"""NVRTC begins its PTX with what made it."""


class Carried:
    """Has the name of the NVRTC that made the folder, so keys are those that it was filled by, and
    compiles nothing. Raises NoNvrtc where it cannot tell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = set()
        for path in folder.glob("*.kernel"):
            names |= {found.decode() for found in RELEASE.findall(path.read_bytes())}
        if len(names) != 1:
            made = f"PTX of NVRTC {', '.join(sorted(names))}" if names else "no PTX"
            raise NoNvrtc(f"{folder} has {made}, wanted that of one NVRTC; {REMEDY}")
        (self.name,) = names

    def check_architecture(self, arch: str) -> None:
        """Keys have it."""

    def compile(
        self, source: str, headers: Mapping[str, str], arch: str, options: Sequence[str]
    ) -> Compiled:
        raise NoNvrtc(
            f"{self._folder} has no {arch} code of a kernel with {' '.join(options)}, of these "
            f"sources; {REMEDY}"
        )


def carried(folder: Path, arch: str, tell: Tell) -> Builder:
    """Builds for `arch` out of such a folder. Raises NoNvrtc."""
    return Builder(Carried(folder), arch, CubinCache(folder, tell))
