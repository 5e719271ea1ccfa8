"""Test set-up for all rooms: seeds, options, golden files, devices. Knows no room."""

import hashlib
import pathlib
import random
import signal
from collections.abc import Callable, Iterator

import pytest

GOLDEN = pathlib.Path(__file__).parent / "tests" / "golden"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job is born so, and what it starts, too: tests of Ctrl-C would wait.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Some job runners start what they run with signals blocked, which children inherit as well.
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )
    parser.addoption(
        "--device", help="torch device of the gpu tests, instead of this machine's accelerator"
    )


def accelerator_name() -> str | None:
    """The torch device type of this machine's accelerator, None without one."""
    import torch

    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    return None if device is None else device.type


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = [item for item in items if "gpu" in item.keywords]
    if not gpu:
        return
    if config.getoption("--device") or accelerator_name():
        return
    for item in gpu:
        item.add_marker(pytest.mark.skip(reason="no accelerator that torch can use"))


@pytest.fixture(autouse=True)
def seeds(request: pytest.FixtureRequest) -> None:
    """Each test draws from a seed of its own name: the same alone, in any order, on any worker."""
    import sys

    seed = int.from_bytes(hashlib.sha256(request.node.nodeid.encode()).digest()[:4], "little")
    random.seed(seed)
    if "torch" in sys.modules:  # a test that never imports torch does not pay for it
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A test that leaves a signal handler behind fails, and not one that comes after it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    left = {n: signal.getsignal(n) for n in before if signal.getsignal(n) is not before[n]}
    for number in left:
        signal.signal(number, before[number])
    assert not left, f"signal handlers left behind: {left}"


@pytest.fixture(scope="session", params=["cpu", pytest.param("accelerator", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The torch device that a test runs on: every test that takes it runs on the CPU, and once
    more, marked gpu, on the accelerator. `--device NAME` puts another device in the accelerator's
    place."""
    if request.param == "cpu":
        return "cpu"
    name: str | None = request.config.getoption("--device") or accelerator_name()
    assert name is not None, "tests marked gpu are skipped without an accelerator"
    return name


@pytest.fixture(autouse=True)
def memory_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers share one accelerator: what a test of 2^31 elements took, torch would keep for the
    worker that ran it, and the others would find none."""
    yield
    if "gpu" in request.keywords:
        import torch

        if torch.accelerator.is_available():  # not where --device names another
            torch.accelerator.empty_cache()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares with tests/golden/<name>."""

    def check(name: str, got: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(got, encoding="utf-8")
        assert got == path.read_text(encoding="utf-8"), (
            f"{name} differs; if that is meant, rerun with --update-golden and review the diff"
        )

    return check
