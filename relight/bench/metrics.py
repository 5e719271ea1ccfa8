"""Reads a server's `/metrics` before and after a window and tells what changed. Knows the names of
vLLM (and so ours), SGLang and llama.cpp, and no HTTP.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

Labels = frozenset[tuple[str, str]]
Series = dict[tuple[str, Labels], float]

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(msgspec.Struct, frozen=True):
    """A series by its name and, where it has several meanings, one label of it."""

    name: str
    label: tuple[str, str] | None = None


class Group(msgspec.Struct, frozen=True):
    """One kind of cache memory: what is used of what there is, or only the share of it."""

    used: Sample | None = None
    capacity: Sample | None = None
    share: Sample | None = None


class Dialect(msgspec.Struct, frozen=True):
    """What a server calls things. A counter has `_total` here where the server adds it."""

    name: str
    mark: str
    counters: Mapping[str, str]
    gauges: Mapping[str, str]
    histograms: Mapping[str, str]
    groups: Mapping[str, Group] = {}
    accepted_at: tuple[str, ...] = ()
    drafted_at: tuple[str, ...] = ()


VLLM = Dialect(
    "vllm",
    "vllm:",
    counters={
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "cache_queries": "vllm:prefix_cache_queries_total",
        "cache_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "drafts": "vllm:spec_decode_num_drafts_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "steps": "relight:engine_steps_total",
        "corrupted": "vllm:corrupted_requests_total",
    },
    gauges={
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_usage": "vllm:kv_cache_usage_perc",
    },
    histograms={
        "ttft": "vllm:time_to_first_token_seconds",
        "gap": "vllm:inter_token_latency_seconds",
        "tpot": "vllm:request_time_per_output_token_seconds",
        "e2e": "vllm:e2e_request_latency_seconds",
        "queue": "vllm:request_queue_time_seconds",
        "prefill": "vllm:request_prefill_time_seconds",
        "decode": "vllm:request_decode_time_seconds",
        "step_tokens": "vllm:iteration_tokens_total",
    },
    groups={
        "kv": Group(share=Sample("vllm:kv_cache_usage_perc")),
        "pages": Group(
            Sample("relight:pages", ("state", "held")), Sample("relight:pages", ("state", "total"))
        ),
        "boundary records": Group(
            Sample("relight:boundary_records", ("state", "used")),
            Sample("relight:boundary_records", ("state", "total")),
        ),
    },
    accepted_at=("vllm:spec_decode_num_accepted_tokens_per_pos_total",),
    # vLLM counts these and does not tell them.
    drafted_at=(
        "vllm:spec_decode_num_draft_tokens_per_pos_total",
        "relight:spec_decode_num_draft_tokens_per_pos_total",
    ),
)
SGLANG = Dialect(
    "sglang",
    "sglang:",
    counters={
        "prompt_tokens": "sglang:prompt_tokens_total",
        "generation_tokens": "sglang:generation_tokens_total",
        # The hit-rate gauge reads 0 between requests, so the rate is made of these two.
        "cache_queries": "sglang:prompt_tokens_total",
        "cache_hits": "sglang:cached_tokens_total",
        "preemptions": "sglang:num_retracted_requests_total",
        "drafts": "sglang:spec_verify_calls_total",
    },
    gauges={
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv_usage": "sglang:token_usage",
        # No counter tells what was accepted: this is of the last moments, and has to be polled.
        "accept_length": "sglang:spec_accept_length",
        "accept_rate": "sglang:spec_accept_rate",
    },
    histograms={
        "ttft": "sglang:time_to_first_token_seconds",
        "gap": "sglang:inter_token_latency_seconds",
        "tpot": "sglang:request_time_per_output_token_seconds",
        "e2e": "sglang:e2e_request_latency_seconds",
        "queue": "sglang:queue_time_seconds",
    },
    groups={
        "full": Group(
            capacity=Sample("sglang:max_total_num_tokens"), share=Sample("sglang:full_token_usage")
        ),
        "window": Group(
            capacity=Sample("sglang:max_total_num_tokens_swa"),
            share=Sample("sglang:swa_token_usage"),
        ),
        "state": Group(share=Sample("sglang:mamba_usage")),
    },
)
LLAMA_CPP = Dialect(
    "llama.cpp",
    "llamacpp:",
    counters={
        "prompt_tokens": "llamacpp:prompt_tokens_total",
        "generation_tokens": "llamacpp:tokens_predicted_total",
    },
    gauges={"running": "llamacpp:requests_processing", "waiting": "llamacpp:requests_deferred"},
    histograms={},
    groups={"kv": Group(share=Sample("llamacpp:kv_cache_usage_ratio"))},
)
DIALECTS = (VLLM, SGLANG, LLAMA_CPP)


class Mean(msgspec.Struct, frozen=True):
    """A histogram's observations within the window, in the server's unit (seconds mostly)."""

    count: float
    sum: float

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 else None


class Delta(msgspec.Struct, frozen=True):
    """What changed between two readings. `resets` names what went backwards or vanished: the server
    was restarted, and nothing here can be trusted."""

    dialect: str
    counters: dict[str, float]
    histograms: dict[str, Mean]
    per_position: list[float]
    resets: list[str]
    drafted_at: list[float] = []

    @property
    def hit_fraction(self) -> float | None:
        queries = self.counters.get("cache_queries", 0.0)
        hits = self.counters.get("cache_hits")
        return hits / queries if hits is not None and queries > 0 else None

    def mean(self, name: str) -> float | None:
        found = self.histograms.get(name)
        return found.mean if found else None


def parse(text: str) -> Series:
    """Lines that are no samples are passed over: what else an exporter writes is its own affair.
    So are buckets, most of a page: sums and counts say more than bounds that others chose."""
    series: Series = {}
    for line in text.splitlines():
        if line.startswith("#") or "_bucket{" in line or not (match := _LINE.match(line)):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        series[match[1], frozenset(_LABEL.findall(match[2] or ""))] = value
    return series


def dialect_of(series: Series) -> Dialect | None:
    for dialect in DIALECTS:
        if any(name.startswith(dialect.mark) for name, _ in series):
            return dialect
    return None


def total(series: Series, name: str, label: tuple[str, str] | None = None) -> float | None:
    """Summed over all labels (engines, models, sources), or those with `label`; None when there is
    no such series."""
    found = [
        value
        for (own, labels), value in series.items()
        if own == name and (label is None or label in labels)
    ]
    return sum(found) if found else None


def shares(series: Series, dialect: Dialect) -> dict[str, tuple[float | None, float]]:
    """(capacity, used share of it) of each group of cache memory that the server tells. Engines
    are not averaged where a share is all that is told: the fullest one counts."""
    found: dict[str, tuple[float | None, float]] = {}
    for name, group in dialect.groups.items():
        capacity = _sample(series, group.capacity)
        used = _sample(series, group.used)
        if used is not None and capacity:
            found[name] = (capacity, used / capacity)
        elif group.share is not None:
            values = [value for (own, _), value in series.items() if own == group.share.name]
            if values:
                found[name] = (capacity, max(values))
    return found


def _sample(series: Series, sample: Sample | None) -> float | None:
    return None if sample is None else total(series, sample.name, sample.label)


def gauges(series: Series, dialect: Dialect) -> dict[str, float]:
    found = {key: total(series, name) for key, name in dialect.gauges.items()}
    return {key: value for key, value in found.items() if value is not None}


def delta(before: Series, after: Series, dialect: Dialect) -> Delta:
    """A series that is new in `after` began at 0: exporters make it with its first sample."""
    resets = _resets(before, after, dialect)
    counters, histograms = {}, {}
    for key, name in dialect.counters.items():
        if (change := _change(before, after, name)) is not None:
            counters[key] = change
    for key, name in dialect.histograms.items():
        count = _change(before, after, name + "_count")
        seconds = _change(before, after, name + "_sum")
        if count is not None and seconds is not None:
            histograms[key] = Mean(count, seconds)
    accepted = _positions(before, after, dialect.accepted_at)
    drafted = _positions(before, after, dialect.drafted_at)
    return Delta(dialect.name, counters, histograms, accepted, resets, drafted)


def _change(before: Series, after: Series, name: str) -> float | None:
    last = total(after, name)
    return None if last is None else last - (total(before, name) or 0.0)


def _resets(before: Series, after: Series, dialect: Dialect) -> list[str]:
    names = {*dialect.counters.values()}
    names |= {f"{name}_count" for name in dialect.histograms.values()}
    back = [
        name
        for (name, labels), value in before.items()
        if name in names and after.get((name, labels), -1.0) < value
    ]
    started = "process_start_time_seconds"
    if total(before, started) != total(after, started):
        back.append(started)
    return sorted(set(back))


def _positions(before: Series, after: Series, names: Sequence[str]) -> list[float]:
    """Tokens at each draft position, in the order of positions."""
    found: dict[int, float] = {}
    for (name, labels), value in after.items():
        position = dict(labels).get("position", "")
        if name in names and position.isdigit():
            change = value - before.get((name, labels), 0.0)
            found[int(position)] = found.get(int(position), 0.0) + change
    return [found[position] for position in sorted(found)]
