"""What is chosen on machines of all kinds, and what is said of those that cannot: without a
device."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from relight.base.proven import PROVEN as PROVEN_ROWS
from relight.kernels import cuda_tools, device
from relight.kernels.canary import Trial, check
from relight.kernels.cuda_tools import LINEAR, VARIANTS, choose_kernels, select, supported
from relight.kernels.launch import NoLauncher
from relight.kernels.nvrtc import NoNvrtc, Nvrtc
from relight.kernels.select import Selection

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PROVEN = replace(LINEAR, proven=("sm_90",))
UNPROVEN = tuple(replace(one, proven=()) for one in VARIANTS if one != LINEAR)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with a GPU, NVRTC and cuda-core, as far as anybody asks."""
    found = SimpleNamespace(capability=(9, 0), no_nvrtc="", asked=0)

    def load(arch: str, library: Path | None) -> None:
        found.asked += 1
        if found.no_nvrtc:
            raise NoNvrtc(found.no_nvrtc)

    monkeypatch.setattr(device.torch.cuda, "get_device_capability", lambda _: found.capability)
    monkeypatch.setattr(cuda_tools, "load", load)
    monkeypatch.setattr(cuda_tools.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(cuda_tools, "toolbox", lambda *_: "kernels")
    return found


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tools, "VARIANTS", (PROVEN, *UNPROVEN))


def test_auto_takes_what_is_proven_and_says_nothing_of_the_rest(machine, proven, told) -> None:
    chosen = choose_kernels("auto", CUDA, told.append)
    assert chosen.selection.chosen == (PROVEN,)
    assert chosen.tools == "kernels"
    assert told == []


def test_auto_asks_for_nothing_where_nothing_is_proven(machine, told, monkeypatch) -> None:
    monkeypatch.setattr(cuda_tools, "VARIANTS", UNPROVEN)
    assert select("auto", CUDA, told.append).chosen == ()
    assert (machine.asked, told) == (0, [])


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 9), (10, 0)])
def test_auto_is_the_reference_on_architectures_that_no_run_was_on(
    machine, told, capability
) -> None:
    machine.capability = capability
    chosen = choose_kernels("auto", CUDA, told.append)
    assert (chosen.selection.chosen, chosen.tools) == ((), None)
    (text,) = told
    assert text.startswith("kernels for linear, experts, ")
    assert text.endswith("do not run: proven on sm_90 only (--kernels cuda takes it all the same)")
    assert choose_kernels("cuda", CUDA, told.append).selection.chosen == VARIANTS


@pytest.mark.parametrize("where", [CPU, torch.device("mps")])
def test_auto_is_the_reference_on_other_devices(machine, proven, told, where) -> None:
    chosen = choose_kernels("auto", where, told.append)
    assert (chosen.selection.chosen, chosen.tools, told) == ((), None, [])


def test_auto_without_nvrtc_says_so_once_and_is_the_reference(machine, proven, told) -> None:
    machine.no_nvrtc = "NVRTC was not found; install it by: pip"
    chosen = choose_kernels("auto", CUDA, told.append)
    assert (chosen.selection.chosen, chosen.tools) == ((), None)
    assert "install it by: pip; ops run their torch definitions" in told[0]
    assert "missing: NVRTC for it" in told[1]
    assert len(told) == 2


@pytest.mark.parametrize("wish", ["auto", "cuda"])
def test_a_device_older_than_volta_is_named(machine, proven, told, wish: str) -> None:
    machine.capability = (6, 1)
    assert choose_kernels(wish, CUDA, told.append).tools is None
    assert "the device is sm_61, and kernels need SM70 or later" in told[0]
    assert all("missing: SM70 or later" in text for text in told[1:])


def test_a_launcher_that_fails_leaves_the_reference(machine, proven, told, monkeypatch) -> None:
    def broken(*_):
        raise NoLauncher("cuda-core is too old; install it by: pip")

    monkeypatch.setattr(cuda_tools, "toolbox", broken)
    chosen = choose_kernels("auto", CUDA, told.append)
    assert chosen.selection == Selection()
    assert told == ["cuda-core is too old; install it by: pip; ops run their torch definitions"]


def test_what_is_called_proven_was_checked_on_a_device() -> None:
    """And is committed with its result."""
    proven = {(arch, one.op, one.family) for one in VARIANTS for arch in one.proven}
    assert proven == {(arch, *rows) for arch, all_rows in PROVEN_ROWS.items() for rows in all_rows}
    file = Path(__file__).parents[2] / "docs" / "gpu" / "step_kernels.json"
    checks = json.loads(file.read_text(encoding="utf-8"))["checks"] if proven else []
    good = {
        key: [one["good"] for one in checks if (one["form"], one["op"], one["family"]) == key]
        for key in proven
    }
    assert all(found and all(found) for found in good.values()), good


def test_the_folder_of_kernels_is_the_one_that_was_asked_for(
    machine, proven, told, tmp_path, monkeypatch
) -> None:
    given: list[Path | None] = []
    monkeypatch.setattr(cuda_tools, "toolbox", lambda device, tell, cache: given.append(cache))
    choose_kernels("cuda", CUDA, told.append, tmp_path)
    assert given == [tmp_path]


def test_all_is_there_where_it_is(machine, told) -> None:
    assert supported(CUDA, told.append) == {*cuda_tools.ALL, "sm_90"}
    assert supported(CPU, told.append) == set()


def test_a_device_newer_than_nvrtc_needs_a_later_one() -> None:
    old = object.__new__(Nvrtc)
    old.library, old.version, old.architectures = Path("lib"), (12, 6), (50, 70, 90)
    with pytest.raises(NoNvrtc, match=r"sm_50 to sm_90; a device as new needs a later one"):
        old.check_architecture("sm_120")


def test_a_kernel_that_the_driver_refuses_is_refused_by_name() -> None:
    """The driver sees PTX when a kernel is first launched, which is in its trial."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        raise NoLauncher("the driver refuses kernel step_linear; update the driver")

    trial = Trial(LINEAR, "FP8", lambda: torch.ones(2, 2), refused, lambda x: x, 1.0)
    (refusal,) = check(Selection((LINEAR,)), [trial]).refused
    assert str(refusal).startswith("linear (step) by cuda: FP8: it failed (NoLauncher: the driver")
    assert "update the driver" in str(refusal)
