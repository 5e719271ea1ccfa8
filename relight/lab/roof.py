"""What a device can do at best, measured: bytes read and products a second. Knows no op."""

from dataclasses import dataclass

import torch

from relight.lab.clock import Clock, Times

READ_BYTES, SMALL_BYTES = 2**30, 2**25
SIDE, SMALL_SIDE = 8192, 512


@dataclass(frozen=True, slots=True)
class Roof:
    """Bytes and operations a second; `read` says of what."""

    stream: float
    matrix: float
    read: str
    multiplied: str

    def of_stream(self, nbytes: float, us: float) -> float:
        return round(nbytes / self.stream * 1e6 / us, 3) if us else 0.0

    def of_matrix(self, flops: float, us: float) -> float:
        return round(flops / self.matrix * 1e6 / us, 3) if us else 0.0

    def told(self) -> dict[str, object]:
        return {
            "stream_bytes_per_s": round(self.stream),
            "matrix_flops_per_s": round(self.matrix),
            "stream": self.read,
            "matrix": self.multiplied,
        }


def measure_roof(clock: Clock, *, small: bool = False) -> Roof:
    """The stream is the largest of some library reads: sums of much memory in wide words."""
    device, count = clock.device, SMALL_BYTES if small else READ_BYTES
    data = torch.randint(0, 100, (count // 8,), dtype=torch.int64, device=device)
    rows = data.view(torch.float32).view(-1, 1024 * 64)
    reads = {"a maximum of int64": data.amax, "row maxima of float32": lambda: rows.amax(1)}
    with torch.inference_mode():
        times = clock.measure({name: clock.prepare(run) for name, run in reads.items()}, 5)
        name = min(times, key=lambda one: times[one].median)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        side = SMALL_SIDE if small else SIDE
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product: Times = clock.once(lambda: a @ b)
    stream = count / times[name].median * 1e6
    matrix = 2.0 * side**3 / product.median * 1e6
    return Roof(stream, matrix, f"{name}, {count:,} bytes", f"{side} x {side}, {dtype}")
