"""Which compiled kernels a run on a device has proven. Knows no kernel and no device."""

from collections.abc import Sequence

PROVEN: tuple[str, ...] = ()
"""Their ops. One is added together with the run that shows it, under docs/gpu."""


def which(ops: Sequence[str] = PROVEN) -> str:
    """As people read it, behind "those that are proven"."""
    return f"those of {', '.join(ops)}" if ops else "of which there are none yet"
