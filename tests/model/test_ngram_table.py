"""Where n-gram tables lie changes no bit. From a file nothing but the rows asked for is read."""

import errno
import json
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relight.base.checkpoint import open_model
from relight.base.errors import BadCheckpoint
from relight.base.headers import StoredTensor
from relight.base.numerics import OFFICIAL
from relight.model import ngram_table
from relight.model.network import load
from relight.model.ngram_table import FileTable, HostTable, ReadCount
from relight.model.weights_v41 import ModelWeightsV41
from tests.model.harness import GOLDEN, Driver, same_bits

CHECKPOINT = GOLDEN / "v41" / "checkpoint"
PROMPT = json.loads((GOLDEN / "v41" / "prompts.json").read_text())["prefill_133"]


@pytest.fixture(scope="module")
def models(device: str) -> dict[str, ModelWeightsV41]:
    loaded = {}
    for where in ("device", "host", "mmap"):
        weights = load(open_model(CHECKPOINT), torch.device(device), engram=where)  # type: ignore[arg-type]
        assert isinstance(weights, ModelWeightsV41)
        loaded[where] = weights
    return loaded


def stored_tables() -> tuple[StoredTensor, StoredTensor]:
    tensors = open_model(CHECKPOINT).tensors.used
    name = "layers.1.engram.embed"
    return tensors[f"{name}.weight"], tensors[f"{name}.scale"]


@pytest.fixture
def count() -> ReadCount:
    return ReadCount()


def told(count: ReadCount) -> tuple[int, int, int, int]:
    return count.rows, count.hits, count.bytes_read, count.errors


@pytest.fixture
def table(count: ReadCount) -> FileTable:
    return FileTable(*stored_tables(), count)


def test_all_places_give_the_same_bits(models, device) -> None:
    config = open_model(CHECKPOINT).config
    logits: dict[str, Tensor] = {}
    for where, weights in models.items():
        run = Driver(config, weights, OFFICIAL, num_slots=1, context=256, device=device)
        given = run.given(0, PROMPT[:100], [37, 64])
        logits[where] = torch.cat([given, run.made(0, PROMPT[100:110])])
    assert same_bits(logits["host"], logits["device"])
    assert same_bits(logits["mmap"], logits["device"])


def test_tables_elsewhere_take_nothing_of_the_device(models) -> None:
    tables = sum(tensor.nbytes for tensor in stored_tables())
    assert models["device"].nbytes - models["mmap"].nbytes > tables
    assert models["host"].nbytes == models["mmap"].nbytes


def test_loading_reads_no_row_of_a_table_that_stays_in_the_file(monkeypatch) -> None:
    data, scale = stored_tables()
    spans = [range(each.offset, each.offset + each.nbytes) for each in (data, scale)]
    touched, read = [], os.preadv

    def watch(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        count = read(descriptor, buffers, offset, *flags)
        touched.append(range(offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", watch)
    load(open_model(CHECKPOINT), torch.device("cpu"), engram="mmap")
    assert touched
    assert not [t for t in touched for s in spans if max(t[0], s[0]) <= min(t[-1], s[-1])]


def test_nothing_but_the_rows_asked_for_is_read_and_each_once(table, count, monkeypatch) -> None:
    data, scale = stored_tables()
    touched, read = [], os.preadv

    def watch(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if flags:  # a look whether it is there, which may find nothing
            raise BlockingIOError
        touched.append((offset, sum(map(len, buffers))))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", watch)
    rows = torch.tensor([[5, 900, 5], [17, 5, 1361]])
    table.fetch(rows)()
    wanted = sorted(
        (each.offset + row * each.shape[1], each.shape[1])
        for each in (data, scale)
        for row in (5, 17, 900, 1361)
    )
    assert sorted(touched) == wanted
    assert (count.rows, count.hits, count.bytes_read, count.errors) == (4, 0, 4 * 33, 0)


@pytest.mark.skipif(not ngram_table.NO_WAIT, reason="only Linux tells whether a disk is needed")
def test_a_hit_is_a_row_of_which_both_parts_needed_no_disk(table, count, monkeypatch) -> None:
    """A stand-in for the page cache, since nobody may empty the real one."""
    data, scale = stored_tables()
    cached = {data.offset + 5 * 32, data.offset + 17 * 32, scale.offset + 17, scale.offset + 900}
    read = os.preadv

    def look(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if flags and offset not in cached:
            raise BlockingIOError
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", look)
    table.fetch(torch.tensor([[5, 900, 17, 1361]]))()
    assert (count.rows, count.hits) == (4, 1)
    cached |= {scale.offset + 5}
    table.fetch(torch.tensor([[5, 900, 17, 5]]))()
    assert told(count) == (7, 3, 7 * 33, 0)


def test_where_a_system_cannot_tell_rows_are_read_and_no_hit_is_claimed(
    table, count, monkeypatch
) -> None:
    def refuse(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return read(descriptor, buffers, offset)

    rows, read = torch.randint(1362, (50, 6)), os.preadv
    wanted = table.fetch(rows)()
    hits = count.hits
    monkeypatch.setattr(os, "preadv", refuse)
    assert torch.equal(table.fetch(rows)(), wanted)
    assert count.hits == hits


def test_a_table_in_ram_needs_no_disk(models) -> None:
    weights = models["host"]
    rows, hits, nbytes, _ = told(weights.reads)
    weights.layers[1].engram.table.fetch(torch.tensor([[5, 900, 5], [17, 5, 1361]]))()
    assert told(weights.reads) == (rows + 4, hits + 4, nbytes + 4 * 33, 0)
    assert told(models["device"].reads) == (0, 0, 0, 0)


def test_rows_come_while_nobody_waits_for_them(table, monkeypatch) -> None:
    """What is fetched is asked for at once, before the layers that do without it have run."""
    begun, read = threading.Event(), os.preadv

    def tell(*asked: Any) -> int:
        begun.set()
        return read(*asked)

    monkeypatch.setattr(os, "preadv", tell)
    values = table.fetch(torch.tensor([[5]]))
    assert begun.wait(60)
    assert values().shape == (1, 32)


def test_values_are_those_of_a_table_in_ram(table, models) -> None:
    in_ram = models["host"].layers[1].engram.table
    assert isinstance(in_ram, HostTable)
    rows = torch.randint(1362, (50, 6))
    assert torch.equal(table.fetch(rows)(), in_ram.fetch(rows)())
    assert table.fetch(rows[:0])().shape == (0, 6 * 32)


def test_a_table_larger_than_memory_is_served(tmp_path: Path) -> None:
    """2 TB of zeros that take no disk, and a few rows of them that hold something."""
    count, width = 2**33, 256
    file = tmp_path / "table"
    with file.open("wb") as stream:
        stream.truncate(count * (width + 8))
    data = StoredTensor("table", "F8_E4M3", (count, width), file, 0, count * width)
    scale = StoredTensor("scale", "F8_E8M0", (count, 8), file, count * width, count * 8)
    last = count - 1
    with file.open("r+b") as stream:
        stream.seek(last * width)
        stream.write(bytes([0x38]) * width)  # 1.0
        stream.seek(count * width + last * 8)
        stream.write(bytes([128]) * 8)  # times 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = FileTable(data, scale, ReadCount())
    rows = torch.randint(count - 1, (500, 24))
    assert not table.fetch(rows)().any()
    assert bool((table.fetch(torch.tensor([[last]]))() == 2.0).all())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024  # kB


def test_a_file_that_became_shorter_is_an_error_that_names_it(tmp_path: Path) -> None:
    data, scale = stored_tables()
    file = tmp_path / "table"
    file.write_bytes(data.file.read_bytes())
    moved = [
        StoredTensor(t.name, t.dtype, t.shape, file, t.offset, t.nbytes) for t in (data, scale)
    ]
    count = ReadCount()
    table = FileTable(*moved, count)
    kept = table.fetch(torch.tensor([[3]]))()
    with file.open("r+b") as stream:
        stream.truncate(max(t.offset for t in moved) + 4 * 32 + 10)
    with pytest.raises(BadCheckpoint, match="ends inside row") as caught:
        table.fetch(torch.tensor([[1361]]))()
    assert str(file) in caught.value.message
    assert torch.equal(table.fetch(torch.tensor([[3]]))(), kept)
    assert (count.rows, count.errors) == (2, 1)


def test_a_read_error_names_the_file_and_the_next_look_up_works(table, monkeypatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(ngram_table.os, "preadv", fail)
        with pytest.raises(BadCheckpoint, match=r"engram\.embed\.weight Input/output error"):
            table.fetch(torch.tensor([[1]]))()
    assert table.fetch(torch.tensor([[1]]))().shape == (1, 32)
