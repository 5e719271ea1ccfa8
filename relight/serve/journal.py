"""Logs a line for each request once it is over. Knows no protocol."""

import logging
from collections.abc import Iterable
from typing import Any, Literal

from relight.base.logs import FIELDS
from relight.serve.exchange import Exchange
from relight.session import Job

log = logging.getLogger(__name__)

Mode = Literal["off", "on", "text"]
"""What is logged; `text`: what was sent and answered, too."""


def write(exchange: Exchange, mode: Mode, elapsed_s: float) -> None:
    """Texts of users are logged on request only, keys never: headers are no part of it."""
    if mode == "off" or not log.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "client": exchange.peer,
        "method": exchange.scope["method"],
        "path": exchange.scope["path"],
        "status": exchange.status,
        "ms": round(1000 * elapsed_s, 1),
    }
    if exchange.failure:
        fields["error"] = exchange.failure
    if exchange.jobs:
        fields |= _work(exchange.jobs)
    if mode == "text":
        fields |= {"sent": exchange.sent_text(), "answered": exchange.answered_text()}
    log.info("%s", _sentence(fields), extra={FIELDS: fields})


def _work(jobs: Iterable[Job]) -> dict[str, Any]:
    """Of all answers together; a prompt counts once. Times are those of the slowest."""
    jobs = list(jobs)
    first = [job for job in jobs if not job.is_later_choice]
    return {
        "ids": [job.request.id for job in jobs],
        "prompt_tokens": sum(job.num_prompt for job in first),
        "cached_tokens": sum(job.times.num_cached for job in first),
        "made_tokens": sum(job.times.num_made for job in jobs),
        "reasoning_tokens": sum(job.times.num_reasoning for job in jobs),
        "finish": [job.times.finish.reason if job.times.finish else "abort" for job in jobs],
        "queue_ms": _slowest(job.times.queue_s for job in jobs),
        "prefill_ms": _slowest(job.times.prefill_s for job in jobs),
        "decode_ms": _slowest(job.times.decode_s for job in jobs),
    }


def _slowest(seconds: Iterable[float]) -> float:
    return round(1000 * max(seconds, default=0.0), 1)


def _sentence(fields: dict[str, Any]) -> str:
    """Paths and names of clients may hold anything: they are quoted."""
    text = (
        f"request {fields['request_id']!r} {fields['method']} {fields['path']!r} from "
        f"{fields['client']!r}: {fields['status']} after {fields['ms']} ms"
    )
    if "error" in fields:
        text += f", {fields['error']}"
    if "ids" in fields:
        text += (
            f", {'+'.join(fields['ids'])}: {fields['prompt_tokens']} tokens read "
            f"({fields['cached_tokens']} cached), "
            f"{fields['made_tokens']} made ({fields['reasoning_tokens']} of reasoning), "
            f"{'+'.join(fields['finish'])}"
        )
    if "sent" in fields:
        text += f"; sent {fields['sent']!r}; answered {fields['answered']!r}"
    return text
