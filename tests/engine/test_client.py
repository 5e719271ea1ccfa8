import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import zmq

from relight.base.errors import (
    BadSetting,
    CannotFit,
    DeadlinePassed,
    RelightError,
    TooLong,
    Unavailable,
)
from relight.base.settings import Settings
from relight.base.types import EngineInfo, Request, SamplingParams
from relight.engine.client import LocalClient, ProcessClient
from relight.engine.wire import Fault

FAKE = str(Path(__file__).with_name("fake_engine.py"))
HERE = Path(__file__).parent


def request(id="r", length=5, max_tokens=20):
    prompt = tuple(number % 23 for number in range(length))
    return Request(id=id, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens))


async def collect(client, request):
    return [delta async for delta in client.generate(request)]


def tokens_of(deltas):
    return [token for delta in deltas for token in delta.tokens]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def engine(model="sound", *, settings=(), command=(sys.executable, FAKE), **options):
    """A client of a fake engine; no process and no file may be left of it."""
    client = ProcessClient(
        Settings(**{"model": model, "log_level": "error", **dict(settings)}),
        command=command,
        **options,
    )
    await client.start()
    pid, folder = client._process.pid, client._folder
    try:
        yield client
    finally:
        await client.aclose()
        assert not Path(f"/proc/{pid}").exists(), "a zombie has a folder there, too"
        assert not folder.exists()
        assert client.state() == "dead"


# -- a loop in this process


@pytest.fixture
def local(make_engine):
    simulated = make_engine(num_slots=2)
    info = EngineInfo(model="m", max_context=64, num_slots=2, num_pages=64, operator="o")
    return LocalClient(simulated.loop, info), simulated


def test_a_local_client_serves_many_requests_in_several_event_loops(local):
    client, simulated = local

    async def ask():
        return await asyncio.gather(
            *(collect(client, request(f"r{i}", 5 + i, max_tokens=8)) for i in range(5))
        )

    first, again = asyncio.run(ask()), asyncio.run(ask())
    assert [tokens_of(deltas) for deltas in first] == [tokens_of(deltas) for deltas in again]
    assert all(deltas[-1].finish == "length" for deltas in first)
    assert simulated.pool.num_held == 0
    assert client.state() == "idle"


def test_closing_a_local_answer_frees_its_pages(local):
    client, simulated = local

    async def leave():
        async with aclosing(client.generate(request(max_tokens=50))) as answer:
            await anext(answer)
        await until(lambda: simulated.loop.idle)

    asyncio.run(leave())
    assert simulated.pool.num_held == 0


def test_a_request_is_given_up_at_its_deadline_and_its_pages_are_free(local):
    client, simulated = local
    late = Request(
        id="late", prompt=(1, 2), sampling=SamplingParams(max_tokens=50), deadline_s=0.05
    )
    execute = simulated.runner.execute
    simulated.runner.execute = lambda plan: time.sleep(0.02) or execute(plan)

    async def ask():
        with pytest.raises(DeadlinePassed):
            await collect(client, late)
        await until(lambda: simulated.loop.idle)

    asyncio.run(ask())
    assert simulated.pool.num_held == 0


def test_a_local_refusal_comes_out_of_generate(local):
    with pytest.raises(TooLong):
        asyncio.run(collect(local[0], request(length=64)))
    assert local[0].state() == "idle"


def test_a_broken_loop_answers_and_refuses(local):
    client, simulated = local
    simulated.scheduler.plan = lambda now: 1 / 0
    (delta,) = asyncio.run(collect(client, request()))
    assert delta.finish == "error"
    assert "ZeroDivisionError" in delta.error
    assert client.state() == "dead"
    with pytest.raises(Unavailable):
        asyncio.run(collect(client, request()))


# -- an engine in a process of its own


def test_an_engine_loads_answers_many_and_leaves_nothing():
    async def run():
        progress = []
        async with engine(progress=lambda *told: progress.append(told)) as client:
            assert client.state() == "loading"
            with pytest.raises(Unavailable):
                _ = client.info
            with pytest.raises(Unavailable):
                await collect(client, request())
            info = await client.ready()
            assert (info.model, client.info) == ("sound", info)
            assert progress[-1] == (3, 3)
            answers = await asyncio.gather(
                *(collect(client, request(f"r{i}", 5 + i)) for i in range(8))
            )
            for i, deltas in enumerate(answers):
                assert tokens_of(deltas) == list(range(5 + i, 25 + i))
                assert deltas[-1].finish == "length"
            assert client.state() == "idle"
            assert (await client.stats()).generated_tokens == 160

    asyncio.run(run())


def test_a_refusal_crosses_the_process_as_the_same_error():
    async def run():
        async with engine() as client:
            await client.ready()
            with pytest.raises(TooLong, match="prompt is 4,096 tokens") as info:
                await collect(client, request(length=4096))
            assert info.value.param == "prompt"
            assert tokens_of(await collect(client, request(max_tokens=2))) == [5, 6]

    asyncio.run(run())


def test_every_error_survives_the_wire():
    for kind in (RelightError, *RelightError.__subclasses__()):
        error = Fault.of(kind("why", param="which")).error()
        assert (type(error), error.message, error.param) == (kind, "why", "which")


def test_closing_an_answer_frees_its_pages_in_the_process():
    async def run():
        async with engine() as client:
            await client.ready()
            async with aclosing(client.generate(request(max_tokens=4000))) as answer:
                await anext(answer)
                assert client._stats.pages_held
            await until(lambda: not client._stats.pages_held and not client._stats.running)
            assert client._stats.generated_tokens < 4000

    asyncio.run(run())


def test_a_storm_of_cancelled_requests_leaves_nothing_behind():
    async def run():
        async with engine() as client:
            await client.ready()

            async def one(number):
                try:
                    async with aclosing(
                        client.generate(request(f"r{number}", 5 + number, 200))
                    ) as answer:
                        for _ in range(number % 7):
                            await anext(answer)
                except RelightError:
                    pass  # the queue may be full

            await asyncio.gather(*(one(number) for number in range(60)))
            await until(lambda: not client._stats.running and not client._stats.waiting)
            assert client._stats.pages_held == 0
            assert tokens_of(await collect(client, request(max_tokens=2))) == [5, 6]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("too big", CannotFit, "the model does not fit"),
        ("broken", RelightError, "ValueError: no such thing"),
    ],
)
def test_why_an_engine_cannot_be_built_is_told(model, error, words):
    async def run():
        async with engine(model) as client:
            with pytest.raises(error, match=words):
                await client.ready()
            await until(lambda: client.state() == "dead")
            with pytest.raises(Unavailable):
                await collect(client, request())

    asyncio.run(run())


def test_an_engine_that_dies_answers_every_open_request():
    async def run():
        async with engine("dies") as client:
            await client.ready()
            answers = await asyncio.gather(*(collect(client, request(f"r{i}")) for i in range(6)))
            assert [deltas[-1].finish for deltas in answers] == ["error"] * 6
            assert answers[0][-1].error == "the engine died (signal 9)"
            assert client.state() == "dead"
            with pytest.raises(Unavailable, match="signal 9"):
                await collect(client, request())

    asyncio.run(run())


def test_a_failed_step_fails_its_requests_and_the_engine_goes_on():
    async def run():
        async with engine("fails") as client:
            await client.ready()
            deltas = await collect(client, request())
            assert (deltas[-1].finish, deltas[-1].error) == (
                "error",
                "step 5 failed: RuntimeError: the kernel failed",
            )
            assert tokens_of(await collect(client, request(max_tokens=2))) == [5, 6]

    asyncio.run(run())


def test_a_step_without_memory_fails_its_requests_and_the_engine_goes_on():
    async def run():
        async with engine("out of memory") as client:
            await client.ready()
            deltas = await collect(client, request())
            assert deltas[-1].error == "step 5 failed: MemoryError: no memory for 12 bytes"
            assert tokens_of(await collect(client, request(max_tokens=2))) == [5, 6]
            await until(lambda: not client._stats.pages_held)

    asyncio.run(run())


def test_a_log_on_a_full_disk_stops_no_answer():
    full = ("sh", "-c", 'exec "$0" "$@" 2>/dev/full', sys.executable, FAKE)

    async def run():
        async with engine("fails", settings={"log_level": "debug"}, command=full) as client:
            await client.ready()
            assert (await collect(client, request()))[-1].finish == "error"
            assert tokens_of(await collect(client, request(max_tokens=2))) == [5, 6]

    asyncio.run(run())


def test_a_connection_that_vanishes_ends_the_engine_and_answers_what_is_open():
    async def run():
        async with engine(stop_s=0.2) as client:
            await client.ready()
            answer = asyncio.create_task(collect(client, request(max_tokens=4000)))
            await until(lambda: client._stats.running)
            client._socket.close(linger=0)
            assert (await asyncio.wait_for(answer, 20))[-1].finish == "error"
            await until(lambda: client.state() == "dead")

    asyncio.run(run())


def test_a_second_signal_ends_an_engine_that_hangs():
    async def run():
        async with engine("hangs", stuck_s=0.3) as client:
            await client.ready()
            answer = asyncio.create_task(collect(client, request()))
            await until(lambda: client.state() == "stuck")
            for _ in range(2):
                os.kill(client._process.pid, signal.SIGTERM)
                await asyncio.sleep(0.3)
            assert (await answer)[-1].finish == "error"
            await until(lambda: client.state() == "dead")

    asyncio.run(run())


def test_an_engine_without_its_device_says_so_and_ends():
    async def run():
        async with engine("lost") as client:
            await client.ready()
            deltas = await collect(client, request())
            assert "the device is lost" in deltas[-1].error
            await until(lambda: client.state() == "dead")

    asyncio.run(run())


def test_an_engine_told_to_terminate_answers_and_ends():
    async def run():
        async with engine() as client:
            await client.ready()
            answer = asyncio.create_task(collect(client, request(max_tokens=4000)))
            await until(lambda: client._stats.running)
            os.kill(client._process.pid, signal.SIGTERM)
            deltas = await answer
            assert (deltas[-1].finish, deltas[-1].error) == (
                "error",
                "the engine was told to stop",
            )
            await until(lambda: client.state() == "dead")
            assert client._process.returncode == 0

    asyncio.run(run())


def test_closing_while_requests_run_or_weights_load_ends_both():
    async def run():
        async with engine() as client:
            await client.ready()
            answer = asyncio.create_task(collect(client, request(max_tokens=4000)))
            await until(lambda: client._stats.running)
        assert (await answer)[-1].finish == "error"
        async with engine("slow to load") as client:
            waiting = asyncio.create_task(client.ready())
            await asyncio.sleep(0.5)
        with pytest.raises(Unavailable):
            await waiting

    asyncio.run(run())


def test_a_start_that_is_cancelled_or_fails_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run():
        client = ProcessClient(Settings(model="sound"), command=(sys.executable, FAKE))
        start = asyncio.create_task(client.start())
        await asyncio.sleep(0)  # the folder is there, the process is not
        assert list(tmp_path.iterdir())
        start.cancel()
        await asyncio.wait({start})
        assert start.cancelled()
        with pytest.raises(FileNotFoundError):
            await ProcessClient(Settings(model="sound"), command=("/no/such/program",)).start()
        deep = tmp_path / ("x" * 110)  # the path of a socket has room for 107 bytes
        deep.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        with pytest.raises(BadSetting, match="TMPDIR"):
            await client.start()
        deep.rmdir()

    asyncio.run(run())
    assert not list(tmp_path.iterdir())


def full_disk(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_bind(self, address):
    raise zmq.ZMQError(errno.ENOSPC)


@pytest.mark.parametrize(
    ("where", "breaks"),
    [("tempfile.mkdtemp", full_disk), ("zmq.asyncio.Socket.bind", no_bind)],
    ids=["folder", "socket"],
)
def test_a_full_disk_under_the_socket_is_one_line_and_leaves_nothing(
    tmp_path, monkeypatch, where, breaks
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(where, breaks)

    async def run():
        with pytest.raises(BadSetting) as info:
            await ProcessClient(Settings(model="sound"), command=(sys.executable, FAKE)).start()
        return info.value.message

    message = asyncio.run(run())
    assert "No space left on device; free space there, or set the variable TMPDIR" in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


def test_an_engine_that_hangs_is_seen_and_can_be_ended(capfd):
    seen = ""

    def told():
        nonlocal seen
        seen += capfd.readouterr().err
        return "in launch" in seen

    async def run():
        async with engine("hangs", settings={"stuck_after": 1}, stop_s=0.2) as client:
            await client.ready()
            answer = asyncio.create_task(collect(client, request()))
            await until(lambda: client.state() == "stuck")
            await until(told)
        assert (await answer)[-1].finish == "error"

    asyncio.run(run())
    assert "stuck for 1 s in step 5: 1 made (slot 0: 1 at 9), 1 draws" in seen
    assert "time.sleep(1000)" in seen


PARENT = f"""
import asyncio, sys
sys.path.insert(0, {str(HERE)!r})
from relight.base.settings import Settings
from relight.engine.client import ProcessClient
async def main():
    client = ProcessClient(Settings(model="sound"), command=(sys.executable, {FAKE!r}))
    await client.start()
    await client.ready()
    print(client._process.pid, client._folder, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_an_engine_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    asyncio.run(until(lambda: not is_running(pid)))
    assert not Path(folder).exists()


@pytest.mark.parametrize("told", [b"", b"\x40", b"\x40\0\0\0\x81"])
def test_an_engine_whose_parent_ends_before_it_has_told_all_ends_without_a_word(told, tmp_path):
    worker = [sys.executable, "-m", "relight.engine.worker", f"ipc://{tmp_path}/socket"]
    ended = subprocess.run(worker, input=told, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
