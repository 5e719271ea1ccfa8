"""How rows of a length that nobody has measured are cut into slices (`forms.Walk`). Knows no op and
no device."""

from relight.kernels.forms import UNIT, Walk

MOST_SLICES, MOST_UNITS = 8, 16
"""The units of a slice are unrolled."""


def objection(bits: int, inner: int) -> str:
    """Why rows of so many values cannot be cut; empty if they can."""
    unit = UNIT[bits]
    if inner == 0 or inner % unit:
        return f"its rows have {inner} values, no multiple of {unit}"
    if inner // unit // slices_of(bits, inner) > MOST_UNITS:
        return f"its rows have {inner} values, which no {MOST_SLICES} slices share evenly"
    return ""


def walk_of(bits: int, inner: int, *, ring: bool = False) -> Walk:
    slices = slices_of(bits, inner)
    ahead = min(2, inner // UNIT[bits] // slices)
    return Walk(bits, inner, slices, ahead=ahead, ring=ring)


def slices_of(bits: int, inner: int, most: int = MOST_SLICES) -> int:
    """As many as share the units evenly."""
    units = inner // UNIT[bits]
    return max(slices for slices in range(1, most + 1) if units % slices == 0)
