"""The cheap count of tokens says what the library's own metrics would say."""

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from relight.base.metrics import COMMON_LABELS, GENERATION_TOKENS, TOKEN_GAP
from relight.serve.tally import TallyCollector


def test_a_tally_is_exported_as_the_librarys_counter_and_histogram() -> None:
    pick = random.Random("gaps")
    collector = TallyCollector(GENERATION_TOKENS, TOKEN_GAP)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    ours.register(collector)
    count = Counter(GENERATION_TOKENS.name, GENERATION_TOKENS.help, COMMON_LABELS, registry=theirs)
    gaps = Histogram(
        *(TOKEN_GAP.name, TOKEN_GAP.help, COMMON_LABELS), registry=theirs, buckets=TOKEN_GAP.buckets
    )
    for labels in (("m", "0"), ("m", "1")):
        tally = collector.of(labels)
        for _ in range(500):
            gap_s = pick.choice([0.0, 1.0, 0.25, 1e9, *TOKEN_GAP.buckets, pick.random() / 8])
            tally.num_tokens += 2
            tally.gaps(gap_s, 2)
            count.labels(*labels).inc(2)
            for _ in range(2):
                gaps.labels(*labels).observe(gap_s)
    wanted = dict(_samples(generate_latest(theirs)))
    found = dict(_samples(generate_latest(ours)))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert abs(found[name] - value) <= 1e-9 * max(1.0, value), name


def _samples(text: bytes) -> list[tuple[str, float]]:
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line[0] != "#")
    return [(name, float(value)) for name, _, value in lines if "_created" not in name]
