"""The golden V4.1 with its n-gram tables in a shard of their own, which may be larger than any
memory: what nobody wrote to is a hole in the file."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from relight.base.checkpoint import INDEX_NAME, read_checkpoint
from relight.base.config import read_config
from relight.base.engram import table_rows
from relight.base.headers import StoredTensor
from relight.kernels import engram
from relight.model.ngram_table import Gather, Values
from tests.model.harness import GOLDEN

SOURCE = GOLDEN / "v41" / "checkpoint"
WEIGHTS, TABLES = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
CONTEXT = 4608

Part = tuple[str, str, tuple[int, ...], int, bytes | None]
"""Name, dtype, shape, bytes, and what they are if the file is to hold them."""


def write_tables_apart(folder: Path, vocab_size: int = 0) -> Path:
    """With `vocab_size` tables of about 6 times as many rows, all zeros, in place of its own."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / name, folder)
    config = json.loads((SOURCE / "config.json").read_text())
    text = config["text_config"]
    text["max_position_embeddings"] = CONTEXT
    spec = read_config(SOURCE).config.engram
    assert spec is not None
    rows = table_rows(replace(spec, vocab_size=vocab_size or spec.vocab_size), 2)
    text["engram_vocab_size"] = vocab_size or spec.vocab_size
    text["engram_num_embeddings"] = list(rows)
    (folder / "config.json").write_text(json.dumps(config))

    stored = read_checkpoint(SOURCE).tensors.values()
    by_layer = dict(zip(("1", "4"), rows, strict=True))
    weights = [part(t) for t in stored if ".engram.embed." not in t.name]
    tables = [
        empty(t, by_layer[t.name.split(".")[1]]) if vocab_size else part(t)
        for t in stored
        if ".engram.embed." in t.name
    ]
    write_shard(folder / WEIGHTS, weights)
    write_shard(folder / TABLES, tables)
    shards = ((WEIGHTS, weights), (TABLES, tables))
    index = {name: shard for shard, parts in shards for name, *_ in parts}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": index}))
    return folder


def part(tensor: StoredTensor) -> Part:
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        data = stream.read(tensor.nbytes)
    return tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, data


def empty(tensor: StoredTensor, rows: int) -> Part:
    _, width = tensor.shape
    return tensor.name, tensor.dtype, (rows, width), rows * width, None


def write_shard(file: Path, parts: Iterable[Part]) -> None:
    ordered = sorted(parts, key=lambda part: part[1] in ("F8_E4M3", "F8_E8M0", "I8"))
    entries, end = {}, 0
    for name, dtype, shape, nbytes, _ in ordered:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for *_, nbytes, data in ordered:
            if data is None:
                stream.seek(nbytes, 1)
            else:
                stream.write(data)
        stream.truncate(8 + len(header) + end)


class MadeTable:
    """A table whose rows are computed from their numbers, and remembered as asked for."""

    def __init__(self) -> None:
        self.looked_up: list[list[int]] = []

    def fetch(self, rows: Tensor, gather: Gather = engram.gather) -> Values:
        listed, place = rows.unique(return_inverse=True)
        self.looked_up.append(listed.tolist())
        data, scale = row_bytes(listed)
        values = gather(data, scale, place)
        return lambda: values

    def write(self, data: StoredTensor, scale: StoredTensor) -> None:
        """Every row that was asked for, into a file."""
        rows = sorted({row for listed in self.looked_up for row in listed})
        for stored, values in zip((data, scale), row_bytes(torch.tensor(rows)), strict=True):
            with stored.file.open("r+b") as stream:
                for row, value in zip(rows, values, strict=True):
                    stream.seek(stored.offset + row * stored.shape[1])
                    stream.write(bytes(value.tolist()))


def row_bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes below 2 with signs, and scales of 1/2, 1 or 2, for d = 32."""
    column = torch.arange(32)
    codes = (rows.unsqueeze(1) * 31 + column * 17 + rows.unsqueeze(1) // 97) % 64
    signs = (rows.unsqueeze(1) + column) % 2 * 128
    return (codes + signs).to(torch.uint8), (126 + rows.unsqueeze(1) % 3).to(torch.uint8)
