"""The doctor finds what is wrong on machines that are described to it."""

import msgspec
import pytest
import torch

from relight.kernels import cuda_tools
from relight.kernels.nvrtc import NoNvrtc
from relight.lab import doctor
from relight.lab.audit import Promise
from relight.lab.doctor import broken, examine, findings, quick_audit, refused
from relight.lab.machine import Accelerator, Machine, read_machine

GIB = 2**30
PLAIN = Machine(
    system="Linux",
    python="3.11",
    torch="2.13.0",
    torch_build="CPU only",
    torch_threads=2,
    processor="some",
    cores=2,
    flags=(),
    memory_bytes=400 * GIB,
    available_bytes=300 * GIB,
    compiler=None,
    driver=None,
    accelerators=(),
)


def problems(**changes: object) -> str:
    return "\n".join(f.problem for f in findings(msgspec.structs.replace(PLAIN, **changes)))


def test_this_machine_can_be_read_and_reported_as_json() -> None:
    report = examine(audit=False)
    assert report.machine.cores >= 1
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=type(report))
    assert decoded == report
    assert read_machine().torch == report.machine.torch


def test_a_driver_beside_a_cpu_build_of_torch_is_found() -> None:
    assert "driver 580 is here, but torch 2.13.0 is a CPU build" in problems(driver="580")


def test_a_device_build_without_device_is_found() -> None:
    assert "built for CUDA 12.6 and finds no device" in problems(torch_build="CUDA 12.6")


def test_too_little_memory_for_the_full_model_is_found_with_both_figures() -> None:
    assert "145.3 GiB of weights; 10.0 GiB of memory" in problems(available_bytes=10 * GIB)
    assert "weights" not in problems()
    device = Accelerator("cuda:0", "H200", "9.0", 141 * GIB, 139 * GIB)
    found = problems(accelerators=(device,), torch_build="CUDA 13.0")
    assert "139.0 GiB of each accelerator" in found


def test_kernels_are_offered_only_where_there_are_some() -> None:
    def remedies(**changes: object) -> str:
        return "\n".join(f.remedy for f in findings(msgspec.structs.replace(PLAIN, **changes)))

    proven = Accelerator("cuda:0", "H200", "9.0", 141 * GIB, 139 * GIB)
    assert "--kernels" not in remedies(accelerators=(proven,), torch_build="CUDA 13.0")
    device = Accelerator("cuda:0", "A100", "8.0", 80 * GIB, 79 * GIB)
    cuda = remedies(accelerators=(device,), torch_build="CUDA 13.0")
    assert "--kernels cuda builds them and tries each" in cuda
    found = problems(accelerators=(device,), torch_build="CUDA 13.0")
    assert "kernels for linear, experts" in found
    assert "no run on sm_80 has proven them" in found
    other = Accelerator("cuda:0", "MI300X", "9.4", 192 * GIB, 190 * GIB)
    assert "--kernels" not in remedies(accelerators=(other,), torch_build="ROCm 6.4")
    assert "no fast kernels for the CPU" in problems()


def test_why_kernels_cannot_run_is_said_once_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC and cuda-core are missing; on an older device, on none, and where nothing is."""

    def no_nvrtc(arch: str, library: object) -> None:
        raise NoNvrtc("no NVRTC was found")

    arch = "sm_90"
    monkeypatch.setattr(cuda_tools, "architecture", lambda _: arch)
    for room in (cuda_tools, doctor):
        monkeypatch.setattr(room, "is_at_least_volta", lambda _: arch >= "sm_70")
    monkeypatch.setattr(cuda_tools, "load", no_nvrtc)
    monkeypatch.setattr(cuda_tools.importlib.util, "find_spec", lambda name: None)
    where = torch.device("cuda")
    nvrtc, missing = refused(where)
    assert "no NVRTC was found" in nvrtc.problem
    assert missing.problem.startswith("kernels for linear, experts, ")
    assert missing.problem.endswith("missing: NVRTC for it, cuda-core")
    assert "relight[cuda]" in missing.remedy
    arch = "sm_61"
    old, _ = refused(where)
    assert "the device is sm_61" in old.problem
    assert "install" not in old.remedy
    assert refused(torch.device("cpu")) == []
    monkeypatch.setattr(cuda_tools, "load", lambda arch, library: None)
    monkeypatch.setattr(cuda_tools.importlib.util, "find_spec", lambda name: name)
    arch = "sm_70"
    assert refused(where) == []


@pytest.mark.slow
def test_a_small_model_keeps_every_promise_on_this_machine() -> None:
    verdicts = {promise.text: promise.verdict for promise in quick_audit()}
    for text in (
        "text is the same with speculation on or off",
        "recorded steps give the text of eager ones",
    ):
        assert verdicts.pop(text) == "not checked"
    assert set(verdicts.values()) == {"kept"}, verdicts


def test_a_broken_promise_is_a_finding() -> None:
    promises = [Promise("a", "kept", "same"), Promise("b", "not kept", "token 3 differs")]
    (finding,) = broken(promises)
    assert "b (token 3 differs)" in finding.problem


def test_every_finding_says_what_to_do() -> None:
    assert all(finding.remedy for finding in findings(PLAIN))
