"""Kernels at load: refused with the reason, tried, and given to weights. Runs without a device."""

from types import SimpleNamespace

import pytest
import torch

from relight.base.errors import BadSetting
from relight.engine import fast
from relight.engine.fast import chosen_kernels, give_kernels
from relight.kernels.canary import Trial
from relight.kernels.codec import DenseWeight, StackedFp4
from relight.kernels.cuda_tools import EXPERTS, GIVEN, HYPER, LINEAR, ROUTE, Chosen
from relight.kernels.experts import Experts
from relight.kernels.forms import form_of
from relight.kernels.select import Refusal, Selection, Variant

CPU = torch.device("cpu")
GIVEN_LINEAR, GIVEN_EXPERTS = (Variant(op, "prefill", "cuda", ()) for op in ("linear", "experts"))


def test_kernels_that_cannot_run_are_refused_before_weights_are_read() -> None:
    with pytest.raises(BadSetting) as caught:
        chosen_kernels("cuda", CPU)
    message = caught.value.message
    for part in ("kernels is 'cuda'", "missing: a CUDA device", "--kernels auto or reference"):
        assert part in message


def test_a_folder_for_kernels_is_refused_or_noted_where_none_are_compiled(caplog) -> None:
    with pytest.raises(BadSetting, match=r"kernel_cache is /x and kernels is reference.*leave one"):
        chosen_kernels("reference", CPU, "/x")
    assert chosen_kernels("auto", CPU, "/x").tools is None
    assert "kernel_cache /x has no effect: kernels auto compiles none on cpu" in caplog.text


def test_the_reference_asks_for_nothing() -> None:
    chosen = chosen_kernels("reference", CPU)
    assert chosen == Chosen(chosen.selection, None)
    weights = (DenseWeight(torch.zeros(16, 4096, dtype=torch.bfloat16)),)
    found, selection, notes = give_kernels(chosen, weights, CPU)
    assert found is weights
    assert (selection, notes) == (Selection(), ())


def test_further_weights_get_the_kernels_that_passed() -> None:
    """Those of a draft."""
    weights = (DenseWeight(torch.zeros(16, 4096, dtype=torch.bfloat16)),)
    chosen = Chosen(Selection((LINEAR,)), SimpleNamespace(side=None))  # type: ignore[arg-type]
    assert fast.bind_kernels(chosen, chosen.selection, weights)[0].made is not None
    assert fast.bind_kernels(chosen, Selection(), weights)[0].made is None
    assert fast.bind_kernels(Chosen(Selection(), None), Selection(), weights) is weights


def one_bad(tools: object, device: torch.device) -> list[Trial]:
    def trial(variant, kernel) -> Trial:
        return Trial(variant, "toy", lambda: torch.ones(2, 3), kernel, lambda x: x + 1, 1e-6)

    return [trial(LINEAR, lambda x: x + 1), trial(EXPERTS, lambda x: x + 2)]


def test_only_what_failed_its_trial_is_told(caplog) -> None:
    earlier = Refusal(EXPERTS, "not yet proven on a device")
    chosen = Chosen(Selection((LINEAR,), (earlier,)), SimpleNamespace(side=None))  # type: ignore[arg-type]
    _, selection, notes = give_kernels(chosen, (), CPU, one_bad)
    assert selection.refused == (earlier,)
    assert notes == ("kernels for generated tokens: no weight takes them",)
    assert "proven" not in caplog.text


def test_a_trial_that_takes_the_device_down_is_named(monkeypatch) -> None:
    monkeypatch.setattr(fast, "answers", lambda device: False)
    chosen = Chosen(Selection((LINEAR, EXPERTS)), SimpleNamespace(side=None))  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"no more after .*experts \(step\) by cuda.*start again"):
        give_kernels(chosen, (), CPU, one_bad)


def test_a_bad_kernel_is_refused_by_name_and_the_others_serve(caplog) -> None:
    chosen = Chosen(Selection((LINEAR, EXPERTS)), SimpleNamespace(side=None))  # type: ignore[arg-type]
    weights = (DenseWeight(torch.zeros(16, 4096, dtype=torch.bfloat16)), torch.zeros(3))
    (head, _), selection, notes = give_kernels(chosen, weights, CPU, one_bad)
    assert head.made is not None
    assert selection.chosen == (LINEAR,)
    assert "experts:reference " in str(selection)
    assert "linear:reference/cuda" in str(selection)
    assert notes[0].startswith("experts (step) by cuda: toy: its relative error is")
    assert notes[1] == "kernels for generated tokens: 1 weights of linear"
    assert "experts (step) by cuda" in caplog.text


def test_kernels_between_products_are_named() -> None:
    some = Selection((LINEAR, ROUTE, HYPER, GIVEN["route"]))
    _, _, notes = give_kernels(Chosen(some, SimpleNamespace(side=None)), (), CPU, lambda *_: [])  # type: ignore[arg-type]
    assert notes[-2:] == (
        "kernels between products for generated tokens: hyper, route",
        "kernels between products for prompts: route",
    )


def test_weights_with_kernels_for_prompts_are_named() -> None:
    zeros = (torch.zeros(2, *shape, dtype=torch.uint8) for shape in ((256, 128), (256, 8)))
    stack = StackedFp4(*zeros)
    tools = SimpleNamespace(side=None, form=form_of("sm_80"))
    chosen = Chosen(Selection((GIVEN_EXPERTS,)), tools)  # type: ignore[arg-type]
    weights = (Experts(stack, stack, stack),)
    (experts,), _, notes = give_kernels(chosen, weights, CPU, lambda tools, device: [])
    assert experts.given is not None
    assert experts.made is None
    assert notes[1] == "kernels for prompts: 1 weights of experts"


def test_products_of_prompts_have_kernels_of_their_own() -> None:
    tools = SimpleNamespace(side=None, form=form_of("sm_90"))
    chosen = Chosen(Selection((GIVEN_LINEAR,)), tools)  # type: ignore[arg-type]
    weights = (DenseWeight(torch.zeros(16, 192, dtype=torch.bfloat16)), torch.zeros(3))
    (head, _), selection, notes = give_kernels(chosen, weights, CPU, lambda tools, device: [])
    assert head.given is not None
    assert head.made is None
    assert notes[1] == "kernels for prompts: 1 weights of linear"
    assert "linear:cuda/reference" in str(selection)
