"""The first and the last line of a request's life: what is asked → prompt ids → engine → pieces.
Knows no wire format, and no engine beyond its client."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec

from relight.base.errors import BadRequest, StepFailed, Unavailable
from relight.base.packaged import model_folder
from relight.base.settings import Settings
from relight.base.types import EngineInfo, FinishReason, Request, TokenDelta
from relight.engine.client import EngineClient
from relight.session.aside import Aside, num_characters
from relight.session.checker import Checker, InChild, InProcess
from relight.session.constrain import Constrainer
from relight.session.encoding import encoding_of
from relight.session.heard import Heard
from relight.session.job import Job, Observer, Times, stop_token, text_tokens
from relight.session.memory import Memory, Opening
from relight.session.pieces import Finish, Piece
from relight.session.pipeline import ChatPipeline, Pipeline, RawPipeline
from relight.session.request import (
    RAW_MAX_TOKENS,
    Options,
    SamplingDefaults,
    chat_max_tokens,
    check_min_tokens,
    output_limit,
    sampling,
    scoring,
)
from relight.text.calls import Markup
from relight.text.constrain import Wanted
from relight.text.conversation import Conversation
from relight.text.detokenize import StopStrings
from relight.text.fim import fill_in
from relight.text.fingerprint import fingerprint
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer
from relight.text.writer import Prompt

log = logging.getLogger(__name__)


class Session:
    """One engine and one tokenizer, as a server or a program uses them."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        encoder: PromptEncoder,
        *,
        defaults: SamplingDefaults | None = None,
        default_max_tokens: int = 0,
        default_effort: str | None = None,
        max_output: int = 0,
        clamp: bool = True,
        memory: Memory | None = None,
        checker: Checker | None = None,
        observer: Observer | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default_max_tokens` 0: the hosted service's rule. `max_output` bounds every answer, 0
        none. `clamp` lowers what exceeds the context, else it is refused. With a `memory` the
        ids of answers stand as they were made in the prompts that go on from them. `new_id` gives
        32 hex digits."""
        self.client = client
        self.tokenizer = tokenizer
        self.new_id = new_id
        self._encoder = encoder
        self._defaults = defaults or SamplingDefaults()
        self._default_max_tokens = default_max_tokens
        self._default_effort = default_effort
        self._max_output = max_output
        self._clamp = clamp
        self._memory = memory
        self._constrainer = Constrainer(
            checker or Checker(InProcess(tokenizer)),
            Markup(encoder.tags, tokenizer.special.dsml),
            tokenizer.special,
        )
        self._observer = observer
        self._clock = clock
        self._aside = Aside()

    @classmethod
    def open(
        cls,
        settings: Settings,
        client: EngineClient | Callable[[], EngineClient],
        observer: Observer | None = None,
    ) -> "Session":
        """A session on the checkpoint that `client` serves. One that takes long to make is made
        last, by the function that is given for it. Raises `BadCheckpoint`."""
        folder = model_folder(settings.model)
        tokenizer = Tokenizer.load(folder, trust=settings.trust_tokenizer)
        # Else a prompt has the same ids whatever was answered before.
        reuses = settings.reuse_generated == "on" and settings.prefix_cache == "on"
        encoder = PromptEncoder(tokenizer, encoding_of(settings, folder, tokenizer))
        models_own = SamplingDefaults.load(folder)
        return cls(
            client() if callable(client) else client,
            tokenizer,
            encoder,
            defaults=SamplingDefaults.parse(settings.default_sampling).over(models_own),
            default_max_tokens=settings.default_max_tokens,
            default_effort=None if settings.default_effort == "auto" else settings.default_effort,
            max_output=settings.max_output,
            clamp=settings.overflow == "clamp",
            memory=Memory() if reuses else None,
            checker=Checker(InChild(folder)),
            observer=observer,
        )

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    def _with_effort(self, conversation: Conversation) -> Conversation:
        if self._default_effort is None or conversation.effort is not None:
            return conversation
        return msgspec.structs.replace(conversation, effort=self._default_effort)

    async def encode_chat(self, conversation: Conversation, cache_salt: str = "") -> Prompt:
        conversation = self._with_effort(conversation)
        recall = self._memory.recall(cache_salt) if self._memory else None
        return await self._aside(
            lambda: self._encoder.encode(conversation, recall), num_characters(conversation)
        )

    async def encode_raw(self, text: str) -> list[int]:
        return await self._aside(lambda: self.tokenizer.encode_raw(text), len(text))

    async def decode(self, ids: Sequence[int]) -> str:
        self.check_ids(ids, "tokens")
        return await self._aside(lambda: self.tokenizer.decode(ids), 4 * len(ids))

    async def spell(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, U+FFFD where it is no whole character."""

        def texts() -> list[str]:
            return [self.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]

        return await self._aside(texts, 4 * len(ids))

    async def chat(self, conversation: Conversation, options: Options) -> Job:
        """Raises `BadRequest` for what a prompt cannot hold and `TooLong` for its length."""
        arrived = self._clock()
        conversation = self._with_effort(conversation)
        contents = sum(len(message.content or "") for message in conversation.messages)
        self._check_room(contents, options, "messages")
        prompt = await self.encode_chat(conversation, options.cache_salt)
        default = self._default_max_tokens or chat_max_tokens(conversation)
        request = self._request(prompt.ids, options, default, "messages", prompt.record_hints)
        if prompt.start == "reasoning" and options.thinking_budget is not None:
            request = self._with_budget(request, options.thinking_budget)
        wanted = Wanted.of(
            conversation,
            options.format,
            prompt.start,
            continued=prompt.continued,
            parallel=options.parallel_tool_calls,
        )
        request = await self._constrained(request, wanted)
        if self._memory:
            explain = partial(self._memory.explain, options.cache_salt, prompt)
            if found := await self._aside(explain, len(prompt.ids)):
                log.info("%s: %s", request.id, found.told(len(prompt.ids)))
        return Job(
            request,
            options,
            prompt.start,
            arrived,
            conversation.usable_tools,
            prompt.continued,
            Opening.of(prompt),
        )

    async def complete(
        self,
        prompt: str | Sequence[int],
        options: Options,
        suffix: str = "",
        *,
        scored: bool = False,
    ) -> Job:
        """A prompt without layout: text in which special tokens may be spelt, or ids. With a suffix
        the answer is what stands between the two. `scored`: the answer begins with the prompt, all
        of whose tokens but the first are told with their log probabilities; then the limit may be
        0. Raises as `chat` does."""
        arrived = self._clock()
        if isinstance(prompt, str):
            self._check_room(len(prompt), options, "prompt")
        ids = await self.encode_raw(prompt) if isinstance(prompt, str) else prompt
        self.check_ids(ids, "prompt")
        if suffix:
            ids = fill_in(self.tokenizer, ids, await self.encode_raw(suffix))
        if not ids:
            raise BadRequest("prompt is empty; send at least one token", param="prompt")
        request = self._request(ids, options, RAW_MAX_TOKENS, "prompt")
        if scored:
            request = scoring(request)
        request = await self._constrained(request, Wanted(start="raw", format=options.format))
        return Job(request, options, "raw", arrived, scored=scored)

    async def _constrained(self, request: Request, wanted: Wanted) -> Request:
        """Raises `BadRequest` for a form of the answer that cannot be kept."""
        constraint = await self._constrainer.constraint(wanted)
        return msgspec.structs.replace(request, constraint=constraint)

    def _with_budget(self, request: Request, num_tokens: int) -> Request:
        sampling = msgspec.structs.replace(
            request.sampling,
            think_budget=num_tokens,
            think_close=self.tokenizer.special.think_close,
        )
        return msgspec.structs.replace(request, sampling=sampling)

    def choices(self, job: Job) -> list[Job]:
        """The job once for each answer that it asks for."""
        return [job, *(self._choice(job, number) for number in range(1, job.options.n))]

    def _choice(self, job: Job, number: int) -> Job:
        sampling = msgspec.structs.replace(job.request.sampling, choice=number)
        request = msgspec.structs.replace(job.request, id=self.new_id(), sampling=sampling)
        return replace(job, request=request, times=Times())

    async def run(
        self, job: Job, started: asyncio.Event | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Yields pieces, the last a `Finish`. Closing the generator aborts the request. Sets
        `started` once the prompt has been read. Raises `StepFailed` if a step failed, `Unavailable`
        if the engine gave the request up."""
        pipeline = self._pipeline(job)
        heard = Heard() if self._memory and job.opening else None
        produced = 0
        first_s: float | None = None
        ending: FinishReason | None = None
        last = TokenDelta(id=job.request.id)
        try:
            async with aclosing(self._deltas(job)) as deltas:
                if job.scored:
                    for piece in pipeline.feed(job.request.prompt):
                        yield piece
                async for delta in deltas:
                    last = delta
                    if first_s is None:
                        first_s = self._clock()
                    if started:
                        started.set()
                    produced += len(delta.tokens)
                    job.times.num_cached = delta.num_cached
                    job.times.guessed = delta.guessed
                    job.times.num_made = max(0, produced - job.num_forced)
                    if self._observer:
                        self._observer.delta(job, delta)
                    if delta.finish == "error":
                        raise StepFailed(delta.error or "the engine failed in this request's step")
                    if delta.finish == "abort":
                        ending = "abort"
                        raise Unavailable("the engine gave this request up; send it again later")
                    tokens = text_tokens(job, delta)
                    pieces = pipeline.feed(tokens, delta.logprobs)
                    job.times.num_reasoning = pipeline.reasoning_tokens
                    if heard:
                        heard.add(tokens, pieces)
                    for piece in pieces:
                        yield piece
                    if pipeline.stopped_by is not None:
                        break
            if pipeline.stopped_by is None:
                stopped, in_markup = last.finish == "stop", pipeline.in_markup
                pieces = pipeline.finish(stopped=stopped)
                if heard and (stopped or not in_markup):
                    heard.add((), pieces)
                    self._remember(job, pipeline, heard)
                for piece in pieces:
                    yield piece
            times = job.times
            times.queue_s, times.prefill_s = last.queue_s, last.prefill_s
            times.decode_s = 0.0 if first_s is None else self._clock() - first_s
            finish = times.finish = self._finish(job, pipeline, last)
            ending = "length" if finish.reason == "length" else "stop"
            yield finish
        except (asyncio.CancelledError, GeneratorExit):
            ending = ending or "abort"
            raise
        finally:
            if self._observer:
                self._observer.ended(job, ending or "error")

    def _remember(self, job: Job, pipeline: Pipeline, heard: Heard) -> None:
        """Unless there are calls that the client was not told."""
        if self._memory is None or job.opening is None or pipeline.num_calls != heard.num_calls:
            return
        prompt, at = job.request.prompt, job.opening.at
        ids = [*prompt[at:], *heard.ids]
        if pipeline.in_reasoning:
            ids.append(self.tokenizer.special.think_close)
        said = fingerprint(heard.message())
        self._memory.remember(job.request.cache_salt, job.opening, prompt[:at], ids, said)

    def _deltas(self, job: Job) -> AsyncGenerator[TokenDelta, None]:
        # The protocol promises that the iterator can be closed, which its type does not say.
        return cast(AsyncGenerator[TokenDelta, None], self.client.generate(job.request))

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises `BadRequest` for an id that the vocabulary does not have."""
        largest = max(ids, default=0)
        if largest >= self.tokenizer.vocab_size:
            raise BadRequest(
                f"{param} holds the token id {largest}; this model's ids end at "
                f"{self.tokenizer.vocab_size - 1}",
                param=param,
            )

    def _check_room(self, num_characters: int, options: Options, param: str) -> None:
        """Raises `TooLong` for a text that is longer than the context were it all of the longest
        token: nobody has to wait until it is encoded. The tokens that are told are then the fewest
        that it can have."""
        fewest = num_characters // self.tokenizer.longest
        if fewest >= self.info.max_context:
            self._limit(fewest, options, 0, param)

    def _limit(self, num_prompt: int, options: Options, default: int, param: str) -> int:
        return output_limit(
            num_prompt,
            options.max_tokens,
            default,
            self.info.max_context,
            param=param,
            most=self._max_output,
            clamp=self._clamp,
        )

    def _request(
        self,
        ids: Sequence[int],
        options: Options,
        default_max_tokens: int,
        param: str,
        record_hints: Sequence[int] = (),
    ) -> Request:
        self.check_ids(options.stop_token_ids, "stop_token_ids")
        self.check_ids(tuple(options.logit_bias), "logit_bias")
        check_min_tokens(options, default_max_tokens)
        limit = self._limit(len(ids), options, default_max_tokens, param)
        return Request(
            id=self.new_id(),
            prompt=tuple(ids),
            sampling=sampling(
                options, self._defaults, max_tokens=limit, eos=self.tokenizer.special.eos
            ),
            record_hints=tuple(record_hints),
            cache_salt=options.cache_salt,
        )

    def _pipeline(self, job: Job) -> Pipeline:
        stops = StopStrings(job.options.stop, job.options.include_stop)
        if job.start == "raw":
            # A stop string in the prompt ends nothing, and its first token is read with the others.
            prompt = job.num_prompt + 1 if job.scored else 0
            return RawPipeline(self.tokenizer, stops, max(prompt, job.options.min_tokens))
        return ChatPipeline(
            self.tokenizer,
            job.start,
            job.tools,
            stops,
            job.options.min_tokens,
            continued=job.continued,
            parallel=job.options.parallel_tool_calls,
            new_id=self.new_id,
        )

    def _finish(self, job: Job, pipeline: Pipeline, last: TokenDelta) -> Finish:
        usage = job.usage
        if pipeline.stopped_by is not None:
            return Finish("stop", usage, pipeline.stopped_by)
        if last.finish == "length":
            return Finish("length", usage)
        token = stop_token(job, last)
        asked = token if token in job.options.stop_token_ids else None
        return Finish("tool_calls" if pipeline.called else "stop", usage, asked)
