"""Options of a caller and defaults of a model → the sampling of one request, checked and complete.
Knows no text."""

import secrets
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from relight.base.errors import BadCheckpoint, BadRequest, BadSetting, TooLong
from relight.base.types import Request, SamplingParams
from relight.text.constrain import Format
from relight.text.conversation import Conversation

T = TypeVar("T", int, float)

RAW_MAX_TOKENS = 16
CHAT_MAX_TOKENS = 8192
THINKING_MAX_TOKENS = 65_536
MAX_EFFORT_MAX_TOKENS = 131_072
MAX_EFFORT = ("ultra", "max")
"""The words for the most effort."""
SEEDS = 2**63


Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
# Both cross to the engine as signed 64-bit numbers; a negative seed is folded into 0 … 2^63 - 1.
TopK = Annotated[int, Meta(ge=-1, le=SEEDS - 1)]
Seed = Annotated[int, Meta(ge=-SEEDS, le=SEEDS - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
# Any finite logit, divided or multiplied by it, is a finite float32.
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=100)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Choices = Annotated[int, Meta(ge=1, le=128)]
MaxTokens = Annotated[int, Meta(ge=1)]
MinTokens = Annotated[int, Meta(ge=0)]
ThinkingBudget = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0)]
# Every token of an answer is compared with every beginning of every stop string.
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
CacheSalt = Annotated[str, Meta(max_length=256)]
MAX_STOPS = Meta(max_length=16)
MAX_STOP_IDS = Meta(max_length=64)
MAX_BIASES = Meta(max_length=1024)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one request asks of generation. None means: the server's or the model's default.

    `stop_token_ids` end the answer beside the end of the turn, which `ignore_eos` switches off.
    `top_k` 0 and -1 are off. Penalties count the tokens of the answer, not those of the prompt.
    `logit_bias` is added to the logits of tokens. Before `min_tokens` are made no stop token is
    drawn, and a stop string that is complete ends nothing. `logprobs`: each token is told with its
    log probability and so many of the best ones. `n` answers are made, the first of them as if it
    were the only one. Without `parallel_tool_calls` only the first call is passed on. Reasoning
    that `thinking_budget` tokens have not ended is ended there. `format` is the form of content.
    """

    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: Annotated[tuple[StopString, ...], MAX_STOPS] = ()
    include_stop: bool = False
    stop_token_ids: Annotated[tuple[TokenId, ...], MAX_STOP_IDS] = ()
    ignore_eos: bool = False
    min_tokens: MinTokens = 0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    logit_bias: Annotated[dict[TokenId, Bias], MAX_BIASES] = {}
    logprobs: TopLogprobs | None = None
    n: Choices = 1
    parallel_tool_calls: bool = True
    cache_salt: CacheSalt = ""
    thinking_budget: ThinkingBudget | None = None
    format: Format | None = None


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint recommends in generation_config.json; None is neutral."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None

    @classmethod
    def parse(cls, text: str) -> "SamplingDefaults":
        """Those of an operator, a JSON object; raises `BadSetting` if it is none."""
        try:
            return msgspec.json.decode(text or "{}", type=_Strict)
        except msgspec.MsgspecError as error:
            raise BadSetting(
                f"default_sampling is {text!r}: {error}; wanted JSON such as "
                '{"temperature": 0.6, "top_p": 0.95}',
                param="default_sampling",
            ) from error

    def over(self, other: "SamplingDefaults") -> "SamplingDefaults":
        """These, and those of `other` where there is none."""
        own = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }
        return msgspec.structs.replace(other, **own)

    @classmethod
    def load(cls, folder: Path) -> "SamplingDefaults":
        """Neutral if there is no such file; raises `BadCheckpoint` if it cannot be read. A model
        that is not to be sampled (`do_sample` false) has temperature 0."""
        path = folder / "generation_config.json"
        if not path.exists():
            return cls()
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Recommended)
        except (OSError, msgspec.MsgspecError) as error:
            raise BadCheckpoint(f"{path}: {error}; correct or remove the file") from error
        if found.temperature is None and not found.do_sample:
            return msgspec.structs.replace(found, temperature=0.0)
        return found


class _Recommended(SamplingDefaults, frozen=True):
    do_sample: bool = True


class _Strict(SamplingDefaults, frozen=True, forbid_unknown_fields=True):
    pass


def sampling(
    options: Options, defaults: SamplingDefaults, *, max_tokens: int, eos: int
) -> SamplingParams:
    """A request without a seed gets one here, so that its text can be made again."""
    stop_ids = options.stop_token_ids if options.ignore_eos else (eos, *options.stop_token_ids)
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed % SEEDS
    return SamplingParams(
        temperature=_first(options.temperature, defaults.temperature, 1.0),
        top_p=_first(options.top_p, defaults.top_p, 1.0),
        top_k=max(0, _first(options.top_k, defaults.top_k, 0)),
        min_p=_first(options.min_p, defaults.min_p, 0.0),
        seed=seed,
        max_tokens=max_tokens,
        stop_token_ids=tuple(dict.fromkeys(stop_ids)),
        frequency_penalty=options.frequency_penalty,
        presence_penalty=options.presence_penalty,
        repetition_penalty=options.repetition_penalty,
        logit_bias=tuple(sorted((t, bias) for t, bias in options.logit_bias.items() if bias)),
        min_tokens=options.min_tokens,
        logprobs=options.logprobs,
    )


def _first(asked: T | None, recommended: T | None, neutral: T) -> T:
    if asked is not None:
        return asked
    return neutral if recommended is None else recommended


def chat_max_tokens(conversation: Conversation) -> int:
    """The hosted service's limit for a request that sets none."""
    if not conversation.thinking:
        return CHAT_MAX_TOKENS
    return MAX_EFFORT_MAX_TOKENS if conversation.effort in MAX_EFFORT else THINKING_MAX_TOKENS


def output_limit(
    num_prompt: int,
    asked: int | None,
    default: int,
    max_context: int,
    *,
    param: str,
    most: int = 0,
    clamp: bool = True,
) -> int:
    """The most tokens that a request may make: what it asks, cut to the room that is left, unless
    not `clamp`, and to `most` unless that is 0.

    Clients parse the sentence of the error for its numbers, so its shape is the hosted service's.
    """
    too_much = asked is not None and num_prompt + asked > max_context
    if num_prompt >= max_context or (too_much and not clamp):
        made = asked or 0
        raise TooLong(
            f"This model's maximum context length is {max_context} tokens. However, you requested "
            f"{num_prompt + made} tokens ({num_prompt} in the {param}, {made} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            param=param,
            num_tokens=num_prompt,
            limit=max_context,
        )
    limit = min(default if asked is None else asked, max_context - num_prompt)
    return min(limit, most) if most else limit


def check_min_tokens(options: Options, default: int) -> None:
    """Raises `BadRequest` if more tokens are wanted at least than at most."""
    most = default if options.max_tokens is None else options.max_tokens
    if options.min_tokens > most:
        raise BadRequest(
            f"min_tokens is {options.min_tokens}, more than the {most} of max_tokens; lower it or "
            "raise max_tokens",
            param="min_tokens",
        )


def scoring(request: Request) -> Request:
    """A request that makes its prompt from the first token on. Raises `BadRequest` if it would make
    nothing."""
    first, forced = request.prompt[:1], request.prompt[1:]
    asked = request.sampling
    if not forced and not asked.max_tokens:
        raise BadRequest(
            "prompt is one token, which has no log probability, and max_tokens is 0; send more of "
            "one of them",
            param="max_tokens",
        )
    sampling = msgspec.structs.replace(
        asked,
        forced=forced,
        max_tokens=len(forced) + asked.max_tokens,
        min_tokens=len(forced) + asked.min_tokens if asked.min_tokens else 0,
    )
    return msgspec.structs.replace(request, prompt=first, sampling=sampling)
