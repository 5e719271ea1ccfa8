"""Which variant of each op runs, chosen once at load. Knows no op's arguments."""

OPS = (
    "attend",
    "compress",
    "engram",
    "experts",
    "hyper",
    "index",
    "linear",
    "norm",
    "quant",
    "rope",
    "route",
    "sample",
    "store",
)


def variants() -> str:
    """The variant of every op, the same in both families: part of the operator identity of cached
    pages. Only the torch definitions exist so far."""
    return " ".join(f"{op}:reference" for op in OPS)
