"""Watches a server over a window: its counters before and after, its gauges and the machine second
by second. Knows no load and no verdict."""

import asyncio
import time

import msgspec

from relight.bench import http, machine, metrics, process
from relight.bench.http import Target
from relight.bench.machine import Device
from relight.bench.metrics import Delta, Dialect, Series

POLL_S = 1.0
SETTLE_S = 1.0
DEVICE_EVERY = 5
"""Polls between two looks at the accelerators: their tool takes a tenth of a second."""
COUNTED = ("prompt_tokens", "generation_tokens", "steps", "drafts", "accepted", "preemptions")


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One second of a window; `t` since the run began. Counters are since the window began,
    `groups` shares of cache memory in use, memory in bytes, of the server's processes where they
    are on this machine."""

    t: float
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    groups: dict[str, float] = {}
    resident: int | None = None
    swapped: int | None = None
    zombies: int | None = None
    mem_available: int | None = None
    devices: list[Device] = []


class Watch:
    """`begin`, `poll` as a task until it is cancelled, `end`. `pid` is the server's process on this
    machine, if it is here."""

    def __init__(self, to: Target, pid: int | None, started: float) -> None:
        self._to = to
        self._pid = pid
        self._started = started
        self._before: Series = {}
        self._resets: set[str] = set()
        self._energy: float | None = None
        self._pids: list[int] = []
        self._last: Series = {}
        self._has_devices = False
        self.dialect: Dialect | None = None
        self.peaks: dict[str, float] = {}
        self.capacities: dict[str, float | None] = {}
        self.points: list[Point] = []
        self.uptime_s: float | None = None
        self.energy_j: float | None = None
        self.running_after: float | None = None

    async def begin(self) -> None:
        self._before = await self._read()
        self.dialect = metrics.dialect_of(self._before)
        begun = metrics.total(self._before, "process_start_time_seconds")
        own = process.age_s(self._pid) if self._pid is not None else None
        self.uptime_s = time.time() - begun if begun else own
        self._energy = machine.package_energy_j() if self._pid else None
        if self._watches:
            self._last = self._before
            self._has_devices = self._pid is not None and bool(machine.devices())
            await self._look(self._before)

    @property
    def _watches(self) -> bool:
        return self.dialect is not None or self._pid is not None

    async def poll(self) -> None:
        """Until cancelled: a point each second, and restarts within the window."""
        while self._watches:
            await asyncio.sleep(POLL_S)
            await self._look(await self._read() if self.dialect else {})

    async def _look(self, series: Series) -> None:
        """One point. A page that did not come in time says nothing, least of all a restart."""
        every = len(self.points) % DEVICE_EVERY == 0
        # Files of the kernel are read in a thread: the loop's own lateness is being measured.
        looks = every and self._has_devices
        devices = await asyncio.to_thread(machine.devices) if looks else []
        own = await asyncio.to_thread(self._processes, every)
        self.points.append(self._point(series, devices, own))
        if self.dialect is not None and series:
            self._resets.update(metrics.delta(self._last, series, self.dialect).resets)
            self._last = series

    def _processes(self, look: bool) -> dict[str, int | None]:
        """Memory of the server's processes; `look` finds out anew which these are."""
        if self._pid is None:
            return {}
        if look or not self._pids:
            self._pids = process.family(self._pid)
        resident = [size for pid in self._pids if (size := process.resident(pid)) is not None]
        swapped = [size for pid in self._pids if (size := process.swapped(pid)) is not None]
        return {
            "resident": sum(resident) if resident else None,
            "swapped": sum(swapped) if swapped else None,
            "zombies": sum(map(process.is_zombie, self._pids)),
            "mem_available": machine.memory("MemAvailable"),
        }

    def _point(self, series: Series, devices: list[Device], own: dict[str, int | None]) -> Point:
        gauges: dict[str, float] = {}
        counters: dict[str, float] = {}
        groups: dict[str, float] = {}
        if self.dialect is not None and series:
            gauges = metrics.gauges(series, self.dialect)
            for name, value in gauges.items():
                self.peaks[name] = max(self.peaks.get(name, 0.0), value)
            found = metrics.delta(self._before, series, self.dialect).counters
            counters = {name: found[name] for name in COUNTED if name in found}
            for name, (capacity, share) in metrics.shares(series, self.dialect).items():
                groups[name] = share
                self.capacities[name] = capacity
        return Point(
            t=round(time.perf_counter() - self._started, 3),
            gauges=gauges,
            counters=counters,
            groups=groups,
            devices=devices,
            **own,
        )

    async def end(self, out_tokens: int) -> Delta | None:
        """A server may count an answer a moment after it sent its last byte."""
        used = machine.package_energy_j() if self._energy is not None else None
        if used is not None and self._energy is not None and used >= self._energy:
            self.energy_j = used - self._energy
        if self.dialect is None:
            return None
        series: Series = {}
        for _ in range(10):
            series = await self._read() or series
            found = metrics.delta(self._before, series, self.dialect)
            self.running_after = metrics.gauges(series, self.dialect).get("running")
            told = found.counters.get("generation_tokens", out_tokens) >= out_tokens
            if told and series and not self.running_after:
                break
            await asyncio.sleep(SETTLE_S / 10)
        await self._look(series)
        resets = sorted({*found.resets, *self._resets})
        return msgspec.structs.replace(found, resets=resets)

    async def _read(self) -> Series:
        data = await http.get(self._to, "/metrics")
        return metrics.parse((data or b"").decode("utf-8", "replace"))
