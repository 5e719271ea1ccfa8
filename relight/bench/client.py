"""Sends one chat request and measures its answer. Knows no load: when to send is told to it."""

import asyncio
import contextlib
import time
from typing import Any, NamedTuple

import msgspec

from relight.bench import http, redact
from relight.bench.http import Connection, Target
from relight.bench.needle import score
from relight.bench.prompts import Prompt
from relight.bench.record import Failure, Record
from relight.bench.stream import Stream, is_looping, text_hash

PATH = "/v1/chat/completions"
LEAD_S = 0.25
"""How long before it is due a request gets its connection, so that no handshake delays it."""


class Answer(NamedTuple):
    """What was measured, and the text, which no file gets: only the next turn of a conversation."""

    record: Record
    text: str


class Client:
    """Requests against one server; times are told from `started` on."""

    def __init__(
        self,
        to: Target,
        model: str,
        *,
        extra: dict[str, Any],
        silence_s: float,
        total_s: float,
        needs_done: bool = True,
        needs_usage: bool = True,
        started: float | None = None,
    ) -> None:
        self.to = to
        self.model = model
        self.started = time.perf_counter() if started is None else started
        self._extra = extra
        self._silence_s = silence_s
        self._total_s = total_s
        self._needs_done = needs_done
        self._needs_usage = needs_usage
        self._open: set[Connection] = set()
        self._stopped = False
        self._quiet = asyncio.Event()

    def now(self) -> float:
        return time.perf_counter() - self.started

    def within(self, seconds: float) -> "Client":
        """A client of the same server that waits this long at most."""
        return Client(
            self.to,
            self.model,
            extra=self._extra,
            silence_s=seconds,
            total_s=seconds,
            needs_done=self._needs_done,
            needs_usage=self._needs_usage,
        )

    def cancel(self) -> None:
        """Ends every open request as cancelled; no other is begun."""
        self._stopped = True
        self.hush()
        for connection in tuple(self._open):
            connection.cancel()

    def hush(self) -> None:
        """No other request is begun; open ones go on to their end."""
        self._quiet.set()

    def body(self, prompt: Prompt) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [*prompt.before, prompt.said],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": prompt.max_tokens,
        }
        if prompt.tools:
            fields["tools"] = prompt.tools
        if prompt.fixed and prompt.ignore_eos:
            fields |= {"min_tokens": prompt.max_tokens, "ignore_eos": True}
        return msgspec.json.encode(fields | self._extra)

    async def ask(self, prompt: Prompt, due: float | None = None) -> Record:
        """Sends at `due`, or at once; never raises for what a server does."""
        return (await self.answer(prompt, due)).record

    async def answer(self, prompt: Prompt, due: float | None = None) -> Answer:
        body = self.body(prompt)
        sched = self.now() if due is None else due
        try:
            connection = await http.connect(self.to)
        except OSError as problem:
            why = str(problem) or "no connection in time"
            return Answer(self._unreachable(prompt, sched, why), "")
        if due is not None:
            await self.until(due)
        return await self._exchange(connection, prompt, body, sched)

    def _unreachable(self, prompt: Prompt, sched: float, why: str) -> Record:
        return Record(
            id=prompt.id,
            kind=prompt.kind,
            t_sched=sched,
            failure="unreachable",
            error=why,
            session=prompt.session,
            turn=prompt.turn,
        )

    async def until(self, moment: float) -> bool:
        """Waits for a moment; False, at once, when no more is to be begun."""
        if not self._quiet.is_set() and (wait := moment - self.now()) > 0:
            # Running out of time is the normal way out.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._quiet.wait()
        return not self._quiet.is_set()

    async def _exchange(
        self, connection: Connection, prompt: Prompt, body: bytes, sched: float
    ) -> Answer:
        stream = Stream(
            prompt.max_tokens if prompt.fixed else None,
            most=prompt.max_tokens,
            needs_done=self._needs_done,
            needs_usage=self._needs_usage,
            leave_after=prompt.leave_after,
        )
        self._open.add(connection)
        sent = connection.send(http.head(self.to, "POST", PATH, len(body)), body, stream)
        try:
            if self._stopped:
                connection.cancel()
            await connection.finished(self._silence_s, self._total_s)
        finally:
            connection.close()
            self._open.discard(connection)
        return Answer(self._record(prompt, stream, sched, sent), stream.answer)

    def _record(self, prompt: Prompt, stream: Stream, sched: float, sent: float) -> Record:
        def since(moment: float | None) -> float | None:
            return None if moment is None else round(moment - self.started, 6)

        usage, text = stream.usage, stream.text
        prompt_details = usage.prompt_tokens_details if usage else None
        output_details = usage.completion_tokens_details if usage else None
        chunks = tuple((round(t - self.started, 6), n) for t, n in stream.chunks)
        failure: Failure | None = stream.failure
        return Record(
            id=prompt.id,
            kind=prompt.kind,
            t_sched=round(sched, 6),
            t_send=since(sent),
            t_headers=since(stream.t_headers),
            t_first_any=chunks[0][0] if chunks else None,
            t_first_answer=since(stream.t_first_answer),
            t_last=chunks[-1][0] if chunks else None,
            t_end=since(stream.t_end),
            chunks=chunks,
            n_in=usage.prompt_tokens if usage else None,
            n_cached=prompt_details.cached_tokens if prompt_details else None,
            n_reasoning=output_details.reasoning_tokens if output_details else None,
            n_out=usage.completion_tokens if usage else None,
            n_wanted=stream.wanted,
            finish=stream.finish,
            failure=failure,
            error=self._without_key(stream.error),
            output_hash=text_hash(text),
            looping=is_looping(text),
            session=prompt.session,
            turn=prompt.turn,
            n_in_wanted=prompt.length,
            server=stream.server,
            drafts=stream.drafts,
            **self._found(prompt, text),
        )

    def _found(self, prompt: Prompt, text: str) -> dict[str, Any]:
        if prompt.needle is None:
            return {}
        found = score(prompt.needle.answers, text)
        return {
            "needle": found == 1.0,
            "needle_kind": prompt.needle.kind,
            "needle_depth": round(prompt.needle.depth, 4),
            "needle_score": round(found, 4),
        }

    def _without_key(self, text: str) -> str:
        text = text.replace(self.to.key, "[key]") if self.to.key else text
        return redact.text(text)
