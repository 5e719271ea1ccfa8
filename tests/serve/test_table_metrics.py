"""What is read of n-gram tables, and what was read approximately, is shown by its own names."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from relight.base.types import EngineStats, TableReads
from relight.engine.wire import FromEngine, Tokens
from relight.serve.metrics import Metrics

NAMES = ("engram_rows", "engram_row_hits", "engram_bytes_read", "engram_read_errors")


def samples(stats: EngineStats) -> dict[str, float]:
    text = Metrics("m").render({"0": stats}).decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "engram" in sample.name or "bounded" in sample.name
    }


def test_reads_are_counted_from_the_engines_process_to_the_scrape() -> None:
    stats = EngineStats(tables=TableReads(120, 90, 120 * 264, 1), bounded_tokens=172)
    sent = msgspec.msgpack.encode(Tokens([], stats))
    received = msgspec.msgpack.decode(sent, type=FromEngine)
    assert isinstance(received, Tokens)
    assert samples(received.stats) == {
        **{
            f"relight:{name}_total": value
            for name, value in zip(NAMES, (120, 90, 31_680, 1), strict=True)
        },
        "relight:bounded_replay_tokens_total": 172,
    }


def test_where_nothing_is_read_all_counts_are_zero() -> None:
    assert set(samples(EngineStats()).values()) == {0.0}
