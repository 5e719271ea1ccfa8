"""Training steps as CUDA graphs: one launch a step in place of thousands. Knows no loss.

A step of this size is some 4,000 kernels of a few microseconds, and launching them one by one takes
as long as 65,536 tokens do. So a step of each shape and mode runs twice as it is, is captured the
third time, and replayed from then on. All graphs share one pool of memory: they never overlap, and
what must outlive a step (parameters, momenta, sums) was allocated before.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

EAGER_RUNS = 2
AHEAD = 2
"""Steps that wait on the device at most, so that the clock is that of finished work."""

Step = Callable[[Tensor, Tensor, Any], None]


class Replayed:
    """Calls `step(ids, tags, mode)`; on a GPU by replay, elsewhere as it is."""

    def __init__(self, step: Step, device: torch.device, *, capture: bool = True) -> None:
        self._step, self._device = step, device
        self._cuda = device.type == "cuda"
        self._capture = capture and self._cuda
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._running: deque[Any] = deque()
        self.reset()

    def reset(self) -> None:
        """Forgets all graphs: the tensors that a step works on were replaced."""
        if self._cuda:
            torch.cuda.synchronize()
        self._runs: dict[Any, int] = {}
        self._graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        self._inputs: dict[Any, tuple[Tensor, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Everything that touches the tensors of a step runs in this context: a graph can be
        captured only where its tensors were worked on before, and not on the default stream."""
        if not self._cuda:
            yield
            return
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def __call__(self, ids: npt.NDArray[Any], tags: npt.NDArray[Any], mode: Any) -> None:
        shape = ids.shape
        if shape not in self._inputs:
            self._inputs[shape] = (
                torch.empty(ids.shape, dtype=torch.int64, device=self._device),
                torch.empty(tags.size, dtype=torch.int64, device=self._device),
            )
        inputs = self._inputs[shape]
        self._fill(inputs[0], ids)
        self._fill(inputs[1], tags.reshape(-1))
        key = (shape, mode)
        graph = self._graphs.get(key)
        if graph is None and self._capture and self._runs.get(key, 0) >= EAGER_RUNS:
            graph = self._captured(key, inputs, mode)
        if graph is None:
            self._step(*inputs, mode)
            self._runs[key] = self._runs.get(key, 0) + 1
        else:
            graph.replay()
        self._throttle()

    def _captured(self, key: Any, inputs: tuple[Tensor, Tensor], mode: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                self._step(*inputs, mode)
        except Exception as error:
            print(f"cannot capture ({type(error).__name__}: {error}); going on without", flush=True)
            self._capture = False
            return None
        self._graphs[key] = graph
        return graph

    def _fill(self, tensor: Tensor, array: npt.NDArray[Any]) -> None:
        host = torch.from_numpy(array.astype("int64"))
        if self._cuda:
            host = host.pin_memory()
        tensor.copy_(host, non_blocking=True)

    def _throttle(self) -> None:
        if not self._cuda:
            return
        event = torch.cuda.Event()
        event.record()
        self._running.append(event)
        if len(self._running) > AHEAD:
            self._running.popleft().synchronize()
