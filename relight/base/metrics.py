"""Every metric, declared once: name, kind, help, labels, buckets. Knows no exporter and no values.

Names that begin with `vllm:` mean what they mean there, so that existing dashboards work; those
that begin with `relight:` have no counterpart. A counter is exported with `_total` after its name.
Every metric also carries the labels `model_name` and `engine`.
"""

from dataclasses import dataclass
from typing import Literal

COMMON_LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def decades(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit`."""
    steps = [m * 10**e for e in range(len(str(limit))) for m in (1, 2, 5)]
    return tuple(float(step) for step in steps if step <= limit)


def spaced(low: float, high: float) -> tuple[float, ...]:
    """Seconds from `low` past `high` in equal ratios of 15 %: any quantile is read off that finely.

    The coarse upper buckets usual elsewhere (160, 640, 2560) say nothing about long prompts.
    """
    buckets = [low]
    while buckets[-1] < high:
        buckets.append(float(f"{buckets[-1] * 1.15:.3g}"))
    return tuple(buckets)


TOKENS = decades(2**20)
FIRST_TOKEN_S = spaced(0.001, 1000)
TOKEN_S = spaced(0.001, 20)
REQUEST_S = spaced(0.01, 8000)

RUNNING = Metric("vllm:num_requests_running", "gauge", "Requests that hold a slot.")
WAITING = Metric("vllm:num_requests_waiting", "gauge", "Requests in the queue.")
WAITING_BY = Metric(
    "vllm:num_requests_waiting_by_reason",
    "gauge",
    "Requests in the queue, by what they wait for; here always room (capacity).",
    labels=("reason",),
)
SLEEP = Metric(
    "vllm:engine_sleep_state",
    "gauge",
    "1 for the state that the engine is in; this one is always awake.",
    labels=("sleep_state",),
)
CACHE_INFO = Metric(
    "vllm:cache_config_info",
    "gauge",
    "1, with the size of a page in tokens and the number of pages.",
    labels=("block_size", "num_gpu_blocks"),
)
CACHE_USAGE = Metric(
    "vllm:kv_cache_usage_perc", "gauge", "Share of pages that running requests hold, 0 to 1."
)
PROMPT_TOKENS = Metric("vllm:prompt_tokens", "counter", "Prompt tokens of admitted requests.")
CACHED_TOKENS = Metric(
    "vllm:prompt_tokens_cached", "counter", "Prompt tokens that were reused, not computed."
)
PROMPT_BY_SOURCE = Metric(
    "vllm:prompt_tokens_by_source",
    "counter",
    "Prompt tokens that were computed (local_compute) or reused (local_cache_hit).",
    labels=("source",),
)
CACHE_QUERIES = Metric(
    "vllm:prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix index."
)
CACHE_HITS = Metric("vllm:prefix_cache_hits", "counter", "Prompt tokens found in the prefix index.")
GENERATION_TOKENS = Metric("vllm:generation_tokens", "counter", "Tokens generated.")
PREEMPTIONS = Metric("vllm:num_preemptions", "counter", "Requests that lost their slot for a time.")
SUCCESS = Metric(
    "vllm:request_success",
    "counter",
    "Requests that ended, by reason: stop, length, abort, error.",
    labels=("finished_reason",),
)
REJECTIONS = Metric(
    "vllm:admission_rejections", "counter", "Requests refused, by error code.", labels=("reason",)
)
FIRST_TOKEN = Metric(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "From the arrival of a request to its first token.",
    buckets=FIRST_TOKEN_S,
)
TOKEN_GAP = Metric(
    "vllm:inter_token_latency_seconds",
    "histogram",
    "Between one token of a request and the next.",
    buckets=TOKEN_S,
)
REQUEST_TIME = Metric(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "From the arrival of a request to its end.",
    buckets=REQUEST_S,
)
QUEUE_TIME = Metric(
    "vllm:request_queue_time_seconds",
    "histogram",
    "From the arrival of a request at the engine to its slot.",
    buckets=REQUEST_S,
)
PREFILL_TIME = Metric(
    "vllm:request_prefill_time_seconds",
    "histogram",
    "From the slot of a request to its first token.",
    buckets=FIRST_TOKEN_S,
)
DECODE_TIME = Metric(
    "vllm:request_decode_time_seconds",
    "histogram",
    "From the first token of a request to its last.",
    buckets=REQUEST_S,
)
INFERENCE_TIME = Metric(
    "vllm:request_inference_time_seconds",
    "histogram",
    "From the slot of a request to its last token.",
    buckets=REQUEST_S,
)
TOKEN_TIME = Metric(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Between the tokens of a request, on average.",
    buckets=TOKEN_S,
)
REQUEST_PROMPT = Metric(
    "vllm:request_prompt_tokens", "histogram", "Prompt tokens of a request.", buckets=TOKENS
)
REQUEST_GENERATION = Metric(
    "vllm:request_generation_tokens", "histogram", "Tokens that a request made.", buckets=TOKENS
)
REQUEST_COMPUTED = Metric(
    "vllm:request_prefill_kv_computed_tokens",
    "histogram",
    "Prompt tokens of a request that were computed, not reused.",
    buckets=TOKENS,
)
LONGEST_GENERATION = Metric(
    "vllm:request_max_num_generation_tokens",
    "histogram",
    "Tokens of the longest answer to a request.",
    buckets=TOKENS,
)
PARAMS_MAX_TOKENS = Metric(
    "vllm:request_params_max_tokens",
    "histogram",
    "The most tokens that an answer to a request could have.",
    buckets=TOKENS,
)
PARAMS_N = Metric(
    "vllm:request_params_n", "histogram", "Answers that a request asked for.", buckets=decades(100)
)
STEPS = Metric("relight:engine_steps", "counter", "Steps of the engine.")
STEP_TIME = Metric("relight:step_seconds", "gauge", "How long the last step took.")
PACE = Metric(
    "relight:tokens_per_second",
    "gauge",
    "Tokens read and made in a second of steps, of late: what a predicted wait is reckoned by.",
)
RECORDS = Metric(
    "relight:boundary_records", "gauge", "Boundary records, by state: used, total.", ("state",)
)
PAGES = Metric("relight:pages", "gauge", "Pages, by state: held, cached, total.", ("state",))
SPEC_KIND = ("sampling", "section", "requests")
SPEC_DRAFTS = Metric(
    "vllm:spec_decode_num_drafts", "counter", "How often guesses at next tokens were checked."
)
SPEC_DRAFTED = Metric("vllm:spec_decode_num_draft_tokens", "counter", "Guesses that were checked.")
SPEC_ACCEPTED = Metric(
    "vllm:spec_decode_num_accepted_tokens",
    "counter",
    "Guesses that were right, all before them too.",
)
SPEC_ACCEPTED_AT = Metric(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "counter",
    "The same by position behind the token that was known, from 0.",
    labels=("position",),
)
SPEC_DRAFTED_AT = Metric(
    "relight:spec_decode_num_draft_tokens_per_pos",
    "counter",
    "Guesses that were checked, by position: what those that were right are a share of.",
    labels=("position",),
)
SPEC_ADVANCE = Metric(
    "relight:spec_decode_advance",
    "gauge",
    "Tokens that a check of guesses brings, the one that is drawn anyway included; 0 before any.",
)
SPEC_STEPS = Metric(
    "relight:spec_decode_steps",
    "counter",
    "Steps that checked guesses and read no prompt.",
)
SPEC_STEP_TIME = Metric(
    "relight:spec_decode_step_seconds",
    "counter",
    "How long those steps took: divided by their number, the interval from one to the next.",
)
SPEC_DEPTH = Metric(
    "relight:spec_decode_depth",
    "gauge",
    "Guesses that pay most, by how answers are drawn, the section that they write, and the "
    "requests that share a step; 0: none, as they would lose time. With spec_k all labels are all.",
    labels=SPEC_KIND,
)
SPEC_THRESHOLD = Metric(
    "relight:spec_decode_threshold",
    "gauge",
    "The least probability of a guess, by the draft, that goes with that number.",
    labels=SPEC_KIND,
)
SPEC_TOO_LONG = Metric(
    "relight:spec_decode_prompts_too_long",
    "counter",
    "Requests without guesses for the length of their prompt (spec_max_prompt).",
)
TABLE_ROWS = Metric(
    "relight:engram_rows",
    "counter",
    "Rows that steps asked for of n-gram tables in RAM or in the checkpoint, each once a step.",
)
TABLE_HITS = Metric(
    "relight:engram_row_hits",
    "counter",
    "Of those rows, how many needed no disk: they lay in RAM, for engram mmap in the page cache of "
    "the system; 0 there where a system cannot tell.",
)
TABLE_BYTES = Metric(
    "relight:engram_bytes_read",
    "counter",
    "Bytes of those rows, from RAM or from the checkpoint's files.",
)
TABLE_ERRORS = Metric(
    "relight:engram_read_errors",
    "counter",
    "Look-ups that failed, since a disk did or a file became shorter; their requests have ended.",
)
BOUNDED_TOKENS = Metric(
    "relight:bounded_replay_tokens",
    "counter",
    "Prompt tokens that were read approximately, without the decoder (replay bounded); 0: none.",
)
IGNORED_FIELDS = Metric(
    "relight:ignored_fields",
    "counter",
    "Request fields that were accepted and had no effect.",
    labels=("field",),
)

METRICS = (
    RUNNING,
    WAITING,
    WAITING_BY,
    SLEEP,
    CACHE_INFO,
    CACHE_USAGE,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    PROMPT_BY_SOURCE,
    CACHE_QUERIES,
    CACHE_HITS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    SUCCESS,
    REJECTIONS,
    FIRST_TOKEN,
    TOKEN_GAP,
    REQUEST_TIME,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    INFERENCE_TIME,
    TOKEN_TIME,
    REQUEST_PROMPT,
    REQUEST_GENERATION,
    REQUEST_COMPUTED,
    LONGEST_GENERATION,
    PARAMS_MAX_TOKENS,
    PARAMS_N,
    STEPS,
    STEP_TIME,
    PACE,
    RECORDS,
    PAGES,
    SPEC_DRAFTS,
    SPEC_DRAFTED,
    SPEC_ACCEPTED,
    SPEC_ACCEPTED_AT,
    SPEC_DRAFTED_AT,
    SPEC_ADVANCE,
    SPEC_STEPS,
    SPEC_STEP_TIME,
    SPEC_DEPTH,
    SPEC_THRESHOLD,
    SPEC_TOO_LONG,
    TABLE_ROWS,
    TABLE_HITS,
    TABLE_BYTES,
    TABLE_ERRORS,
    BOUNDED_TOKENS,
    IGNORED_FIELDS,
)
