"""Properties of the metric table that an exporter and a dashboard rely on."""

import re

from relight.base.metrics import METRICS


def test_names_are_unique_and_legal_for_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"(vllm|relight):[a-z0-9_]+", name), name
        assert not name.endswith("_total"), f"{name}: the exporter adds _total"


def test_exactly_the_histograms_have_buckets_and_they_ascend() -> None:
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name


def test_time_buckets_are_never_more_than_sixteen_percent_apart() -> None:
    for metric in METRICS:
        if metric.kind == "histogram" and metric.name.endswith("_seconds"):
            for low, high in zip(metric.buckets, metric.buckets[1:], strict=False):
                assert high / low <= 1.16, metric.name
