"""Work beside other work: who waits for whom, and on a device that nothing else changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor

from relight.kernels.record import recorder
from relight.kernels.streams import Branches, SideStream, side_stream
from relight.kernels.testing import assert_bits_equal

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass
class Stream:
    name: str
    log: list[str]

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        return self.name

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


@dataclass
class Cuda:
    """Stands for torch.cuda, and notes who waits and on which stream work is put."""

    log: list[str] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.current = Stream("main", self.log)

    def Stream(self, device: torch.device) -> Stream:
        self.made += 1
        return Stream(f"side {self.made}", self.log)

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, other: Stream) -> Iterator[None]:
        before, self.current = self.current, other
        try:
            yield
        finally:
            self.current = before

    def work(self, name: str) -> str:
        self.log.append(f"{name} on {self.current.name}")
        return name


def test_a_side_waits_for_what_was_before_and_is_waited_for_by_who_joins() -> None:
    cuda = Cuda()
    side = SideStream(CUDA, cuda)
    for number in (1, 2):
        later = side.begin(lambda: cuda.work("beside"))
        cuda.work("here")
        assert later.join() == later.join() == "beside"
        cuda.work(f"behind {number}")
    turn = ["side 1 waits for main", "beside on side 1", "here on main", "main waits for side 1"]
    assert cuda.log == [*turn, "behind 1 on main", *turn, "behind 2 on main"]


def test_branches_end_with_their_block_and_those_without_a_stream_at_once() -> None:
    cuda = Cuda()
    side = SideStream(CUDA, cuda)
    with Branches({"one": side, "two": side.another()}) as beside:
        found = [beside.begin(name, partial(cuda.work, f"{name}")) for name in ("one", "two", None)]
        assert found[0]() == "one"
        cuda.work("here")
    assert [each() for each in found] == ["one", "two", "None"]
    assert cuda.log == [
        *("side 1 waits for main", "one on side 1", "side 2 waits for main", "two on side 2"),
        *("None on main", "main waits for side 1", "here on main", "main waits for side 2"),
    ]


@pytest.mark.parametrize("bad", ["beside", "here"])
def test_what_fails_is_joined_all_the_same(bad: str) -> None:
    """Else what the side still reads would be given away."""
    cuda = Cuda()

    def work(name: str) -> str:
        cuda.work(name)
        if name == bad:
            raise RuntimeError(name)
        return name

    def both() -> None:
        with Branches({"it": SideStream(CUDA, cuda)}) as beside:
            beside.begin("it", lambda: work("beside"))
            work("here")

    with pytest.raises(RuntimeError, match=bad):
        both()
    assert cuda.log[0] == "side 1 waits for main"
    assert cuda.log[-1] == "main waits for side 1"
    assert cuda.current.name == "main"


def test_on_whatever_stream_the_caller_is() -> None:
    cuda = Cuda()
    side, recording = SideStream(CUDA, cuda), cuda.Stream(CUDA)
    with cuda.stream(recording):
        side.begin(lambda: None).join()
    assert cuda.log == ["side 1 waits for side 2", "side 2 waits for side 1"]


def test_a_processor_does_one_thing_at_a_time() -> None:
    assert side_stream(CPU) is None


def chain(x: Tensor, side: SideStream | None) -> Tensor:
    """Forty turns whose memory comes back again and again, as layers have them."""
    for _ in range(40):

        def beside(x: Tensor = x) -> Tensor:
            y = x
            for _ in range(6):
                y = (y * 1.5).sin() + x
            return y

        def here(x: Tensor = x) -> Tensor:
            return (x.cos() * 0.5).abs() - 0.25

        if side is None:
            first, second = beside(), here()
        else:
            later = side.begin(beside)
            second = here()
            first = later.join()
        x = (first + second).tanh()
    return x


@pytest.mark.gpu
def test_a_device_computes_the_same_beside_recorded_or_not() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    source, side = recorder(CUDA), side_stream(CUDA)
    assert source is not None
    assert side is not None
    for size in (1 << 10, 1 << 22):
        x, out = torch.randn(size, device=CUDA), torch.empty(size, device=CUDA)
        wanted = chain(x, None)
        assert_bits_equal(chain(x, side), wanted)
        replay = source.record(lambda x=x, out=out: out.copy_(chain(x, side)))
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            wanted = chain(x, None)
            out.zero_()
            replay()
            assert_bits_equal(out, wanted)
