"""The host puts a step on the device without waiting for anything there.

Shown twice. On torch's meta device tensors have no values, so whatever must be looked at raises. On
a CUDA device torch raises at each call that waits for it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from relight.base.checkpoint import open_model
from relight.base.numerics import OFFICIAL_BF16
from relight.cache.pool import Pool
from relight.engine.graphs import Shape
from relight.engine.plan import Mask, StepPlan
from relight.engine.runner import Runner
from relight.kernels import codec
from relight.kernels.build import Kernel
from relight.kernels.cuda_tools import ALL, VARIANTS, supported, toolbox
from relight.kernels.forms import form_of
from relight.kernels.record import recorder
from relight.kernels.row_ops import NO_KERNELS, Ops, chosen_ops
from relight.kernels.select import Selection
from relight.kernels.testing import tells_waits, waits
from relight.model.network import load, network
from tests.engine.real import CONTEXT, VOCAB, RealEngine, words, write_checkpoint
from tests.engine.tape import record_all
from tests.model.harness import GOLDEN

SAMPLINGS: list[dict[str, object]] = [
    {},
    {"temperature": 0.0, "frequency_penalty": 1.2, "logprobs": 3},
    {"top_p": 0.9, "top_k": 50, "min_p": 0.01},
    {"repetition_penalty": 1.8, "logit_bias": ((5, 2.0), (9, -4.0))},
    {"stop_token_ids": tuple(range(160)), "min_tokens": 20},
    {"presence_penalty": 1.5, "top_k": 3},
]
SLOTS, PAGES, RECORDS = 4, 24, 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def plans(checkpoint: Path) -> list[StepPlan]:
    """Of a run that has all that a plan may have: shallow and deep rows of both roles together,
    records taken and restored, and every kind of draw."""
    engine = RealEngine(
        checkpoint, "cpu", pages=PAGES, slots=SLOTS, records=RECORDS, max_step_tokens=100
    )
    first = words("no waiting", 135)
    engine.ask(first, max_tokens=1)
    engine.add([*first[:130], *words("branch", 4)], max_tokens=3)
    for number, sampling in enumerate(SAMPLINGS):
        engine.add(words(number, 1 + 6 * number), max_tokens=2 + number, **sampling)
    engine.run()
    found = engine.plans
    assert {len(plan.made) for plan in found} >= {0, SLOTS}
    assert any(plan.made and plan.given for plan in found)
    assert any(len(plan.given) > 1 for plan in found)
    assert any(plan.restores for plan in found)
    assert any(plan.takes for plan in found)
    assert any(plan.counts for plan in found)
    return found


def features(plan: StepPlan) -> set[object]:
    parts = ("made", "given", "restores", "takes", "counts", "lengths", "pages")
    found: set[object] = {name for name in parts if getattr(plan, name)}
    if plan.made and plan.given:
        found.add("both roles")
    found |= {("rows", len(rows) > 1) for rows in (plan.made, plan.given)}
    for draw in plan.draws:
        by = draw.sampling
        found |= {name for name in ("penalised", "logit_bias", "top_k") if getattr(by, name)}
        found |= {("scored", by.logprobs), ("banned", draw.made < by.min_tokens)}
    return found


def different(plans: list[StepPlan]) -> list[StepPlan]:
    """Few that have all that there is, where no step hangs on the values that another left."""
    chosen: list[StepPlan] = []
    seen: set[object] = set()
    for plan in sorted(plans, key=lambda plan: -len(features(plan))):
        if not features(plan) <= seen:
            seen |= features(plan)
            chosen.append(plan)
    return chosen


def masked(plan: StepPlan) -> StepPlan:
    mask = Mask(b"\xff" * (VOCAB // 8), after=5, otherwise=b"\x0f" * (VOCAB // 8))
    draws = tuple(msgspec.structs.replace(draw, mask=mask) for draw in plan.draws)
    return msgspec.structs.replace(plan, draws=draws)


@pytest.fixture(params=["v4", pytest.param("v41", marks=pytest.mark.slow)])
def model_name(request: pytest.FixtureRequest) -> str:
    """Both have the same vocabulary, so the same plans will do."""
    name: str = request.param
    return name


def runner_on(device: torch.device, model_name: str, ops: Ops = NO_KERNELS) -> Runner:
    model = open_model(GOLDEN / model_name / "checkpoint")
    pool = Pool(
        model.config,
        OFFICIAL_BF16,
        device,
        num_pages=PAGES + 1,
        num_slots=SLOTS,
        num_records=RECORDS,
    )
    net = network(model.config, replace(load(model, device), ops=ops), OFFICIAL_BF16)
    return Runner(net, pool, max_context=CONTEXT)


class Uploads(TorchDispatchMode):
    """Copies from the host that it would wait for, by the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []
        self.num_uploads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("copy_", "to", "_to_copy"):
            source = args[1] if name == "copy_" else args[0]
            if source.device.type == "cpu" and out.device.type != "cpu":
                self.num_uploads += 1
                if not ((kwargs or {}).get("non_blocking") or (name == "copy_" and args[2:])):
                    self.waiting.append(str(func))
        return out


class Assignments(TorchFunctionMode):
    """Numbers that are assigned to places or to one element, by the index. Of a CUDA tensor torch
    makes a tensor of the host of such a number, copies it, and waits for the copy."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            x, index, _ = args
            parts = index if isinstance(index, tuple) else (index,)
            if any(isinstance(part, Tensor) for part in parts) or not x[index].dim():
                self.waiting.append(f"{tuple(x.shape)} at {index}")
        return func(*args, **(kwargs or {}))


def make_tables() -> None:
    """They are made once for a device."""
    for table in (codec.e4m3_decode, codec.e8m0_decode, codec.e2m1_decode):
        table(torch.zeros(1, dtype=torch.uint8, device="meta"))


def test_a_step_needs_no_value_from_the_device(
    model_name: str, plans: list[StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under grammars, too, whose masks hang on a token that is not known yet."""
    runner = runner_on(torch.device("meta"), model_name)
    monkeypatch.setattr(runner, "_send", lambda sampled, guesses: None)
    make_tables()
    with Uploads() as uploads, Assignments() as assignments:
        for plan in (*different(plans), masked(plans[-1])):
            runner.launch(plan)
    assert uploads.num_uploads > 50
    assert not uploads.waiting
    assert not assignments.waiting


class Nothing:
    """Stands for a toolbox: its kernels do nothing."""

    form, side = form_of("sm_90"), None

    def __init__(self) -> None:
        self.launched: set[str] = set()

    def load(self, kernel: Kernel, threads: int, ring_bytes: int = 0) -> Callable[..., None]:
        return lambda grid, *arguments: self.launched.add(kernel.entry)

    def hand_over(self, x: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """Products are by definition here, and look for no codes."""
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        return codes, x.new_empty((len(x), x.shape[1] // block), dtype=torch.float32)


def test_what_goes_on_around_kernels_needs_no_value_either(
    model_name: str, plans: list[StepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = Nothing()
    ops = chosen_ops(tools, Selection(VARIANTS))  # type: ignore[arg-type]
    runner = runner_on(torch.device("meta"), model_name, ops)
    monkeypatch.setattr(runner, "_send", lambda sampled, guesses: None)
    make_tables()
    with Uploads() as uploads, Assignments() as assignments:
        for plan in different(plans):
            runner.launch(plan)
    assert not assignments.waiting
    assert tools.launched >= {
        "copy_rows",
        "index_topk",
        "attend_values",
        "attend_groups",
        "balance",
    }
    assert not uploads.waiting


@pytest.mark.parametrize("look", [Tensor.unique, Tensor.nonzero, Tensor.tolist, Tensor.any])
def test_a_look_at_a_value_is_noticed(look: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)meta"):
        bool(look(torch.ones(3, device="meta")))


@pytest.mark.parametrize(
    "index", [torch.tensor([1, 2]), (slice(None), torch.tensor([0])), (2, 1)], ids=str
)
def test_a_number_for_places_is_noticed(index: Any) -> None:
    x = torch.zeros((4, 3), device="meta")
    with Assignments() as assignments:
        x[:, 1] = 1.0
        x[0] = 1.0
        x[torch.tensor([1])] = x[:1]
        assert not assignments.waiting
        x[index] = 1.0
    assert len(assignments.waiting) == 1


@pytest.fixture(scope="module")
def kernels() -> Ops:
    """Those between products, of a CUDA device beside which nothing may be missing."""
    device, heard = torch.device("cuda"), list[str]()
    assert supported(device, heard.append).issuperset(ALL), heard
    tools = toolbox(device, heard.append)
    return chosen_ops(tools, Selection(VARIANTS))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("by", ["definitions", "kernels"])
def test_a_step_does_not_wait_for_the_device(
    device: str,
    model_name: str,
    plans: list[StepPlan],
    recorded: bool,
    by: str,
    request: pytest.FixtureRequest,
) -> None:
    if not tells_waits(device):
        pytest.skip("only CUDA tells when it waits")
    ops: Ops = request.getfixturevalue("kernels") if by == "kernels" else NO_KERNELS
    runner = runner_on(torch.device(device), model_name, ops)
    if recorded:
        source = recorder(torch.device(device))
        assert source is not None, f"{device} cannot record"
        record_all(runner, [Shape(rows, CONTEXT) for rows in (1, 2, 4)], source)
    for plan in plans:  # tables that live on the device are made once, and pinned memory is got
        runner.execute(plan)

    before = runner.graphs.num_replays if runner.graphs is not None else 0
    with waits(allowed=False):
        launched = [runner.launch(plan) for plan in plans]
        runner.launch(masked(plans[-1]))
    assert [len(runner.read(one)) for one in launched] == [len(plan.draws) for plan in plans]
    assert (runner.graphs is not None and runner.graphs.num_replays > before) == recorded
