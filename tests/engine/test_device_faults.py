"""What becomes of requests when an op of the real model raises: they end with the reason, and the
engine goes on if its device does."""

from pathlib import Path

import pytest
import torch

from relight.base.errors import Unavailable
from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.engine import runner as runner_module
from relight.engine.assemble import assemble
from relight.kernels.device import answers
from tests.engine.real import words, write_checkpoint

FAULTS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: device-side assert triggered\nand much more"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(params=["on", "off"])
def loop(checkpoint: Path, request: pytest.FixtureRequest):
    settings = Settings(
        model=str(checkpoint), device="cpu", num_slots=3, max_context=512, overlap=request.param
    )
    return assemble(settings, lambda done, total: None)[0]


def request(number: int) -> Request:
    sampling = SamplingParams(max_tokens=4, seed=number)
    return Request(id=f"r{number}", prompt=tuple(words(number, 9)), sampling=sampling)


def run(loop) -> dict[str, tuple[list[int], str | None, str | None]]:
    found: dict[str, tuple[list[int], str | None, str | None]] = {}
    while not loop.idle:
        for delta in loop.step():
            tokens, *_ = found.get(delta.id, ([],))
            found[delta.id] = ([*tokens, *delta.tokens], delta.finish, delta.error)
    return found


def break_at(loop, monkeypatch: pytest.MonkeyPatch, number: int, fault: Exception) -> None:
    """The forward pass of that number raises."""
    model = loop._steps._runner.model
    forward, passes = model.forward, iter(range(1000))

    def breaking(*args):
        if next(passes) == number:
            raise fault
        return forward(*args)

    monkeypatch.setattr(model, "forward", breaking)


@pytest.mark.parametrize("fault", FAULTS, ids=["memory", "kernel"])
def test_a_fault_in_a_step_ends_its_requests_and_no_others(loop, monkeypatch, fault) -> None:
    for number in range(2):
        loop.add(request(number))
    sound = run(loop)
    break_at(loop, monkeypatch, 2, fault)
    loop.add(request(0))
    (ended,) = run(loop).values()
    first_line = str(fault).splitlines()[0]
    assert ended[1] == "error"
    assert first_line in (ended[2] or "")
    assert loop.dead is None
    assert loop.stats().pages_held == 0
    for number in range(2):
        loop.add(request(number))
    assert run(loop) == sound


def test_a_device_that_computes_no_more_ends_all_requests_and_the_engine(
    loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "answers", lambda device: False)
    break_at(loop, monkeypatch, 2, FAULTS[1])
    for number in range(5):  # more than there are slots
        loop.add(request(number))
    ended = run(loop)
    assert {finish for _, finish, _ in ended.values()} == {"error"}
    assert len(ended) == 5
    reason = "the device is lost: RuntimeError: CUDA error: device-side assert triggered; start"
    assert loop.dead is not None
    assert loop.dead.startswith(reason)
    assert "\n" not in loop.dead
    with pytest.raises(Unavailable, match="the device is lost"):
        loop.add(request(9))


def test_a_device_is_asked_whether_it_computes(device: str, monkeypatch) -> None:
    assert answers(torch.device(device))

    def broken(*args, **kwargs):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch, "ones", broken)
    assert not answers(torch.device(device))
