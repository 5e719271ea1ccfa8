"""Reads the header of one safetensors file: an 8-byte length, then JSON. Knows no model, no torch.

Every fault is a BadCheckpoint that names the file, what was found, what was wanted and the remedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from relight.base.errors import BadCheckpoint
from relight.base.fields import load_json
from relight.base.files import open_regular
from relight.base.tensors import DTYPE_BYTES

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format
MAX_DIMS = 8  # no tensor of a model has more; bytes of more could be too long a number to print
FETCH = "fetch the file again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `nbytes` bytes at `offset` of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one .safetensors file, after checking that they fill it without overlap."""
    try:
        size = file.stat().st_size
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise fault(
                    file,
                    f"of {size:,} bytes announces a header of {length:,}",
                    "a header that fits in the file",
                    f"the file is truncated or not safetensors; {FETCH}",
                )
            text = stream.read(length)
    except FileNotFoundError:
        raise fault(file, "is missing", "every shard that the index names", FETCH) from None
    except OSError as error:
        raise fault(file, f"cannot be read ({error.strerror})", "a readable file", FETCH) from error
    entries = parse_json(file, text)
    if not isinstance(entries, dict):
        raise fault(file, "has a header that is no object", "tensor names with offsets", FETCH)
    entries.pop("__metadata__", None)
    tensors = {
        name: _stored(file, name, entry, start=8 + length) for name, entry in entries.items()
    }
    _check_extents(file, size, 8 + length, tensors)
    return tensors


def _stored(file: Path, name: str, entry: object, start: int) -> StoredTensor:
    match entry:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "data_offsets": [int(begin), int(end)],
        } if len(shape) <= MAX_DIMS and all(map(_is_extent, shape)):
            pass
        case _:
            raise fault(file, f"describes {name} badly", "dtype, shape and data_offsets", FETCH)
    if dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise fault(file, f"has {name} in dtype {dtype}", f"one of {known}", FETCH)
    nbytes = DTYPE_BYTES[dtype] * prod(shape)
    if begin < 0 or end - begin != nbytes:
        raise fault(
            file,
            f"gives {name} the bytes {begin:,} to {end:,}",
            f"{nbytes:,} bytes for {dtype} {list(shape)}",
            FETCH,
        )
    return StoredTensor(name, dtype, tuple(shape), file, start + begin, nbytes)


def _is_extent(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _check_extents(file: Path, size: int, start: int, tensors: Mapping[str, StoredTensor]) -> None:
    end, last = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            relation = "overlaps" if tensor.offset < end else "leaves a gap behind"
            raise fault(
                file,
                f"has {tensor.name} at byte {tensor.offset:,}, which {relation} {last}",
                f"it at byte {end:,}",
                FETCH,
            )
        end, last = tensor.offset + tensor.nbytes, tensor.name
    if size != end:
        state = "is truncated: it has" if size < end else "has"
        raise fault(file, f"{state} {size:,} bytes", f"{end:,} bytes, as its header says", FETCH)


def fault(file: Path, found: str, wanted: str, remedy: str) -> BadCheckpoint:
    return BadCheckpoint(f"{file}: {found}; wanted {wanted}; {remedy}", param="model")


def parse_json(file: Path, text: bytes) -> object:
    try:
        return load_json(text)
    except (ValueError, RecursionError) as error:
        raise fault(file, f"has bad JSON ({error})", "well-formed JSON", FETCH) from error
