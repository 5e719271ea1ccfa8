"""Judges one streamed answer strictly: what came when, and whether it is whole. Knows no socket and
no clock; times are handed in."""

import hashlib

import msgspec

from relight.base.sse import EventSplitter
from relight.bench.chunk import Choice, Chunk, Delta, Speculation, Usage, decode
from relight.bench.record import Drafts, Failure, ServerTimes

MAX_ERROR = 300
MOST_BYTES = 16 * 1024**2
"""Without an event. The longest event is a chunk of a few kilobytes."""
MOST_CHUNKS = (8, 1000)
"""So many a token, and so many besides: half characters and calls may be several chunks."""
LOOP_TAIL = 400


class Stream:
    """Fed by a connection: `headers`, `body` as often as there are bytes, `end` once."""

    def __init__(
        self,
        wanted: int | None = None,
        *,
        most: int | None = None,
        needs_done: bool = True,
        needs_usage: bool = True,
        leave_after: int | None = None,
    ) -> None:
        """`wanted` tokens must come; `most` were allowed; after so many chunks nothing more is
        wanted. Without usage an answer that ended by its length has just those, and of another
        nobody knows how many it has."""
        self.wanted = wanted
        self.most = wanted if most is None else most
        self.needs_done = needs_done
        self.needs_usage = needs_usage
        self.leave_after = leave_after
        self.status = 0
        self.t_headers: float | None = None
        self.t_first_answer: float | None = None
        self.t_end: float | None = None
        self.chunks: list[tuple[float, int]] = []
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.failure: Failure | None = None
        self.error = ""
        self.done = False
        self._events = EventSplitter()
        self._plain = bytearray()
        self._is_stream = False
        self._counted = 0
        self._silent = 0
        self._texts: list[str] = []
        self._answers: list[str] = []
        self.server: ServerTimes | None = None
        self.drafts: Drafts | None = None

    @property
    def over(self) -> bool:
        """Nothing more is wanted from the connection."""
        return self.done or self.failure is not None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def answer(self) -> str:
        """Without reasoning and calls: what a next turn has as the reply."""
        return "".join(self._answers)

    def headers(self, status: int, content_type: str, now: float) -> None:
        self.status, self.t_headers = status, now
        self._is_stream = status == 200 and content_type.startswith("text/event-stream")

    def body(self, data: bytes, now: float) -> bool:
        """Whether a token came."""
        if not self._is_stream:
            if len(self._plain) < MAX_ERROR:
                self._plain += data
            return False
        before = len(self.chunks)
        self._silent += len(data)
        for name, payload in self._events.feed(data):
            if self.over:
                break
            self._silent = 0
            self._event(name, payload, now)
            if self.leave_after is not None and len(self.chunks) >= self.leave_after:
                self.fail("cancelled", "the client went away, as it was to")
        self._judge_flood()
        return len(self.chunks) > before

    def _judge_flood(self) -> None:
        """A server that does not stop would fill our memory before it is late."""
        if self._silent > MOST_BYTES:
            self.fail("protocol", f"{self._silent:,} bytes came without an event")
        each, besides = MOST_CHUNKS
        if self.most is not None and len(self.chunks) > each * self.most + besides:
            self.fail("protocol", f"{len(self.chunks):,} chunks came where {self.most} tokens may")

    def end(self, now: float, problem: Failure | None = None, why: str = "") -> None:
        """The body ended, or `problem` did. The first failure is the one that is told."""
        if self.t_end is not None:
            return
        self.t_end = now
        if problem and not self.done:
            self.fail(problem, why)
        if self.failure is None:
            self._judge()

    def fail(self, failure: Failure, why: str) -> None:
        if self.failure is None:
            self.failure, self.error = failure, why[:MAX_ERROR]

    def _event(self, name: bytes, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as problem:
            self.fail("protocol", f"event is no chunk of an answer: {problem}")
            return
        if chunk.error is not None or name == b"error" or chunk.object == "error":
            self.fail("in_band", payload.decode("utf-8", "replace"))
            return
        counted = self._count(chunk)
        for choice in chunk.choices or ():
            self._choice(choice, counted, now)
        if chunk.usage is not None:
            self.usage = chunk.usage
        self._details(chunk)

    def _details(self, chunk: Chunk) -> None:
        """What a server tells of this one request, in any of three shapes."""
        timing = chunk.usage.timing if chunk.usage else None
        if timing is not None:
            self.server = ServerTimes(
                queue=_s(timing.queue_ms),
                prefill=_s(timing.prefill_ms),
                decode=_s(timing.decode_ms),
            )
        if chunk.usage is not None and chunk.usage.speculation is not None:
            self.drafts = _drafts(chunk.usage.speculation)
        if (told := chunk.metrics) is not None:
            # vLLM's clock of this figure starts when the request is scheduled: that is prefill.
            self.server = ServerTimes(
                queue=_s(told.queue_time_ms),
                prefill=_s(told.time_to_first_token_ms),
                decode=_s(told.generation_time_ms),
            )
            if told.speculative_decoding is not None:
                self.drafts = _drafts(told.speculative_decoding)
        if (last := chunk.timings) is not None and last.predicted_ms is not None:
            self.server = ServerTimes(prefill=_s(last.prompt_ms), decode=_s(last.predicted_ms))
            if last.draft_n is not None:
                self.drafts = Drafts(drafted=last.draft_n, accepted=last.draft_n_accepted)

    def _count(self, chunk: Chunk) -> int:
        """Tokens of this chunk where the server tells them: usage on every chunk, or token ids."""
        if chunk.usage is not None and chunk.choices:
            total = chunk.usage.completion_tokens or 0
            new, self._counted = total - self._counted, total
            return max(new, 0)
        return sum(len(choice.token_ids or ()) for choice in chunk.choices or ())

    def _choice(self, choice: Choice, counted: int, now: float) -> None:
        delta = choice.delta or Delta()
        answer = (delta.content or "") + (choice.text or "")
        reasoning = (delta.reasoning_content or "") or (delta.reasoning or "")
        calls = [call.function for call in delta.tool_calls or () if call.function]
        self._texts += [reasoning, answer]
        self._answers.append(answer)
        self._texts += [(call.name or "") + (call.arguments or "") for call in calls]
        visible = bool(answer or reasoning or delta.tool_calls)
        # A token may show no text (half a character, a marker); a role prelude is no token.
        said_nothing = delta.content == "" or choice.text == ""
        hidden = said_nothing and delta.role is None and choice.finish_reason is None
        if visible or hidden or counted:
            self.chunks.append((now, counted))
            if self.t_first_answer is None and (answer or delta.tool_calls):
                self.t_first_answer = now
        if choice.finish_reason is not None:
            self.finish = choice.finish_reason

    def _judge(self) -> None:
        if self.status != 200:
            refused = self.status in (429, 503)
            text = bytes(self._plain).decode("utf-8", "replace")
            self.fail("refused" if refused else "http", f"status {self.status}: {text}")
        elif not self._is_stream:
            self.fail("protocol", "answered 200 with something that is no event stream")
        elif self.needs_done and not self.done:
            self.fail("truncated", "the body ended without [DONE]")
        elif self.finish is None:
            self.fail("no_finish", "[DONE] came without a finish reason")
        elif not self.needs_usage and self.usage is None:
            self._judge_unknown()
        elif self.usage is None or not self.usage.completion_tokens:
            self.fail("no_usage", "no usage, or none of the answer; chunks are not tokens")
        else:
            self._judge_length(self.usage.completion_tokens)

    def _judge_unknown(self) -> None:
        if not self.chunks:
            self.fail("protocol", "no token came")
        elif self.finish == "length":
            self.usage = Usage(completion_tokens=self.most)
        elif self.wanted is not None:
            self.fail("length", f"finish reason {self.finish!r}; wanted {self.wanted} tokens")

    def _judge_length(self, told: int) -> None:
        if not self.chunks:
            self.fail("protocol", f"usage tells {told} tokens, and no token came")
        elif told < len(self.chunks) * 0.9 - 2:
            # Nearly: a token that ends reasoning may show as two chunks, and half a character
            # that was held back comes with the end, after the last token.
            self.fail("protocol", f"usage tells {told} tokens; {len(self.chunks)} chunks had some")
        elif self.wanted is not None and (told != self.wanted or self.finish != "length"):
            self.fail(
                "length",
                f"{told} tokens, finish reason {self.finish!r}; wanted {self.wanted} and 'length' "
                "(the server must honour ignore_eos)",
            )


def _s(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3, 6)


def _drafts(told: Speculation) -> Drafts:
    """A histogram alone tells the rest: entry i counts the verifications that accepted i drafts."""
    histogram = told.acceptance_histogram or ()
    if isinstance(histogram, dict):
        most = max((int(key) for key in histogram if key.isdigit()), default=-1)
        histogram = [histogram.get(str(key), 0) for key in range(most + 1)]
    accepted = sum(number * count for number, count in enumerate(histogram))
    return Drafts(
        steps=told.num_spec_steps or sum(histogram) or None,
        drafted=told.num_draft_tokens,
        accepted=accepted if histogram else told.num_accepted_tokens,
        histogram=tuple(histogram),
    )


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_looping(text: str) -> bool:
    """Whether the end of `text` says one thing again and again: a unit of up to 100 characters
    fills the last 400."""
    tail = text[-LOOP_TAIL:]
    if len(tail) < LOOP_TAIL:
        return False
    return any(tail[size:] == tail[:-size] for size in range(1, LOOP_TAIL // 4 + 1))
