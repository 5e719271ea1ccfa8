"""Server-sent events from bytes, whatever the cuts between reads. Knows no JSON."""


class EventSplitter:
    """Lines end in LF or CRLF; comments (keep-alives) are dropped; data lines of one event are
    joined by a newline, as the standard says."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._event = b""

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The (event name, data) pairs that `data` completes; the name is mostly empty."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._event = line[6:].strip()
            elif not line:
                if self._data:
                    events.append((self._event, b"\n".join(self._data)))
                self._data, self._event = [], b""
        return events

    @property
    def pending(self) -> bool:
        """Whether an event has begun that no empty line has ended."""
        return bool(self._rest or self._data)
