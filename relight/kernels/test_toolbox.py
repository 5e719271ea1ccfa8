"""What is launched, with a launcher that only notes it: runs without a device."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from relight.kernels.build import Builder
from relight.kernels.codec import DenseWeight, Fp8Weight, StackedFp4
from relight.kernels.cubins import Cubin, CubinCache
from relight.kernels.device import make_current
from relight.kernels.experts import step as experts_step
from relight.kernels.launch import CudaLauncher, Long, NoLauncher, cuda_launcher
from relight.kernels.linear import step as linear_step
from relight.kernels.nvrtc import Compiled
from relight.kernels.ptxas import Usage
from relight.kernels.toolbox import Toolbox

CODE, BAD = b"\x7fELF", b"\x7fELF bad"
U8, BF16, F32 = torch.uint8, torch.bfloat16, torch.float32


class FakeNvrtc:
    name = "12.9"

    def check_architecture(self, arch: str) -> None:
        pass

    def compile(self, source, headers, arch, options) -> Compiled:
        return Compiled(b"code", "")


class Noting:
    """Loads nothing and notes each launch: (entry, threads, ring bytes, grid, arguments)."""

    def __init__(self) -> None:
        self.launched: list[tuple] = []
        self.loaded: list[str] = []

    def load(self, cubin, entry, *, threads, ring_bytes=0, early=False):
        self.loaded.append(entry)
        return lambda grid, *arguments: self.launched.append((entry, threads, grid, arguments))


def toolbox(tmp_path: Path, arch: str = "sm_90") -> tuple[Toolbox, Noting]:
    noting = Noting()
    builder = Builder(FakeNvrtc(), arch, CubinCache(tmp_path, pytest.fail))  # type: ignore
    return Toolbox(builder, noting), noting


def fp8_weight(rows: int, columns: int, block: int = 128) -> Fp8Weight:
    scale = torch.full((-(-rows // block), columns // block), 120, dtype=U8)
    return Fp8Weight(torch.zeros(rows, columns, dtype=U8), scale, block)


def test_a_step_is_two_launches_that_cover_all_rows_and_outputs(tmp_path: Path) -> None:
    for rows, tokens in ((1, 1), (8, 1), (9, 1), (16, 1), (33, 3)):
        tools, noting = toolbox(tmp_path)
        y = linear_step.StepLinear(tools).linear(
            torch.zeros(rows, 4096), fp8_weight(512, 4096), BF16
        )
        assert y.shape == (rows, 512)
        assert y.dtype == BF16
        (quant, _, blocks, _), (product, threads, grid, arguments) = noting.launched
        assert (quant, product, threads) == ("act_quant", "step_linear", 256)
        assert blocks == (rows * 32 // 4, 1)
        assert grid == (512 // 16, tokens)
        assert arguments[5:] == (rows, 512, 4096, 512)


def test_tokens_have_as_many_scales_as_weights_by_32(tmp_path: Path) -> None:
    x, w = torch.zeros(3, 1280), fp8_weight(512, 1280, 32)
    for arch in ("sm_90", "sm_75", "sm_70"):
        tools, noting = toolbox(tmp_path, arch)
        assert linear_step.StepLinear(tools).linear(x, w, BF16).shape == (3, 512)
        (rounding, _, blocks, _), (product, *_, arguments) = noting.launched
        assert (rounding, product, blocks) == ("act_quant", "step_linear", (8, 1))
        scales = arguments[3]
        assert scales is not None
        assert scales.shape == (3, 40)


def test_a_matrix_of_few_outputs_has_more_blocks_of_fewer_rows(tmp_path: Path) -> None:
    for outputs, blocks in ((4096, 128), (32768, 256)):
        tools, noting = toolbox(tmp_path, "sm_90")
        w = Fp8Weight(
            torch.zeros(outputs, 1280, dtype=torch.uint8),
            torch.zeros(outputs // 32, 40, dtype=torch.uint8),
            32,
        )
        linear_step.StepLinear(tools).linear(torch.zeros(3, 1280), w, BF16)
        assert noting.launched[1][2] == (blocks, 1)


def test_before_sm80_float32_tokens_are_two_rows_each(tmp_path: Path) -> None:
    head = DenseWeight(torch.zeros(512, 4096, dtype=BF16))
    for rows, tiles in ((1, 1), (4, 1), (5, 1), (9, 2)):
        tools, noting = toolbox(tmp_path, "sm_70")
        fast = linear_step.StepLinear(tools)
        assert fast.linear(torch.zeros(rows, 4096), head, F32).shape == (rows, 512)
        assert [entry for entry, *_ in noting.launched] == ["split", "step_linear", "join"]
        _, _, grid, arguments = noting.launched[1]
        assert grid == (512 // 16, tiles)
        assert arguments[5] == 2 * rows
        y = fast.grouped(torch.zeros(rows, 4, 4096), fp8_weight(512, 4096), F32)
        assert (y.shape, y.dtype) == ((rows, 4, 128), F32)
        assert noting.launched[3][2] == (4 * rows, 1)


def test_no_rows_launch_nothing(tmp_path: Path) -> None:
    tools, noting = toolbox(tmp_path)
    fast = linear_step.StepLinear(tools)
    assert fast.linear(torch.zeros(0, 4096), fp8_weight(512, 4096), BF16).shape == (0, 512)
    x = torch.zeros(0, 2, 4096, dtype=BF16)
    assert fast.grouped(x, fp8_weight(256, 4096), BF16).shape == (0, 2, 128)
    assert noting.launched == []


def test_a_kernel_is_loaded_once(tmp_path: Path) -> None:
    tools, noting = toolbox(tmp_path)
    fast = linear_step.StepLinear(tools)
    for rows in (1, 5, 8):
        fast.linear(torch.zeros(rows, 4096), fp8_weight(512, 4096), BF16)
    assert sorted(noting.loaded) == ["act_quant", "step_linear"]


def test_groups_read_their_own_columns(tmp_path: Path) -> None:
    tools, noting = toolbox(tmp_path)
    x = torch.zeros(3, 8, 4096, dtype=BF16)
    y = linear_step.StepLinear(tools).grouped(x, fp8_weight(1024, 4096), BF16)
    assert y.shape == (3, 8, 128)
    ((_, _, grid, arguments),) = noting.launched
    assert grid == (1024 // 32, 1)
    assert arguments[3] is None  # bf16 tokens have no scales
    assert arguments[5:] == (3, 1024, 8 * 4096, 128)


def test_which_weights_go_through_is_said() -> None:
    good = fp8_weight(512, 4096)
    assert linear_step.objection(good) == ""
    assert linear_step.objection(fp8_weight(512, 1536)) == ""
    assert "blocks are of 64" in linear_step.objection(fp8_weight(512, 4096, 64))
    assert "1600 values" in linear_step.objection(fp8_weight(512, 1600))
    fine = fp8_weight(512, 1280, 32)
    assert linear_step.objection(fine) == ""
    fine.scale[3, 5] = 135
    assert "scales above 2^7" in linear_step.objection(fine)
    for value in (-255.0, float("nan"), float("inf")):
        large = DenseWeight(torch.full((16, 4096), value, dtype=BF16))
        assert "NaN or values of 255" in linear_step.objection(large)
    assert "neither" in linear_step.objection(DenseWeight(torch.zeros(16, 4096)))
    assert linear_step.objection(DenseWeight(torch.zeros(16, 4096, dtype=BF16))) == ""
    shifted = torch.zeros(512 * 4096 + 1, dtype=U8)[1:].view(512, 4096)
    assert "16 bytes" in linear_step.objection(Fp8Weight(shifted, good.scale, 128))
    good.data[3, 5] = 0xFF
    assert "NaN" in linear_step.objection(good)


def test_calls_that_are_not_for_the_kernels_are_left(tmp_path: Path) -> None:
    fast = linear_step.StepLinear(toolbox(tmp_path)[0])
    old = linear_step.StepLinear(toolbox(tmp_path, "sm_70")[0])
    x, w = torch.zeros(1, 4096), fp8_weight(512, 4096)
    head = DenseWeight(torch.zeros(512, 4096, dtype=BF16))
    assert fast.takes(x, w, quantised=True)
    assert old.takes(x, w, quantised=True)
    assert not fast.takes(x, w, quantised=False)
    assert not fast.takes(x, fp8_weight(24, 4096), quantised=True)
    assert fast.takes(x.to(BF16), head, quantised=False)
    assert not fast.takes(x, head, quantised=False)
    assert old.takes(x, head, quantised=False)
    groups = x.view(1, 1, 4096)
    assert fast.takes_groups(groups.to(BF16), w, BF16)
    assert old.takes_groups(groups, w, F32)
    assert not fast.takes_groups(groups, w, F32)
    assert not old.takes_groups(groups.to(BF16), w, BF16)


def stack(experts: int, rows: int, columns: int) -> StackedFp4:
    data = torch.zeros(experts, rows, columns // 2, dtype=U8)
    return StackedFp4(data, torch.full((experts, rows, columns // 32), 120, dtype=U8))


def test_experts_round_rows_once_and_are_three_launches_for_each_sixteen(tmp_path: Path) -> None:
    tools, noting = toolbox(tmp_path)
    stacks = stack(4, 2048, 4096), stack(4, 2048, 4096), stack(4, 4096, 2048)
    assert experts_step.objection(*stacks) == ""
    ids = torch.tensor([[0, 3]]).expand(18, 2)
    route = torch.ones(18, 2)
    y = experts_step.StepExperts(tools).experts(
        torch.zeros(18, 4096), ids, route, *stacks, 10.0, BF16
    )
    assert y.shape == (18, 4096)
    assert y.dtype == F32
    entries = [entry for entry, *_ in noting.launched]
    few = ["step_gate_up", "step_down"]
    assert entries == ["act_quant", *few, *few, "slot_sum"]
    _, _, grid, arguments = noting.launched[1]
    assert grid == (2048 // 16 // 4, 32)
    assert arguments[-5:] == (32, 2, 2048, 4, 10.0)
    _, _, grid, arguments = noting.launched[4]
    assert grid == (4096 // 32 // 4, 4)
    assert arguments[-3:] == (4, 4096, 4)


def test_experts_of_another_form_are_refused_by_reason() -> None:
    up, down = stack(2, 2048, 4096), stack(2, 4096, 2048)
    assert "64 values" in experts_step.objection(stack(2, 32, 64), up, down)
    fine = [StackedFp4(w.data, w.scale, 64) for w in (up, up, down)]
    assert "blocks of 64, not one of (128, 32)" in experts_step.objection(*fine)
    apart = StackedFp4(up.data, torch.zeros(*up.scale.shape, 2, dtype=U8)[..., 0])
    assert "not in one piece" in experts_step.objection(apart, up, down)
    up.scale[1, 2, 3] = 255
    assert "NaN" in experts_step.objection(up, up, down)


class FakeConfig(dict):
    programmatic_stream_serialization = False


class OldConfig(dict):
    """Before cuda-core 1.2."""


class FakeCore:
    """Stands for cuda.core: notes what it is given."""

    def __init__(self, config: type = FakeConfig) -> None:
        self.launched: list[tuple] = []
        self.given: list[tuple[str, bytes]] = []
        self.wrapped: list[int] = []
        self.Device = lambda index: SimpleNamespace(set_current=lambda: None, device_id=index)
        self.LaunchConfig = config
        self.Stream = SimpleNamespace(from_handle=self._wrap)
        self.ObjectCode = SimpleNamespace(
            from_cubin=lambda code: self._load("cubin", code),
            from_ptx=lambda code: self._load("ptx", code),
        )

    def _load(self, kind: str, code: bytes):
        self.given.append((kind, code))
        if code == BAD:
            raise RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
        return SimpleNamespace(get_kernel=lambda entry: SimpleNamespace(handle=entry))

    def _wrap(self, address: int) -> str:
        self.wrapped.append(address)
        return f"stream at {address}"

    def launch(self, stream, config, kernel, *arguments) -> None:
        self.launched.append((stream, config, kernel.handle, arguments))


class FakeDriver:
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUdevice = staticmethod(lambda index: index)

    def __init__(self, code: int = 0) -> None:
        self.code, self.asked = code, []

    def cuKernelSetAttribute(self, *arguments):
        self.asked.append(arguments)
        return (self.code,)


def test_a_launch_goes_to_the_stream_that_torch_has_then() -> None:
    core, current = FakeCore(), [7]
    launcher = CudaLauncher(0, lambda: current[0], core, FakeDriver())
    launch = launcher.load(Cubin(CODE, Usage()), "entry", threads=256, early=True)
    x = torch.zeros(4)
    launch((3, 2), x, 5, 0.5, None, Long(2**63 + 5))
    current[0] = 9
    launch((1, 1))
    current[0] = 7
    launch((3, 2))
    (stream, config, entry, arguments), (later, *_), (again, same, *_) = core.launched
    assert (stream, later, entry) == ("stream at 7", "stream at 9", "entry")
    assert (again, core.wrapped) == (stream, [7, 9])
    assert same is config
    assert config == {
        "grid": (3, 2, 1),
        "block": (256, 1, 1),
        "shmem_size": 0,
        "programmatic_stream_serialization": True,
    }
    assert arguments[0] == x.data_ptr()
    assert [argument.value for argument in arguments[1:3]] == [5, 0.5]
    assert arguments[3] == 0
    assert arguments[4].value % 2**64 == 2**63 + 5


@pytest.mark.parametrize(("early", "config"), [(False, FakeConfig), (True, OldConfig)])
def test_a_kernel_begins_early_only_where_that_is_meant_and_known(early: bool, config) -> None:
    core = FakeCore(config)
    launcher = CudaLauncher(0, lambda: 7, core, FakeDriver())
    launcher.load(Cubin(CODE, Usage()), "entry", threads=32, early=early)((1, 1))
    assert "programmatic_stream_serialization" not in core.launched[0][1]


def test_a_number_beyond_32_bits_is_not_cut() -> None:
    launcher = CudaLauncher(0, lambda: 7, FakeCore(), FakeDriver())
    launch = launcher.load(Cubin(CODE, Usage()), "entry", threads=32)
    with pytest.raises(AssertionError, match="2147483648 is no number of 32 bits"):
        launch((1, 1), 2**31)


def test_what_is_no_cubin_is_given_to_the_driver_as_ptx() -> None:
    core = FakeCore()
    launcher = CudaLauncher(0, lambda: 0, core, FakeDriver())
    for code in (CODE, b"// PTX"):
        launcher.load(Cubin(code, Usage()), "entry", threads=32)
    assert core.given == [("cubin", CODE), ("ptx", b"// PTX")]


def test_shared_memory_of_a_launch_is_asked_for_and_a_refusal_is_named() -> None:
    """However little, and whatever is known of what the kernel has by itself."""
    driver = FakeDriver()
    launcher = CudaLauncher(1, lambda: 0, FakeCore(), driver)
    launcher.load(Cubin(CODE, Usage()), "small", threads=32, ring_bytes=1024)
    launcher.load(Cubin(CODE, Usage(shared_bytes=64)), "large", threads=32, ring_bytes=65536)
    launcher.load(Cubin(b"// PTX", Usage()), "who knows", threads=32, ring_bytes=1024)
    launcher.load(Cubin(b"// PTX", Usage()), "nothing", threads=32)
    assert driver.asked == [
        (8, 1024, "small", 1),
        (8, 65536, "large", 1),
        (8, 1024, "who knows", 1),
    ]
    driver.code = 1
    with pytest.raises(NoLauncher, match="65,536 bytes of shared memory"):
        launcher.load(Cubin(CODE, Usage()), "large", threads=32, ring_bytes=65536)


def test_a_driver_that_refuses_the_code_is_named_with_the_remedy() -> None:
    launcher = CudaLauncher(0, lambda: 0, FakeCore(), FakeDriver())
    with pytest.raises(NoLauncher, match=r"UNSUPPORTED_PTX.*update the driver.*reference"):
        launcher.load(Cubin(BAD, Usage()), "entry", threads=32)


def test_without_cuda_core_one_line_says_what_to_do(monkeypatch) -> None:
    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("relight.kernels.launch.importlib.import_module", missing)
    with pytest.raises(NoLauncher, match=r"pip install 'relight\[cuda\]'"):
        cuda_launcher(torch.device("cuda", 0))


def test_the_thread_that_launches_has_the_device_current(monkeypatch) -> None:
    """In a new thread torch has the first device current, whatever the others have."""
    made: list[torch.device] = []
    monkeypatch.setattr("relight.kernels.device.torch.cuda.set_device", made.append)
    for name in ("cpu", "cuda", "cuda:1"):
        make_current(torch.device(name))
    assert made == [torch.device("cuda:1")]
