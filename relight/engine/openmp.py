"""Decides how many threads an op may have and how they wait for each other. Knows no torch."""

import math
import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def let_threads_sleep() -> None:
    """Threads that wait for each other sleep, unless the user's environment says otherwise. Call it
    before torch is loaded, since its library reads the variable once.

    OpenMP's spin. Beside any other busy process, be it only the HTTP server, a spinning thread
    holds the core that the last one needs: on 2 cores with 2 busy neighbours a token of the small
    model took 1.3 s, and 0.1 s with threads that sleep.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def choose_threads(setting: int, default: int, cpu_max: Path = CPU_MAX) -> int:
    """The threads of a setting, where 0 is the library's default within the container's quota.

    A quota of 2 cores on a host of 64 leaves all 64 in sight, so the library would take 64 threads;
    they use up each period's time together and then stand still until the next, mid-op.
    """
    if setting:
        return setting
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return default  # no control group of version 2
    return default if quota == "max" else min(default, math.ceil(int(quota) / int(period)))
