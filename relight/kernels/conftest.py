"""Fixtures of the ops' tests: every device, its kernels, and the golden vectors of single ops."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relight.kernels.cuda_tools import ALL, supported, toolbox
from relight.kernels.testing import devices
from relight.kernels.toolbox import Toolbox

VECTORS = Path(__file__).parents[2] / "tests" / "golden" / "ops" / "ops.safetensors"

Vectors = Callable[[str], Tensor]


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@functools.cache
def _vectors() -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(VECTORS)


@pytest.fixture
def vectors(device: str) -> Vectors:
    """`vectors("op/name")` is a golden tensor on the device; 8-bit formats come as bytes."""

    def get(name: str) -> Tensor:
        tensor = _vectors()[name]
        packed = tensor.element_size() == 1
        return (tensor.view(torch.uint8) if packed else tensor).to(device)

    return get


@pytest.fixture(scope="session")
def device_tools() -> Toolbox:
    """The kernels of the CUDA device that torch has current: beside one, nothing may be missing."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    heard: list[str] = []
    there = supported(torch.device("cuda"), heard.append)
    if not there.issuperset(ALL):
        pytest.fail(f"needs {', '.join(sorted(set(ALL) - there))}: {'; '.join(heard)}")
    return toolbox(torch.device("cuda", torch.cuda.current_device()), heard.append)
