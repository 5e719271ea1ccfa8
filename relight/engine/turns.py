"""In which order waiting requests are tried for a slot. Knows no page, slot or clock.

Those that gave way come first, then the priority classes, and within a class the client that was
served least: each has a counter of tokens, where a made token counts twice as it holds a slot for a
step. A client that comes back starts no lower than the others who are there, so idleness saves
nothing up. Whatever this order says, the oldest request lets only so many pass.
"""

from collections.abc import Iterable

from relight.engine.sequence import Sequence

READ_WEIGHT = 1
MADE_WEIGHT = 2
MAX_CLIENTS = 1000
"""How many clients are remembered while they have no request; names can be invented."""


class Turns:
    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._num_open: dict[str, int] = {}

    def arrive(self, client: str) -> None:
        """One more request of the client waits or runs."""
        if client not in self._num_open:
            least = min((self._served[other] for other in self._num_open), default=0)
            self._served[client] = max(self._served.get(client, 0), least)
        self._num_open[client] = self._num_open.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """One of its requests has ended."""
        self._num_open[client] -= 1
        if not self._num_open[client]:
            del self._num_open[client]
            if len(self._served) > MAX_CLIENTS:
                self._served = {name: self._served[name] for name in self._num_open}

    def read(self, client: str, num_tokens: int) -> None:
        self._served[client] += num_tokens * READ_WEIGHT

    def made(self, client: str) -> None:
        self._served[client] += MADE_WEIGHT

    def order(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        """`waiting` is by age, and equals stay so."""
        return sorted(waiting, key=self._rank)

    def _rank(self, sequence: Sequence) -> tuple[bool, int, int]:
        request = sequence.request
        return sequence.num_preemptions == 0, request.priority, self._served[request.client]
