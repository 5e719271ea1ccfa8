"""Times short work on a device: recorded where that can be, interleaved, as medians with spread.
Knows no model.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from relight.kernels.record import recorder

Run = Callable[[], object]

PATIENCE_S = 10.0
"""No further round begins after so long."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of one run."""

    median: float
    least: float
    most: float

    def shared(self, count: int) -> "Times":
        """Of each of so many parts."""
        return Times(self.median / count, self.least / count, self.most / count)


class Clock:
    """`record` False: no recordings, as where a host's time is what one wants to see."""

    def __init__(self, device: torch.device, *, record: bool = True) -> None:
        self.device = device
        self._recorder = recorder(device) if record else None
        self.records = self._recorder is not None

    def prepare(self, run: Run, *, record: bool = True) -> Run:
        """What is timed: a recording, where the device has such; else the work itself, once warm.
        Raises what the work raises."""
        if self._recorder is None or not record:
            run()
            return run
        return self._recorder.record(lambda: (run(), None)[1])

    def measure(self, runs: Mapping[str, Run], rounds: int) -> dict[str, Times]:
        """All of them in turn, so many times or as often as there is patience for: what drifts,
        drifts for all alike."""
        samples: dict[str, list[float]] = {name: [] for name in runs}
        begun_s = time.monotonic()
        for turn in range(rounds + 1):
            if turn > 1 and time.monotonic() - begun_s > PATIENCE_S:
                break
            for name, run in runs.items():
                took = self._once(run)
                if turn:  # the first round warms up
                    samples[name].append(took)
        return {
            name: Times(statistics.median(took), min(took), max(took))
            for name, took in samples.items()
        }

    def _once(self, run: Run) -> float:
        if self.device.type == "cpu":
            begun_s = time.perf_counter()
            run()
            return 1e6 * (time.perf_counter() - begun_s)
        begun, ended = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        return 1e3 * begun.elapsed_time(ended)

    def once(self, run: Run, rounds: int = 5) -> Times:
        return self.measure({"it": self.prepare(run)}, rounds)["it"]
