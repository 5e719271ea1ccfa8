"""An EngineClient that plays tokens written down beforehand. Knows no scheduler and no model.

For tests of all that stands above the engine, and for measuring a server without its model.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from relight.base.errors import Unavailable
from relight.base.types import EngineInfo, EngineStats, FinishReason, Logprobs, Request, TokenDelta
from relight.engine.client import EngineState

INFO = EngineInfo(
    model="replay", max_context=4096, num_slots=8, num_pages=256, operator="replay", memory=()
)


def certain(token: int) -> Logprobs:
    """As if there had been no other token."""
    return Logprobs(0.0)


class ReplayClient:
    """Answers a request with `answer(request)`, `per_delta` tokens at a time.

    The answer ends as an engine would end it: "stop" with a stop token of the request, "length" at
    its `max_tokens`, else `finish` (with `error`) after the last token. An exception that `answer`
    raises comes out of `generate`, as a refusal by an engine does. `score` makes the log
    probabilities of a token, for requests that ask for them. While `gate` is clear no delta
    comes: so a test can hold an answer anywhere. `requests` and `aborted` tell what was asked.
    """

    def __init__(
        self,
        answer: Callable[[Request], Sequence[int]],
        *,
        info: EngineInfo = INFO,
        per_delta: int = 1,
        num_cached: int = 0,
        finish: FinishReason = "stop",
        error: str | None = None,
        score: Callable[[int], Logprobs] = certain,
    ) -> None:
        self.answer = answer
        self.info = info
        self.per_delta = per_delta
        self.num_cached = num_cached
        self.finish = finish
        self.error = error
        self.score = score
        self.gate = asyncio.Event()
        self.gate.set()
        self.condition: EngineState | None = None
        """What `state()` says; None: idle or busy, whichever is true."""
        self.tokens_per_s = 0.0
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.num_running = 0
        self.num_tokens = 0

    def state(self) -> EngineState:
        return self.condition or ("busy" if self.num_running else "idle")

    async def stats(self) -> EngineStats:
        prompt_tokens = sum(len(request.prompt) for request in self.requests)
        return EngineStats(
            running=self.num_running,
            prompt_tokens=prompt_tokens,
            cached_tokens=self.num_cached * len(self.requests),
            generated_tokens=self.num_tokens,
            tokens_per_s=self.tokens_per_s,
        )

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        if self.state() not in ("idle", "busy"):
            raise Unavailable(f"the engine is {self.state()}")
        self.requests.append(request)
        scored = request.sampling.logprobs is not None
        tokens, finish = self._cut(request, self.answer(request))
        self.num_running += 1
        try:
            for start in range(0, max(len(tokens), 1), self.per_delta):
                await self.gate.wait()
                await asyncio.sleep(0)  # a real engine lets other tasks run between its deltas
                chunk = tuple(tokens[start : start + self.per_delta])
                self.num_tokens += len(chunk)
                last = start + self.per_delta >= len(tokens)
                yield TokenDelta(
                    id=request.id,
                    tokens=chunk,
                    logprobs=tuple(map(self.score, chunk)) if scored else (),
                    finish=finish if last else None,
                    error=self.error if last and finish == "error" else None,
                    num_cached=self.num_cached,
                )
                if last:
                    return
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request.id)
            raise
        finally:
            self.num_running -= 1

    def _cut(self, request: Request, tokens: Sequence[int]) -> tuple[Sequence[int], FinishReason]:
        sampling = request.sampling
        for count, token in enumerate(tokens[: sampling.max_tokens], start=1):
            if token in sampling.stop_token_ids:
                return tokens[:count], "stop"
        if len(tokens) >= sampling.max_tokens:
            return tokens[: sampling.max_tokens], "length"
        return tokens, self.finish
