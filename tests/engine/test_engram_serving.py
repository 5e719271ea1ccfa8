"""An engine whose n-gram tables stay in the checkpoint: larger than the memory that it may use,
read row by row and counted, and no worse than a failed request when the disk fails."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relight.base.checkpoint import open_model
from relight.base.errors import CannotFit
from relight.base.types import TableReads
from relight.model import ngram_table, weights_v41
from tests.engine.real import RealEngine, assert_begins, assert_equal, words
from tests.model.tables import TABLES, MadeTable, write_tables_apart

ROW = 33
"""Bytes of a row: 32 values and a scale."""

ROOM = 4 << 30
"""Bytes of addresses beyond those in use: for threads and what torch allocates."""

PROMPT = words("engram", 150)


@contextmanager
def addresses(room: int) -> Iterator[None]:
    """The process gets so many bytes more and none beyond, mapped or not."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 119 GB on a disk of which they take next to nothing."""
    return write_tables_apart(tmp_path_factory.mktemp("huge"), 300_000_000)


def test_tables_larger_than_the_memory_that_it_may_use_are_served(
    huge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is that of an engine whose rows are computed, and nothing but those is read, each
    once a step."""
    tensors = {n: t for n, t in open_model(huge).tensors.used.items() if ".engram.embed." in n}
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 25 * ROOM
    assert (huge / TABLES).stat().st_blocks * 512 < ROOM // 1000

    made: dict[str, MadeTable] = {}
    with monkeypatch.context() as patch:
        patch.setattr(weights_v41, "_table", lambda name, *_: made.setdefault(name, MadeTable()))
        engine = RealEngine(huge, "cpu", engram="mmap")
        wanted = engine.ask(PROMPT, max_tokens=12)
    looked_up = [len(rows) for table in made.values() for rows in table.looked_up]
    for name, table in made.items():
        table.write(tensors[f"{name}.weight"], tensors[f"{name}.scale"])

    with monkeypatch.context() as patch, addresses(ROOM):
        touched = watched_reads(patch, huge / TABLES)
        engine = RealEngine(huge, "cpu", engram="mmap")
        assert_equal(engine.ask(PROMPT, max_tokens=12), wanted)
        for where in ("host", "device"):
            with pytest.raises(CannotFit):
                RealEngine(huge, "cpu", engram=where)
    reads = engine.loop.stats().tables
    assert (reads.rows, reads.errors) == (sum(looked_up), 0)
    assert reads.bytes_read == ROW * reads.rows
    asked = {
        (stored.offset + row * stored.shape[1], stored.shape[1])
        for name, stored in tensors.items()
        for row in rows_of(made[name.rpartition(".")[0]])
    }
    assert touched == asked


def rows_of(table: MadeTable) -> set[int]:
    return {row for listed in table.looked_up for row in listed}


def watched_reads(patch: pytest.MonkeyPatch, file: Path) -> set[tuple[int, int]]:
    """(offset, bytes) of what was read from a file."""
    touched: set[tuple[int, int]] = set()
    read = os.preadv

    def watch(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            touched.add((offset, sum(map(len, buffers))))
        return read(descriptor, buffers, offset, *flags)

    patch.setattr(ngram_table.os, "preadv", watch)
    return touched


# -- when the disk fails in the middle of an answer


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tables_apart(tmp_path)


Break = Callable[[Path, pytest.MonkeyPatch], Callable[[], object]]
"""Breaks the tables' file; what it returns mends it."""


def become_shorter(file: Path, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    whole = file.read_bytes()
    os.truncate(file, 4096)

    def mend() -> None:
        with file.open("r+b") as stream:
            stream.write(whole)

    return mend


def fail_to_read(file: Path, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read = os.preadv
    patch.setattr(ngram_table.os, "preadv", fail)
    return lambda: patch.setattr(ngram_table.os, "preadv", read)


@pytest.mark.parametrize(
    ("break_it", "found", "replay"),
    [(become_shorter, "ends inside row", "exact"), (fail_to_read, "Input/output error", "bounded")],
    ids=["shorter file", "read error"],
)
def test_a_disk_that_fails_ends_the_requests_of_the_step_and_no_others(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, break_it: Break, found: str, replay: str
) -> None:
    """What had come of them is right, what comes behind them is right, and the reason names the
    file."""
    wanted = RealEngine(checkpoint, "cpu", engram="host", replay=replay)
    long, other = words("long", 200), words("other", 9)
    answers = [wanted.ask(PROMPT, max_tokens=8), wanted.ask(long), wanted.ask(other)]

    engine = RealEngine(checkpoint, "cpu", max_step_tokens=64, engram="mmap", replay=replay)
    first = engine.add(PROMPT, max_tokens=8)
    engine.until(lambda: len(engine.answers[first].tokens) >= 5)
    second = engine.add(long)  # it is still read when the disk fails
    engine.step()
    mend = break_it(checkpoint / TABLES, monkeypatch)
    engine.step()
    assert engine.loop.idle
    for id, whole in ((first, answers[0]), (second, answers[1])):
        broken = engine.answers[id]
        assert broken.finish == "error"
        assert str(checkpoint / TABLES) in (broken.error or "")
        assert found in (broken.error or "")
        assert "check the disk" in (broken.error or "")
        assert_begins(whole, broken)
    failed = engine.ask(other)
    assert (failed.finish, failed.tokens) == ("error", [])
    assert engine.loop.stats().tables.errors == 2
    engine.check_all_given_back()
    mend()
    assert engine.loop.dead is None
    assert_equal(engine.ask(other), answers[2])
    assert_equal(engine.ask(PROMPT, max_tokens=8), answers[0])
    assert_equal(engine.ask(long), answers[1])


def test_without_a_table_to_read_nothing_is_counted(checkpoint: Path) -> None:
    engine = RealEngine(checkpoint, "cpu")
    engine.ask(PROMPT)
    assert engine.loop.stats().tables == TableReads()
    assert not [note for note in engine.info.notes if "n-gram" in note]


@pytest.mark.parametrize("where", ["host", "mmap"])
def test_what_is_read_is_told_at_start_and_counted(checkpoint: Path, where: str) -> None:
    engine = RealEngine(checkpoint, "cpu", engram=where)
    (note,) = [note for note in engine.info.notes if "n-gram" in note]
    size = (1362 + 1552) * ROW
    assert f"{size:,} bytes, of which a token reads 12 rows, {12 * ROW} bytes" in note
    before = engine.loop.stats().tables
    engine.ask(PROMPT, max_tokens=4)
    reads = engine.loop.stats().tables
    rows = reads.rows - before.rows
    assert 0 < rows <= 12 * (len(PROMPT) + 3)
    assert reads.bytes_read - before.bytes_read == ROW * rows
    assert 0 <= reads.hits - before.hits <= rows
    if where == "host":
        assert reads.hits == reads.rows
