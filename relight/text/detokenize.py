"""Turns token ids into text as they come, whole characters only, and cuts text at stop strings.
Knows nothing of markers in an answer: that is the parser's work."""

import codecs
from collections.abc import Iterable

from relight.base.errors import BadRequest
from relight.text.tokenizer import Tokenizer


class Utf8Stream:
    """Bytes in, whole characters out. A character of up to four bytes waits for its last one; bytes
    that no continuation can save become U+FFFD at once, so every split gives the same text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    @property
    def pending(self) -> bool:
        """Whether a character is unfinished."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """An unfinished character as U+FFFD; ready for a new text afterwards."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest


class Detokenizer:
    """The text of raw completions. The ends of a text (BOS, EOS, padding) have none; other markers
    are spelt out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        self._silent = {special.bos, special.eos, special.pad}
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = Utf8Stream()

    def feed(self, ids: Iterable[int]) -> str:
        return self._utf8.feed(
            b"".join(self._token_bytes(token) for token in ids if token not in self._silent)
        )

    def finish(self) -> str:
        return self._utf8.finish()


class StopStrings:
    """Passes text on until a stop string is complete, and nothing after.

    The string that is complete first wins, whatever the split; of two that end together the longer.
    Only text that may still become a match is held back. `matched` is the string that was found.
    While `armed` is false a string that is complete passes like other text.
    """

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        if "" in self._stops:
            raise BadRequest(
                "stop holds an empty string; wanted at least 1 character", param="stop"
            )
        self._include = include
        self._held = ""
        self.armed = True
        self.matched: str | None = None

    @property
    def any(self) -> bool:
        """Whether there is a string to look for."""
        return bool(self._stops)

    @property
    def holds_text(self) -> bool:
        return bool(self._held)

    def feed(self, text: str) -> str:
        if self.matched is not None:
            return ""
        text = self._held + text
        passed = ""
        while found := [
            (at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0
        ]:
            end, start = min(found)
            if self.armed:
                self.matched, self._held = text[start:end], ""
                return passed + text[: end if self._include else start]
            passed, text = passed + text[:end], text[end:]
        keep = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[keep:]
        return passed + text[:keep]

    def finish(self) -> str:
        """What was held back and became no match."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop` and is not all of it."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
