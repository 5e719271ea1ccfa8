"""Counts what requests do and shows it with the state of the engines as Prometheus text. Knows the
table of metrics, and no route."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from relight.base import metrics as table
from relight.base.metrics import COMMON_LABELS, Metric
from relight.base.types import EngineInfo, EngineStats, FinishReason, SpecChoice, TokenDelta
from relight.cache.layout import PAGE_TOKENS
from relight.serve.tally import TallyCollector
from relight.session import Job

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# A client can invent names without end, and each would be a series for ever.
MAX_FIELD_NAMES = 200

Family = CounterMetricFamily | GaugeMetricFamily
Samples = Iterable[tuple[tuple[str, ...], float]]


class Metrics:
    """One registry of its own; `engines` are labels, each with its observer."""

    def __init__(self, model_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model_name = model_name
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._engines = EngineCollector(model_name)
        self._registry.register(self._engines)
        self._ignored = _counter(table.IGNORED_FIELDS, self._registry)
        self._rejected = _counter(table.REJECTIONS, self._registry)
        self._ignored_names: set[str] = set()
        self._jobs = _JobMetrics(self._registry)

    def observer(self, engine: str) -> "JobObserver":
        return JobObserver(self._jobs, (self._model_name, engine), self._clock)

    def ignored(self, names: Sequence[str]) -> None:
        for name in names:
            if len(self._ignored_names) < MAX_FIELD_NAMES:
                self._ignored_names.add(name)
            label = name if name in self._ignored_names else "other"
            self._ignored.labels(self._model_name, "", label).inc()

    def rejected(self, code: str) -> None:
        self._rejected.labels(self._model_name, "", code).inc()

    def call_ended(self, engine: str, jobs: Iterable[Job]) -> None:
        """Of one call; the later choices of a prompt stand behind its first."""
        longest: list[int] = []
        for job in jobs:
            if not job.is_later_choice:
                self._jobs.call(self._model_name, engine, job)
                longest.append(0)
            longest[-1] = max(longest[-1], job.times.num_made)
        for num_tokens in longest:
            self._jobs.longest.labels(self._model_name, engine).observe(num_tokens)

    def render(
        self, stats: Mapping[str, EngineStats], infos: Mapping[str, EngineInfo] | None = None
    ) -> bytes:
        """The text for a scrape; state and description of each engine by its label."""
        self._engines.stats, self._engines.infos = stats, infos or {}
        return generate_latest(self._registry)


class JobObserver:
    """Turns the deltas of one engine's jobs into counts and times."""

    def __init__(
        self, metrics: "_JobMetrics", labels: tuple[str, str], clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._labels = labels
        self._clock = clock
        self._progress: dict[str, _Progress] = {}
        self._prompt_tokens = metrics.prompt_tokens.labels(*labels)
        self._tally = metrics.tallies.of(labels)

    def delta(self, job: Job, delta: TokenDelta) -> None:
        num_tokens = len(delta.tokens)
        if not num_tokens:
            return
        now = self._clock()
        progress = self._progress.get(job.request.id)
        if progress is None:
            progress = self._progress[job.request.id] = _Progress(now, now, delta.prefill_s)
            self._first(job, delta, now)
            gap_s, num_gaps = 0.0, num_tokens - 1
        else:
            gap_s, num_gaps = (now - progress.last_s) / num_tokens, num_tokens
        if num_gaps:
            self._tally.gaps(gap_s, num_gaps)
        progress.last_s = now
        progress.num_tokens += num_tokens
        self._tally.num_tokens += num_tokens

    def ended(self, job: Job, reason: FinishReason) -> None:
        progress = self._progress.pop(job.request.id, None)
        metrics = self._metrics
        metrics.success.labels(*self._labels, reason).inc()
        metrics.request_time.labels(*self._labels).observe(self._clock() - job.arrived)
        metrics.request_prompt.labels(*self._labels).observe(len(job.request.prompt))
        num_tokens = progress.num_tokens if progress else 0
        if progress:
            decode_s = progress.last_s - progress.first_s
            metrics.decode_time.labels(*self._labels).observe(decode_s)
            metrics.inference_time.labels(*self._labels).observe(progress.prefill_s + decode_s)
            if num_tokens > 1:
                mean_s = decode_s / (num_tokens - 1)
                metrics.token_time.labels(*self._labels).observe(mean_s)
        metrics.request_generation.labels(*self._labels).observe(num_tokens)

    def _first(self, job: Job, delta: TokenDelta, now: float) -> None:
        metrics = self._metrics
        self._prompt_tokens.inc(len(job.request.prompt))
        num_computed = max(0, len(job.request.prompt) - delta.num_cached)
        metrics.cached_tokens.labels(*self._labels).inc(delta.num_cached)
        metrics.by_source.labels(*self._labels, "local_cache_hit").inc(delta.num_cached)
        metrics.by_source.labels(*self._labels, "local_compute").inc(num_computed)
        metrics.request_computed.labels(*self._labels).observe(num_computed)
        metrics.first_token.labels(*self._labels).observe(now - job.arrived)
        metrics.queue_time.labels(*self._labels).observe(delta.queue_s)
        metrics.prefill_time.labels(*self._labels).observe(delta.prefill_s)


@dataclass(slots=True)
class _Progress:
    first_s: float
    last_s: float
    prefill_s: float
    num_tokens: int = 0


class _JobMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.prompt_tokens = _counter(table.PROMPT_TOKENS, registry)
        self.cached_tokens = _counter(table.CACHED_TOKENS, registry)
        self.tallies = TallyCollector(table.GENERATION_TOKENS, table.TOKEN_GAP)
        registry.register(self.tallies)
        self.success = _counter(table.SUCCESS, registry)
        self.first_token = _histogram(table.FIRST_TOKEN, registry)
        self.request_time = _histogram(table.REQUEST_TIME, registry)
        self.queue_time = _histogram(table.QUEUE_TIME, registry)
        self.prefill_time = _histogram(table.PREFILL_TIME, registry)
        self.decode_time = _histogram(table.DECODE_TIME, registry)
        self.request_prompt = _histogram(table.REQUEST_PROMPT, registry)
        self.request_generation = _histogram(table.REQUEST_GENERATION, registry)
        self.by_source = _counter(table.PROMPT_BY_SOURCE, registry)
        self.inference_time = _histogram(table.INFERENCE_TIME, registry)
        self.token_time = _histogram(table.TOKEN_TIME, registry)
        self.request_computed = _histogram(table.REQUEST_COMPUTED, registry)
        self.longest = _histogram(table.LONGEST_GENERATION, registry)
        self.max_tokens = _histogram(table.PARAMS_MAX_TOKENS, registry)
        self.num_choices = _histogram(table.PARAMS_N, registry)

    def call(self, model_name: str, engine: str, job: Job) -> None:
        """What a request asked for."""
        most = job.request.sampling.max_tokens - job.num_forced
        self.max_tokens.labels(model_name, engine).observe(most)
        self.num_choices.labels(model_name, engine).observe(job.options.n)


class EngineCollector(Collector):
    """The engines' own numbers, read at a scrape."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.stats: Mapping[str, EngineStats] = {}
        self.infos: Mapping[str, EngineInfo] = {}

    def collect(self) -> Iterator[Family]:
        for metric, read in _ENGINE_METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=(*COMMON_LABELS, *metric.labels))
            for engine, stats in self.stats.items():
                for labels, value in read(stats):
                    family.add_metric((self._model_name, engine, *labels), value)
            yield family
        yield self._cache_info()

    def _cache_info(self) -> Family:
        metric = table.CACHE_INFO
        family = GaugeMetricFamily(
            metric.name, metric.help, labels=(*COMMON_LABELS, *metric.labels)
        )
        for engine, info in self.infos.items():
            labels = (self._model_name, engine, str(PAGE_TOKENS), str(info.num_pages))
            family.add_metric(labels, 1)
        return family


def _by_position(read: Callable[[EngineStats], Sequence[int]]) -> Callable[[EngineStats], Samples]:
    return lambda stats: [((str(place),), count) for place, count in enumerate(read(stats))]


def _by_kind(read: Callable[[SpecChoice], float]) -> Callable[[EngineStats], Samples]:
    return lambda stats: [
        ((choice.sampling, choice.section, choice.requests), read(choice))
        for choice in stats.spec_choices
    ]


def _advance(stats: EngineStats) -> float:
    checked = stats.spec_drafts
    return 1 + sum(stats.spec_accepted) / checked if checked else 0.0


def _one(read: Callable[[EngineStats], float]) -> Callable[[EngineStats], Samples]:
    return lambda stats: [((), read(stats))]


_ENGINE_METRICS: tuple[tuple[Metric, Callable[[EngineStats], Samples]], ...] = (
    (table.RUNNING, _one(lambda s: s.running)),
    (table.WAITING, _one(lambda s: s.waiting)),
    (table.WAITING_BY, lambda s: [(("capacity",), s.waiting), (("deferred",), 0)]),
    (
        table.SLEEP,
        lambda s: [(("awake",), 1), (("weights_offloaded",), 0), (("discard_all",), 0)],
    ),
    (table.CACHE_USAGE, _one(lambda s: s.pages_held / max(1, s.pages_total))),
    (table.CACHE_QUERIES, _one(lambda s: s.prompt_tokens)),
    (table.CACHE_HITS, _one(lambda s: s.cached_tokens)),
    (table.PREEMPTIONS, _one(lambda s: s.preemptions)),
    (table.STEPS, _one(lambda s: s.steps)),
    (table.STEP_TIME, _one(lambda s: s.step_s)),
    (table.PACE, _one(lambda s: s.tokens_per_s)),
    (
        table.RECORDS,
        lambda s: [(("used",), s.records_used), (("total",), s.records_total)],
    ),
    (
        table.PAGES,
        lambda s: [
            (("held",), s.pages_held),
            (("cached",), s.pages_cached),
            (("total",), s.pages_total),
        ],
    ),
    (table.SPEC_DRAFTS, _one(lambda s: s.spec_drafts)),
    (table.SPEC_DRAFTED, _one(lambda s: sum(s.spec_drafted))),
    (table.SPEC_ACCEPTED, _one(lambda s: sum(s.spec_accepted))),
    (table.SPEC_ACCEPTED_AT, _by_position(lambda s: s.spec_accepted)),
    (table.SPEC_DRAFTED_AT, _by_position(lambda s: s.spec_drafted)),
    (table.SPEC_ADVANCE, _one(_advance)),
    (table.SPEC_STEPS, _one(lambda s: s.spec_steps)),
    (table.SPEC_STEP_TIME, _one(lambda s: s.spec_step_s)),
    (table.SPEC_DEPTH, _by_kind(lambda choice: choice.depth)),
    (table.SPEC_THRESHOLD, _by_kind(lambda choice: choice.threshold)),
    (table.SPEC_TOO_LONG, _one(lambda s: s.spec_too_long)),
    (table.TABLE_ROWS, _one(lambda s: s.tables.rows)),
    (table.TABLE_HITS, _one(lambda s: s.tables.hits)),
    (table.TABLE_BYTES, _one(lambda s: s.tables.bytes_read)),
    (table.TABLE_ERRORS, _one(lambda s: s.tables.errors)),
    (table.BOUNDED_TOKENS, _one(lambda s: s.bounded_tokens)),
)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    labels = (*COMMON_LABELS, *metric.labels)
    return Counter(metric.name, metric.help, labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    labels = (*COMMON_LABELS, *metric.labels)
    return Histogram(metric.name, metric.help, labels, registry=registry, buckets=metric.buckets)
