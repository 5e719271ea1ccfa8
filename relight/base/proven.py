"""Which compiled kernels a run on a device has proven. Knows no kernel and no device."""

from collections.abc import Collection

from relight.base.numerics import Family

PROVEN: frozenset[tuple[str, Family]] = frozenset()
"""By op and family of rows. One is added together with the run that shows it, under docs/gpu."""


def which(proven: Collection[tuple[str, Family]] = PROVEN) -> str:
    """As people read it, behind "those that are proven"."""
    names = [f"{op} ({family})" for op, family in sorted(proven)]
    return f"those of {', '.join(names)}" if names else "of which there are none yet"
