"""The step kernels on a device: equal to their definitions, rows independent of all around them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from relight.kernels.canary import Trial, check, relative_error
from relight.kernels.codec import fp8_quantise, fp8_round
from relight.kernels.cuda_tools import VARIANTS
from relight.kernels.select import Selection
from relight.kernels.testing import assert_bits_equal
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials import experts_trial, linear_trials, tokens, trials
from relight.kernels.trials_engram import engram_trials
from relight.kernels.trials_rounded import assert_input_comes_rounded
from relight.kernels.trials_small import small_trials

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 40)


@pytest.fixture(scope="module")
def tools(device_tools: Toolbox) -> Toolbox:
    return device_tools


def named(some: Sequence[Trial]) -> dict[str, Trial]:
    found = {f"{one.variant.op} {one.variant.family} {one.shape}": one for one in some}
    assert len(found) == len(some), "two have one name"
    return found


def names() -> list[str]:
    """Of a form that has all trials: to list them takes no device and no memory."""
    tools = Toolbox(SimpleNamespace(arch="sm_90"), None)  # type: ignore[arg-type]
    return list(named(trials(tools, torch.device("meta"))))


@pytest.fixture(scope="module")
def all_trials(tools: Toolbox) -> dict[str, Trial]:
    torch.manual_seed(1)
    return named(trials(tools, torch.device("cuda")))


@pytest.fixture(params=names())
def trial(request: pytest.FixtureRequest, all_trials: dict[str, Trial]) -> Trial:
    if request.param not in all_trials:
        pytest.skip("not of this form")
    return all_trials[request.param]


def test_every_trial_of_the_device_is_run(all_trials: dict[str, Trial]) -> None:
    assert all_trials.keys() <= set(names())


def rows(trial: Trial, count: int) -> Tensor:
    x = trial.inputs()
    return torch.cat([x] * (count // len(x) + 1))[:count] * torch.rand(1, device=x.device).to(x)


def test_the_canary_finds_nothing(tools: Toolbox) -> None:
    found = check(Selection(VARIANTS), trials(tools, torch.device("cuda")))
    assert found.refused == ()


def test_every_width_is_near_its_definition(trial: Trial) -> None:
    for count in WIDTHS:
        x = rows(trial, count)
        found = trial.kernel(x)
        assert relative_error(found, trial.reference(x)) <= trial.tolerance, (trial.shape, count)


def test_a_row_has_the_same_bits_in_any_company_and_place(trial: Trial) -> None:
    x = trial.some(40)
    alone = torch.cat([trial.kernel(x[at : at + 1]) for at in range(40)])
    ascending = torch.arange(40, device=x.device)
    drawn = torch.randperm(40, device=x.device)
    for order in (ascending, drawn, ascending.flip(0)):
        chosen = [order[:count] for count in range(1, 18)]
        found = torch.cat([trial.kernel(x[some]) for some in chosen])
        assert_bits_equal(found, alone[torch.cat(chosen)], trial.shape)


def test_a_neighbour_of_nan_stays_healthy(trial: Trial) -> None:
    x = trial.inputs()
    wanted = trial.kernel(x)
    for bad in (float("nan"), float("inf")):
        sick = x.clone()
        sick[1::3].flatten(1)[:, 5] = bad
        found = trial.kernel(sick)
        healthy = [at for at in range(len(x)) if at % 3 != 1]
        assert_bits_equal(found[healthy], wanted[healthy], trial.shape)
        if found[1::3].isfinite().all():  # a format whose scales are finite takes the largest
            assert trial.reference(sick)[1::3].isfinite().all(), trial.shape


@pytest.fixture
def poisoned(monkeypatch) -> None:
    """Memory that torch gives out holds NaN."""
    empty, new_empty = torch.empty, Tensor.new_empty

    def fill(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments, **named):
            x = make(*arguments, **named)
            return x.fill_(float("nan") if x.is_floating_point() else 127)

        return made

    monkeypatch.setattr(torch, "empty", fill(empty))
    monkeypatch.setattr(Tensor, "new_empty", fill(new_empty))


@pytest.mark.usefixtures("poisoned")
def test_every_output_is_written(trial: Trial) -> None:
    for count in (1, 9, 17):
        assert trial.kernel(rows(trial, count)).isfinite().all(), (trial.shape, count)


def test_no_rows_give_no_rows(trial: Trial) -> None:
    assert trial.kernel(trial.inputs()[:0]).shape[0] == 0


@pytest.mark.parametrize("block", [128, 32])
def test_tokens_are_rounded_to_the_bytes_of_the_definition(tools: Toolbox, block: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = tokens(33, 5120, torch.device("cuda"), dtype)
        x[3] *= 1e-9
        x[5, 128:256] = 0
        codes, scales = tools.quantise(x, block)
        wanted, bytes_of = fp8_quantise(x, block)
        assert_bits_equal(codes & 127, wanted & 127, "codes")
        assert_bits_equal(scales, torch.exp2(bytes_of.float() - 127), "scales")
        values, exact = tools.round(x, block).float(), fp8_round(x, block)
        assert_bits_equal(values + 0.0, exact + 0.0, "values")  # a zero has no sign


@pytest.mark.parametrize("block", [128, 32])
def test_what_products_read_comes_rounded_as_they_would_round_it(
    tools: Toolbox, block: int
) -> None:
    assert_input_comes_rounded(tools, torch.device("cuda"), block)


def test_a_recorded_graph_gives_the_same_bits(tools: Toolbox) -> None:
    device = torch.device("cuda")
    products = linear_trials(tools, device, lengths={128: (4096,), 32: (5120,)})
    some = (*products[:2], experts_trial(tools, device), *engram_trials(tools, device))
    for trial in (*some, *small_trials(tools, device)):
        x = trial.inputs()
        wanted = trial.kernel(x)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            trial.kernel(x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = trial.kernel(x)
            found.zero_()
            graph.replay()
            stream.synchronize()
        assert_bits_equal(found, wanted, trial.shape)


def test_more_outputs_than_32_bits_count(tools: Toolbox) -> None:
    """129,280 outputs of 17,000 rows are 2.2 * 10^9 elements: 8.8 GB."""
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of the device")
    if not tools.form.bf16:
        pytest.skip("bf16 tokens")
    trial = linear_trials(tools, torch.device("cuda"), outputs=129_280, lengths={})[-1]
    x = tokens(9, 4096, torch.device("cuda"), torch.bfloat16)
    wide = x.repeat(17_000 // 9 + 1, 1)
    found = trial.kernel(wide)
    assert_bits_equal(found[-9:], trial.kernel(x))
    del found


def test_a_bad_kernel_would_be_refused(trial: Trial) -> None:
    bad = replace(trial, kernel=lambda x: trial.kernel(x) * 1.05)
    assert check(Selection((trial.variant,)), [bad]).chosen == ()
