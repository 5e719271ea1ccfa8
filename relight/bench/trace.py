"""Replays recorded arrivals: when requests came, how long they were, what they shared. Knows no
server.

A row of the JSONL file has `timestamp` in milliseconds, `input_length`, `output_length` and, where
prefixes were shared, `hash_ids` of its blocks of 512 tokens (the form of the Mooncake traces). The
text of a block is made from its id, so equal beginnings are equal texts; a run's nonce stands
before all, so two runs share nothing.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from relight.base.errors import BadSetting
from relight.bench.prompts import TASK, Prompt, Scale, Writer
from relight.bench.scenario import Class, Scenario
from relight.bench.scenario import Trace as Wanted

BLOCK = 512
"""Tokens of a block of the recorded prefix cache."""
MIN_OUTPUT = 2


class Row(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read(path: Path, most: int = 0) -> tuple[list[Row], str]:
    """Rows by time, `most` at most, and the file's hash. Raises BadSetting."""
    try:
        data = path.read_bytes()
        rows = msgspec.json.Decoder(Row, strict=False).decode_lines(data)
    except OSError as problem:
        raise BadSetting(f"trace {path} cannot be read: {problem}", param="trace") from problem
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadSetting(
            f"trace {path}: {problem}; wanted JSON lines with timestamp (ms), input_length, "
            "output_length and perhaps hash_ids",
            param="trace",
        ) from problem
    if not rows or any(row.input_length < 1 or row.output_length < 1 for row in rows):
        raise BadSetting(f"trace {path} has no row, or one of no tokens", param="trace")
    ordered = sorted(rows, key=lambda row: row.timestamp)
    return ordered[: most or None], hashlib.sha256(data).hexdigest()[:16]


def scenario_of(path: Path, scale: float, most: int) -> Scenario:
    """`scale` 2 is twice as fast; `most` rows, or all for 0. A row that the server cannot hold ends
    the run before it begins: a replay without its long requests is another load."""
    if scale <= 0:
        raise BadSetting(f"scale is {scale}; wanted a number above 0", param="scale")
    rows, mark = read(path, most)
    one = Class(
        name="trace",
        requests=len(rows),
        input_tokens=sum(row.input_length for row in rows) // len(rows),
        output_tokens=max(sum(row.output_length for row in rows) // len(rows), MIN_OUTPUT),
        trace=Wanted(file=str(path.resolve()), hash=mark, scale=scale),
    )
    return Scenario(name="trace", classes=[one], cache="shared", warm_up=1)


def prompts(writer: Writer, one: Class, scale: Scale) -> list[Prompt]:
    """Raises BadSetting when the file is no longer what it was."""
    wanted = one.trace
    assert wanted is not None
    rows, mark = read(Path(wanted.file), one.requests)
    if wanted.hash and mark != wanted.hash:
        raise BadSetting(f"trace {wanted.file} has changed: hash {mark}, not {wanted.hash}")
    blocks = _Blocks(writer, one, scale)
    begin = rows[0].timestamp
    return [
        Prompt(
            id=(number := writer.number()),
            kind=one.name,
            text=_text(row, blocks, writer.mark(str(number)), scale),
            max_tokens=max(row.output_length, MIN_OUTPUT),
            fixed=one.fixed,
            ignore_eos=one.ignore_eos,
            length=row.input_length,
            due=(row.timestamp - begin) / 1e3 / wanted.scale + one.start_s,
        )
        for row in rows
    ]


class _Blocks:
    """Text by the id of a block; the first of a prompt begins with the run's own mark."""

    def __init__(self, writer: Writer, one: Class, scale: Scale) -> None:
        self.first = writer.mark("trace")
        self.corpus = writer.corpus(one.name)
        self._size = max(int(BLOCK / scale.slope), 1)
        self._known: dict[int, str] = {}

    def of(self, number: int) -> str:
        if number not in self._known:
            self._known[number] = self.corpus.text(self._size)
        return self._known[number]


def _text(row: Row, blocks: _Blocks, mark: str, scale: Scale) -> str:
    """Whole blocks that others may share, then the rest of its own; without ids all is its own."""
    room = scale.characters(row.input_length)
    shared = "".join(blocks.of(number) for number in row.hash_ids[:-1])
    begin = f"{blocks.first}\n{shared}"[: max(room - len(mark) - len(TASK), 0)] if shared else ""
    rest = room - len(begin) - len(mark) - len(TASK) - 2
    return f"{begin}\n{mark}\n{blocks.corpus.text(max(rest, 1))}{TASK}".lstrip("\n")


def best_hits(rows: Sequence[Row]) -> float:
    """The share of input tokens that a cache without bounds would hit: the most that any server
    can."""
    seen: set[tuple[int, ...]] = set()
    hits = total = 0
    for row in rows:
        total += row.input_length
        known = 0
        for end in range(1, len(row.hash_ids) + 1):
            if row.hash_ids[:end] not in seen:
                break
            known = end
        hits += min(known * BLOCK, row.input_length)
        seen.update(row.hash_ids[:end] for end in range(1, len(row.hash_ids) + 1))
    return hits / total
