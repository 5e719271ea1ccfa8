"""A NaN is named where it arises, and a run does not go on with one."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_ember_train import tiny_trainer
from training.finite import Watch, not_finite


def test_the_operation_that_makes_a_nan_is_named_first() -> None:
    watch = Watch()
    doubled = watch.over(lambda function: function)(double)
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with watch.looking() as found:
        (doubled(x).log() * torch.tensor([1.0, 0.0])).sum().backward()  # -inf is none, -inf * 0 is
    assert found[0].startswith("aten.mul.Tensor gave [1] NaN of [2] values from [0, 0] in [(2,), ")
    with watch.looking() as found:
        doubled(x / x)
    assert [line.split()[0] for line in found] == ["aten.div.Tensor", "compiled"]
    assert "double gave [1] NaN" in found[1]
    doubled(x / x)
    assert len(found) == 2  # nobody looks any more


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_parameters_that_are_not_finite_are_named() -> None:
    tensors = {"a": torch.ones(2), "b": torch.tensor([1.0, math.nan]), "c": torch.tensor(math.inf)}
    assert not_finite(tensors) == ["b", "c"]


def spoilt(function: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    """What a compiler with a fault makes of it."""

    def call(*args: Any) -> Any:
        out = function(*args)
        return out * math.nan if isinstance(out, torch.Tensor) else out

    return call


def test_a_run_that_fails_at_once_names_why_and_goes_on_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(tmp_path)
    trainer.network = trainer._network(trainer.watch.over(spoilt))
    batch = trainer.stream.next(0.0)
    trainer._one_step(batch, 0.0)
    assert not math.isfinite(float(trainer._sums[0]))
    trainer.save()
    assert not trainer._file().exists()  # nobody goes on from a NaN
    trainer._step_back(batch, 0.0)
    assert not not_finite(trainer.parameters)
    assert "compiled unit_rotate gave" in capsys.readouterr().out
    trainer._step_back(batch, 0.0)
    trainer._one_step(batch, 0.0)
    assert math.isfinite(float(trainer._sums[0]))
    with pytest.raises(RuntimeError, match="not finite from sound parameters"):
        trainer._step_back(batch, 0.0)


@pytest.mark.parametrize("compiler", ["sound", "spoilt"])
def test_code_that_a_compiler_spoils_is_not_used(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = lambda function, dynamic: function  # noqa: E731
    monkeypatch.setattr(torch, "compile", sound if compiler == "sound" else spoilt)
    trainer = tiny_trainer(tmp_path)
    plain = trainer.network._write
    trainer._compile()
    assert (trainer.network._write is plain) == (compiler == "spoilt")
    assert math.isfinite(trainer._first_losses()[0])
    assert all(tensor.grad is None for tensor in trainer.parameters.values())
