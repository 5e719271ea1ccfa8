"""What the assembler says of a kernel: registers, spills, shared memory. Knows no kernel."""

import re

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Of one entry point. PTX has none of it until a driver compiles it, and NVRTC, from 12.8 on,
    tells none of what it kept from another time, as it does where a driver is."""

    registers: int = 0  # of a thread
    spill_bytes: int = 0  # stored and loaded again, of a thread
    stack_bytes: int = 0  # of a thread
    shared_bytes: int = 0  # of a block, besides what a launch adds


def usage(log: str, entry: str) -> Usage:
    """Reads the log of a compilation with --ptxas-options=-v."""
    at = re.search(rf"Compiling entry function '{entry}'", log)
    if at is None:
        return Usage()
    text = log[at.end() :].partition("Compiling entry function")[0]

    def number(pattern: str) -> int:
        found = re.search(pattern, text)
        return int(found[1]) if found else 0

    return Usage(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
    )
