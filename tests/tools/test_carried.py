"""PTX that is carried to a device is what was compiled elsewhere, or is not there."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from relight.kernels.build import Builder, Kernel
from relight.kernels.cubins import CubinCache
from relight.kernels.nvrtc import Compiled, NoNvrtc
from tools.carried import carried

PTX = "//\n// Generated\n//\n// Cuda compilation tools, release {}, V{}.86\n//\n.version 8.8\n"
ARCH = "compute_70"


def kernel(*macros: tuple[str, int]) -> Kernel:
    return Kernel("toy", "cuda/small.cu", "slot_sum", macros)


def fill(folder: Path, one: Kernel, version: str = "12.9") -> bytes:
    code = PTX.format(version, version).encode()
    fake = SimpleNamespace(
        name=version, check_architecture=lambda arch: None, compile=lambda *_: Compiled(code, "")
    )
    return Builder(fake, ARCH, CubinCache(folder, pytest.fail)).build(one).code


def test_a_kernel_is_found_without_the_nvrtc_that_compiled_it(tmp_path: Path) -> None:
    code = fill(tmp_path, kernel(("K", 1)))
    assert carried(tmp_path, ARCH, pytest.fail).build(kernel(("K", 1))).code == code


def test_what_was_not_carried_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NoNvrtc, match=r"has no PTX, .* relight kernels build --arch"):
        carried(tmp_path, ARCH, pytest.fail)
    fill(tmp_path, kernel(("K", 1)))
    with pytest.raises(NoNvrtc, match=r"no compute_70 code of a kernel with .*-DK=2"):
        carried(tmp_path, ARCH, pytest.fail).build(kernel(("K", 2)))


def test_a_folder_of_two_compilers_is_refused(tmp_path: Path) -> None:
    """A key has one of their names, and which one nobody says."""
    for version in ("12.6", "12.9"):
        fill(tmp_path, kernel(("K", 1)), version)
    with pytest.raises(NoNvrtc, match=r"PTX of NVRTC 12\.6, 12\.9, wanted that of one"):
        carried(tmp_path, ARCH, pytest.fail)
