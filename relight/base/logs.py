"""The log of a process: a line of text or a JSON object for each entry. Knows no entry."""

import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

FIELDS = "fields"
"""The key of `extra` under which an entry carries data beside its sentence."""


def configure(process: str, level: str, form: Literal["text", "json"]) -> None:
    """For the whole process, on stderr."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JsonFormatter(process))
    else:
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {process}: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class JsonFormatter(logging.Formatter):
    """`time` is in UTC; what an entry carries besides stands beside its message."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
        }
        entry |= getattr(record, FIELDS, {})
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(entry).decode()
