"""Which compiled kernels a run on a device has proven, and where. Knows no kernel and no device."""

from collections.abc import Collection, Mapping
from itertools import product

from relight.base.numerics import Family

Rows = tuple[str, Family]
"""An op, and the family of the rows that it is given."""

FAMILIES: tuple[Family, ...] = ("prefill", "step")
OPS = (
    *("attend", "compress", "engram", "experts", "hyper", "index"),
    *("linear", "norm", "quant", "rope", "route", "store"),
)

PROVEN: Mapping[str, frozenset[Rows]] = {
    "sm_90": frozenset({("sample", "step"), *product(OPS, FAMILIES)})
}
"""By architecture: another one gets code of another form, of which a run says nothing. One is added
together with the run that shows it, under docs/gpu."""


def where(op: str, family: Family) -> tuple[str, ...]:
    """The architectures that the kernels of an op are proven on."""
    return tuple(sorted(arch for arch, rows in PROVEN.items() if (op, family) in rows))


def which(proven: Mapping[str, Collection[Rows]] = PROVEN) -> str:
    """As people read it, behind "those that are proven"."""
    told = [f"those of {_names(rows)} on {arch}" for arch, rows in sorted(proven.items()) if rows]
    return "; ".join(told) or "of which there are none yet"


def _names(rows: Collection[Rows]) -> str:
    """An op whose kernels serve both families has no family behind its name."""
    both = {op for op, _ in rows if all((op, family) in rows for family in FAMILIES)}
    one = {f"{op} ({family})" for op, family in rows if op not in both}
    return ", ".join(sorted(both | one))
