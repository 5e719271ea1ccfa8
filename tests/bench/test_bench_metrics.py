"""Counters of three kinds of servers are read as changes within a window."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from relight.base import metrics as ours
from relight.bench.metrics import (
    DIALECTS,
    LLAMA_CPP,
    SGLANG,
    VLLM,
    delta,
    dialect_of,
    gauges,
    parse,
    total,
)

VLLM_TEXT = """# HELP vllm:prefix_cache_hits_total x
vllm:prefix_cache_hits_total{{engine="0",model_name="a b, {{c}}"}} {hits}
vllm:prefix_cache_hits_total{{engine="1",model_name="a"}} 0.0
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:time_to_first_token_seconds_sum{{engine="0"}} {seconds}
vllm:time_to_first_token_seconds_count{{engine="0"}} {count}
vllm:num_requests_running{{engine="0"}} 3
vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="10"}} {hits}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="2"}} {count}
broken line
vllm:kv_cache_usage_perc{{engine="0"}} NaN-ish
"""


def text(hits: float, queries: float, seconds: float, count: float) -> str:
    return VLLM_TEXT.format(hits=hits, queries=queries, seconds=seconds, count=count)


def test_changes_of_vllm_are_summed_over_engines() -> None:
    before, after = parse(text(10, 100, 1.0, 2)), parse(text(15, 200, 4.0, 4))
    assert dialect_of(before) is VLLM
    change = delta(before, after, VLLM)
    assert change.hit_fraction == pytest.approx(0.05)
    assert change.mean("ttft") == pytest.approx(1.5)
    assert change.per_position == [2, 5]
    assert change.resets == []
    assert gauges(after, VLLM) == {"running": 3.0}


def test_the_hit_rate_of_sglang_is_made_of_counters() -> None:
    before = parse("sglang:prompt_tokens_total 10\nsglang:cached_tokens_total 0\n")
    after = parse("sglang:prompt_tokens_total 110\nsglang:cached_tokens_total 25\n")
    assert dialect_of(after) is SGLANG
    assert delta(before, after, SGLANG).hit_fraction == 0.25


def test_a_server_of_few_names_leaves_the_rest_unknown() -> None:
    after = parse("llamacpp:tokens_predicted_total 8\n")
    change = delta(parse("llamacpp:tokens_predicted_total 3\n"), after, LLAMA_CPP)
    assert change.counters == {"generation_tokens": 5}
    assert (change.hit_fraction, change.mean("ttft")) == (None, None)
    assert dialect_of(parse("other_total 1\n")) is None


@pytest.mark.parametrize(
    "after",
    [
        text(9, 200, 4.0, 4),
        "vllm:prefix_cache_queries_total 100\n",
        text(15, 200, 4.0, 4) + "process_start_time_seconds 5\n",
    ],
)
def test_a_counter_that_goes_back_or_vanishes_is_a_restart(after: str) -> None:
    assert delta(parse(text(10, 100, 1.0, 2)), parse(after), VLLM).resets


def test_a_series_that_is_new_began_at_nothing() -> None:
    change = delta({}, parse(text(15, 200, 4.0, 4)), VLLM)
    assert change.counters["cache_hits"] == 15
    assert change.resets == []


def test_every_name_of_ours_that_is_read_exists() -> None:
    """Our own exporter, through its own text form."""
    registry = CollectorRegistry()
    kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
    for metric in ours.METRICS:
        made = kinds[metric.kind](metric.name, metric.help, metric.labels, registry=registry)
        made.labels(*("x" for _ in metric.labels)) if metric.labels else made
    series = parse(generate_latest(registry).decode())
    assert dialect_of(series) is VLLM
    read = {"prompt_tokens", "generation_tokens", "cache_queries", "cache_hits", "preemptions"}
    for key in (*read, "steps"):
        assert total(series, VLLM.counters[key]) == 0.0
    for key in ("ttft", "gap", "e2e", "queue", "prefill"):
        assert total(series, VLLM.histograms[key] + "_count") == 0.0
    assert set(gauges(series, VLLM)) == {"running", "waiting", "kv_usage"}


def test_dialects_do_not_share_a_mark() -> None:
    assert len({dialect.mark for dialect in DIALECTS}) == len(DIALECTS)
