"""Compiles CUDA C++ in memory, by NVRTC. Knows no kernel, no cache and no device.

The library is found beside the packages of this Python and loaded by its path, so that another
NVRTC that torch may have loaded does not stand in for it. No CUDA toolkit and no driver are needed.
"""

import ctypes
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import BadSetting

REMEDY = "install it beside Relight by: python -m pip install 'relight[cuda]'"

OLDEST = (11, 8)
"""C++17 and every form of the sources; 12.6 and 12.9 are what tests run."""


class NoNvrtc(BadSetting):
    """NVRTC is missing, or is not one that can be used."""


class CompileError(Exception):
    """NVRTC refused a source, which is a mistake of ours; its log says why."""


@dataclass(frozen=True, slots=True)
class Compiled:
    code: bytes
    log: str


def find() -> list[Path]:
    """The NVRTC libraries among the packages of this Python, those of CUDA 12 first: later ones
    know no Volta."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [library for folder in folders for library in libraries(Path(folder))]


def libraries(folder: Path) -> list[Path]:
    """Of a folder `nvidia` as packages make it."""
    patterns = ("cuda_nvrtc/lib/libnvrtc.so.*", "cu1[0-9]/lib/libnvrtc.so.*")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


class Nvrtc:
    """One loaded library. Threads may compile at once."""

    def __init__(self, library: Path) -> None:
        self.library = library
        try:
            self._calls = ctypes.CDLL(str(library))
        except OSError as problem:
            raise NoNvrtc(f"NVRTC at {library} cannot be loaded ({problem}); {REMEDY}") from None
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._do("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        check_version(library, self.version)
        # It asks for them by name when it compiles; that of CUDA 13 does not look beside itself.
        for builtins in sorted(library.parent.glob(builtins_of(self.version) + "*")):
            ctypes.CDLL(str(builtins))
        count = ctypes.c_int()
        self._do("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._do("nvrtcGetSupportedArchs", numbers)
        self.architectures = tuple(numbers)

    def check_architecture(self, arch: str) -> None:
        """`arch` is sm_NN, for code of that device, or compute_NN, for PTX."""
        found = re.fullmatch(r"(sm|compute)_(\d+)", arch)
        if found is None:
            raise BadSetting(f"arch is {arch!r}; wanted sm_NN or compute_NN, as sm_90")
        if int(found[2]) not in self.architectures:
            known = f"sm_{min(self.architectures)} to sm_{max(self.architectures)}"
            remedy = "Volta needs CUDA 12's: pip install nvidia-cuda-nvrtc-cu12"
            if int(found[2]) > max(self.architectures):
                remedy = "a device as new needs a later one: pip install -U nvidia-cuda-nvrtc"
            raise NoNvrtc(
                f"NVRTC {self.name} at {self.library} does not compile for {arch}, only for "
                f"{known}; {remedy}"
            )

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))

    def compile(
        self, source: str, headers: Mapping[str, str], arch: str, options: Sequence[str]
    ) -> Compiled:
        """A cubin for sm_NN, PTX for compute_NN. Raises CompileError."""
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        program = ctypes.c_void_p()
        self._do(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            b"source.cu",
            len(headers),
            texts,
            names,
        )
        try:
            given = [f"--gpu-architecture={arch}", *options]
            passed = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
            code = self._calls.nvrtcCompileProgram(program, len(given), passed)
            log = self._get(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code:
                raise CompileError(f"for {arch}: {log}")
            return Compiled(self._get(program, "CUBIN" if arch[0] == "s" else "PTX"), log)
        finally:
            self._do("nvrtcDestroyProgram", ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._do(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        self._do(f"nvrtcGet{what}", program, room)
        return room.raw

    def _do(self, call: str, *arguments: object) -> None:
        code = getattr(self._calls, call)(*arguments)
        assert code == 0, f"{call} of {self.library} returned {code}"


def builtins_of(version: tuple[int, int]) -> str:
    return f"libnvrtc-builtins.so.{version[0]}.{version[1]}"


def check_version(library: Path, version: tuple[int, int]) -> None:
    """`version` is what the loaded library says; the files beside it say which one it should be."""
    if version < OLDEST:
        raise NoNvrtc(
            f"NVRTC at {library} is {version[0]}.{version[1]}; wanted {OLDEST[0]}.{OLDEST[1]} or "
            f"later; {REMEDY}"
        )
    beside = [path.name for path in library.parent.glob("libnvrtc-builtins.so.*")]
    wanted = builtins_of(version)
    if beside and not any(name.startswith(wanted) for name in beside):
        raise NoNvrtc(
            f"NVRTC {version[0]}.{version[1]} answers for {library}, beside which lies "
            f"{min(beside)}: another NVRTC was loaded first; keep one version of "
            "nvidia-cuda-nvrtc-cu12 in this environment, the one that torch asks for"
        )


def load(arch: str, library: Path | None = None) -> Nvrtc:
    """The first NVRTC found that compiles for `arch`. Raises NoNvrtc, which names the remedy."""
    candidates = [library] if library else find()
    problem = NoNvrtc(f"NVRTC was not found among the packages of this Python; {REMEDY}")
    for path in candidates:
        try:
            nvrtc = Nvrtc(path)
            nvrtc.check_architecture(arch)
        except NoNvrtc as found:
            problem = found
            continue
        return nvrtc
    raise problem
