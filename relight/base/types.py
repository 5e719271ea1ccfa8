"""The messages that cross rooms and processes: requests in, token deltas out. Knows no text."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are drawn. Ranges are checked where a request enters.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` is always set: a
    request without one gets a random seed at admission, so a sequence can be recomputed.
    `think_close` is made after `think_budget` tokens if it was not before; None: no budget. The
    first tokens that are made are `forced`, whatever they are; none of them ends the sequence.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    think_budget: int | None = None
    think_close: int = 0
    forced: tuple[int, ...] = ()

    @property
    def counted(self) -> bool:
        """Whether a draw depends on which tokens were made before."""
        return self.penalised or self.think_budget is not None

    @property
    def penalised(self) -> bool:
        return (
            self.frequency_penalty != 0
            or self.presence_penalty != 0
            or self.repetition_penalty != 1
        )


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer may say: a text of `grammar`, in the language of llguidance, and then its end.

    The grammar holds from the first token or, if `after` is set, behind the first such token; with
    `opens_tag` only one that follows `<` counts. Before that all tokens but `banned` may be drawn.
    """

    grammar: str
    after: int | None = None
    opens_tag: bool = False
    banned: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. `record_hints` are token offsets where a turn of the prompt starts:
    places where a later prompt is likely to branch off. `cache_salt` parts the prefix cache.

    `priority` 0 goes before 1; among equals, that of the `client` served least. `deadline_s` after
    its arrival the request is given up; 0: never."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    record_hints: tuple[int, ...] = ()
    cache_salt: str = ""
    priority: int = 0
    client: str = ""
    deadline_s: float = 0.0
    constraint: Constraint | None = None


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities by the model's own logits, before penalties, bias, temperature and cuts: of
    the drawn token, and of the best tokens as (id, value), the best first. All are finite: what the
    model excludes has -9999."""

    own: float
    top: tuple[tuple[int, float], ...] = ()


class Guessed(msgspec.Struct, frozen=True, array_like=True):
    """What became of guesses at the tokens of an answer: so many were checked. `checks[i]` counts
    the times when i of those that were checked at once were right."""

    drafted: int
    checks: tuple[int, ...]


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step made for one request. `finish` is set on the last delta of a request, and no
    delta follows it. A stop token is part of `tokens`. `num_cached` counts the prompt tokens that
    were reused; it is the same in every delta. `queue_s` is from the arrival of the request at the
    engine to its slot, `prefill_s` from its slot to its first token. `logprobs` has one entry for
    each token if the request asked for them. `guessed` is of all of its tokens so far, None: there
    were no guesses."""

    id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None
    num_cached: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    guessed: Guessed | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one answer or of all answers of a call, in tokens; for a call, too, how long
    it waited, was read and was made, and what became of guesses at its tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    guessed: Guessed | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine tells its clients once it is ready to serve. `memory` is what it was predicted
    to take, in bytes by kind, `measured` what was found after a first step. `notes` are what a user
    should know of how settings and machine go together."""

    model: str
    max_context: int
    num_slots: int
    num_pages: int
    operator: str
    memory: tuple[tuple[str, int], ...] = ()
    measured: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


class TableReads(msgspec.Struct, frozen=True):
    """Rows that steps asked for of n-gram tables which do not lie on the device, each once a step
    and table. `hits` of them needed no disk. `errors`: look-ups that failed."""

    rows: int = 0
    hits: int = 0
    bytes_read: int = 0
    errors: int = 0


class SpecChoice(msgspec.Struct, frozen=True, array_like=True):
    """How many tokens are guessed for answers of one kind: drawn `sampling` (greedy, sampled), in a
    `section` (reasoning, content, tool), in steps of `requests` (1, 2-4, 5-16, 17+) that make
    tokens. `depth` 0: none, since they would lose time."""

    sampling: str
    section: str
    requests: str
    depth: int
    threshold: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine after its last step. Counters never go back. `tokens_per_s` read and
    made, and `mean_output` tokens of an answer, are of late.

    `spec_drafts`: how often guesses were checked; `spec_drafted` and `spec_accepted`: by position,
    how many there were and how many were right with all before them; `spec_steps`: steps that
    checked some and read no prompt, and how long they took. `bounded_tokens`: prompt
    tokens that were read approximately."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    pages_total: int = 0
    pages_held: int = 0
    pages_cached: int = 0
    records_total: int = 0
    records_used: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    step_s: float = 0.0
    tokens_per_s: float = 0.0
    mean_output: float = 0.0
    spec_drafts: int = 0
    spec_drafted: tuple[int, ...] = ()
    spec_accepted: tuple[int, ...] = ()
    spec_too_long: int = 0
    spec_steps: int = 0
    spec_step_s: float = 0.0
    spec_choices: tuple[SpecChoice, ...] = ()
    tables: TableReads = TableReads()
    bounded_tokens: int = 0
