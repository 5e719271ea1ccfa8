"""What a server tells of itself becomes figures, in each dialect; what it does not tell is null."""

import math

import msgspec
import pytest

from relight.base.errors import BadSetting
from relight.bench import inside, metrics
from relight.bench.arms import tails
from relight.bench.figures import drift
from relight.bench.mixed import probe_rate, shape
from relight.bench.needles import depths_of, kinds_of
from relight.bench.record import Drafts, Record, ServerTimes
from relight.bench.scenario import Trace
from relight.bench.selftest.harness import scenario
from relight.bench.soak import seconds, trend
from relight.bench.stats import bootstrap
from relight.bench.stream import Stream
from relight.bench.watch import Point


def answer(number: int, kind: str = "one", **fields: object) -> Record:
    return Record(id=number, kind=kind, t_sched=0.0, n_out=8, **fields)  # type: ignore[arg-type]


def last(chunk: dict[str, object]) -> Stream:
    stream = Stream(None)
    stream.headers(200, "text/event-stream", 0.0)
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    first = {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}
    for one in (first, {"choices": [], "usage": usage} | chunk):
        stream.body(b"data: " + msgspec.json.encode(one) + b"\n\n", 1.0)
    stream.body(b"data: [DONE]\n\n", 1.0)
    stream.end(2.0)
    assert stream.failure is None, stream.error
    return stream


def test_times_beside_an_answer_are_read_in_three_dialects() -> None:
    timing = {"queue_ms": 10, "prefill_ms": 20, "decode_ms": 30}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "timing": timing}
    assert last({"usage": usage}).server == ServerTimes(queue=0.01, prefill=0.02, decode=0.03)
    vllm = {"time_to_first_token_ms": 20, "queue_time_ms": 10, "generation_time_ms": 30}
    assert last({"metrics": vllm}).server == ServerTimes(queue=0.01, prefill=0.02, decode=0.03)
    llama = last(
        {"timings": {"prompt_ms": 20, "predicted_ms": 30, "draft_n": 8, "draft_n_accepted": 6}}
    )
    assert llama.server == ServerTimes(prefill=0.02, decode=0.03)
    assert llama.drafts == Drafts(drafted=8, accepted=6)


def test_a_histogram_of_drafts_is_read_as_list_and_as_map() -> None:
    for told in ([1, 0, 3], {"0": 1, "2": 3}):
        found = last({"metrics": {"speculative_decoding": {"acceptance_histogram": told}}}).drafts
        assert found == Drafts(steps=4, accepted=6, histogram=(1, 0, 3))
        assert found.advance == 2.5


def test_drafts_are_read_from_our_own_usage() -> None:
    told = {
        "num_spec_steps": 4,
        "num_draft_tokens": 12,
        "num_accepted_tokens": 6,
        "acceptance_histogram": [1, 0, 3],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "speculation": told}
    assert last({"usage": usage}).drafts == Drafts(
        steps=4, drafted=12, accepted=6, histogram=(1, 0, 3)
    )


def test_two_means_of_acceptance_differ_and_slices_stay_apart() -> None:
    records = [
        answer(
            1, "code", drafts=Drafts(steps=10, drafted=40, accepted=30, histogram=(0, 0, 5, 0, 5))
        ),
        answer(2, "code", drafts=Drafts(steps=30, drafted=60, accepted=15, histogram=(15, 15))),
        answer(3, "prose", drafts=Drafts(steps=4, accepted=0, histogram=(4,))),
    ]
    spec = inside.speculation(None, records, {"code": "code", "prose": {"english": 1}})
    assert spec is not None
    assert spec.source == "response"
    assert spec.al_pooled == pytest.approx(1 + 45 / 44)
    assert spec.al_mean_req == pytest.approx((4.0 + 1.5 + 1.0) / 3)
    by_corpus = {one.corpus: one for one in spec.slices}
    assert by_corpus["code"].al_pooled == pytest.approx(1 + 45 / 40)
    assert by_corpus["code"].per_pos_uncond == pytest.approx([25 / 40, 10 / 40, 5 / 40, 5 / 40])
    assert by_corpus["{'english': 1}"].al_pooled == 1.0


def test_acceptance_given_that_it_was_drafted_needs_the_drafts_of_each_position() -> None:
    text = (
        "vllm:spec_decode_num_drafts_total {d}\n"
        "vllm:spec_decode_num_draft_tokens_total {t}\n"
        "vllm:spec_decode_num_accepted_tokens_total {a}\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {p0}\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {p1}\n'
        'relight:spec_decode_num_draft_tokens_per_pos_total{{position="0"}} {q0}\n'
        'relight:spec_decode_num_draft_tokens_per_pos_total{{position="1"}} {q1}\n'
    )
    before = metrics.parse(text.format(d=0, t=0, a=0, p0=0, p1=0, q0=0, q1=0))
    after = metrics.parse(text.format(d=10, t=14, a=9, p0=7, p1=2, q0=10, q1=4))
    spec = inside.speculation(metrics.delta(before, after, metrics.VLLM), [], {})
    assert spec is not None
    assert (spec.al_pooled, spec.depth) == (1.9, 1.4)
    assert spec.per_pos_uncond == [0.7, 0.2]
    assert spec.per_pos_given_drafted == [0.7, 0.5]
    assert spec.cond == pytest.approx([0.7, 2 / 7])
    assert spec.accepted_per_verified == pytest.approx(19 / 24)


def test_a_gauge_of_acceptance_is_polled_where_nothing_is_counted() -> None:
    text = "sglang:prompt_tokens_total 1\nsglang:spec_accept_length {}\n"
    points = [
        Point(t=float(i), gauges=metrics.gauges(metrics.parse(text.format(v)), metrics.SGLANG))
        for i, v in enumerate((0.0, 2.0, 3.0))
    ]
    spec = inside.speculation(None, [], {}, points)
    assert spec is not None
    assert (spec.al_pooled, spec.source, spec.drafts) == (2.5, "gauge", None)


@pytest.mark.parametrize(
    ("dialect", "text", "groups"),
    [
        (
            metrics.VLLM,
            'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
            'relight:pages{state="held"} 10\nrelight:pages{state="cached"} 5\n'
            'relight:pages{state="total"} 40\n',
            {"kv": (None, 0.5), "pages": (40.0, 0.25)},
        ),
        (
            metrics.SGLANG,
            "sglang:full_token_usage 0.1\nsglang:max_total_num_tokens 900\n"
            "sglang:swa_token_usage 0.9\nsglang:max_total_num_tokens_swa 100\n",
            {"full": (900.0, 0.1), "window": (100.0, 0.9)},
        ),
        (metrics.LLAMA_CPP, "llamacpp:kv_cache_usage_ratio 0.5\n", {"kv": (None, 0.5)}),
    ],
)
def test_each_kind_of_cache_memory_is_told_apart(
    dialect: metrics.Dialect, text: str, groups: dict[str, tuple[float | None, float]]
) -> None:
    assert metrics.shares(metrics.parse(text), dialect) == groups


def test_figures_of_a_server_without_histograms_come_from_its_answers() -> None:
    records = [answer(i, server=ServerTimes(queue=0.1 * i, prefill=1.0)) for i in (1, 3)]
    found = inside.engine(None, {}, records, None)
    assert found is not None
    assert (found.queue, found.prefill, found.ttft) == (pytest.approx(0.2), 1.0, None)
    assert found.source == "response"
    assert inside.engine(None, {}, [answer(1)], None) is None


def test_time_per_token_is_made_of_what_ours_tells() -> None:
    text = (
        "vllm:time_to_first_token_seconds_sum 1\nvllm:time_to_first_token_seconds_count {n}\n"
        "vllm:request_decode_time_seconds_sum {s}\nvllm:request_decode_time_seconds_count {n}\n"
        "vllm:inter_token_latency_seconds_sum {s}\nvllm:inter_token_latency_seconds_count {g}\n"
        "vllm:generation_tokens_total {t}\n"
    )
    before = metrics.parse(text.format(n=0, s=0, g=0, t=0))
    after = metrics.parse(text.format(n=2, s=3, g=6, t=8))
    found = inside.engine(metrics.delta(before, after, metrics.VLLM), {}, [], None)
    assert found is not None
    assert (found.tpot, found.gap, found.step_interval) == (0.5, 0.5, 0.5)


def test_the_interval_of_a_tail_holds_its_ratio_and_shrinks_with_runs() -> None:
    few = [(1.0, 1.1), (1.2, 1.2), (0.9, 1.1), (1.0, 1.2)]
    low, high = bootstrap(few)
    assert low < sum(b for _, b in few) / sum(a for a, _ in few) < high
    narrow = bootstrap(few * 10)
    assert narrow[1] - narrow[0] < (high - low) / 2
    assert bootstrap(few) == (low, high)
    assert tails([]) == {}


def test_a_trend_is_of_the_whole_time_and_knows_its_interval() -> None:
    line = trend([(0.0, 10.0), (50.0, 10.5), (100.0, 11.0)])
    assert line is not None
    assert line.change == pytest.approx(0.1)
    assert line.low == pytest.approx(0.1)
    noisy = trend([(0.0, 10.0), (50.0, 12.0), (100.0, 10.1)])
    assert noisy is not None
    assert noisy.low is not None
    assert noisy.low < 0 < (noisy.high or math.nan)
    assert trend([(0.0, 1.0)]) is None
    assert trend([(0.0, 1.0), (1.0, None)]) is None


def test_shapes_times_rates_and_kinds_are_read_or_refused() -> None:
    assert (shape("31x1024/512").users, shape("1x300K/8").input_tokens) == (31, 307200)
    assert (seconds("90"), seconds("10m"), seconds("1.5h")) == (90, 600, 5400)
    assert (probe_rate("2/s"), probe_rate("0")) == (2.0, 0.0)
    assert kinds_of("keys,chain") == ["keys", "chain"]
    assert (len(kinds_of("")), depths_of(3), depths_of(1)) == (5, [0.0, 0.5, 1.0], [0.5])
    for read, text in (
        (shape, "0x1/2"),
        (shape, "31"),
        (seconds, "soon"),
        (seconds, "0m"),
        (probe_rate, "-1/s"),
        (kinds_of, "gold"),
    ):
        with pytest.raises(BadSetting, match="wanted"):
            read(text)


def timed(number: int, tpot: float, turn: int | None = None) -> Record:
    """An answer of eight tokens at that pace; numbers are seconds."""
    chunks = tuple((number + tpot * i, 1) for i in range(8))
    return Record(id=number, kind="one", t_sched=float(number), n_out=8, chunks=chunks, turn=turn)


def test_drift_of_conversations_is_told_turn_by_turn() -> None:
    talks = scenario()
    growing = [timed(i, 0.1 * (1 + i // 8), turn=i // 8) for i in range(24)]
    assert drift(growing, talks) == pytest.approx(0.0)
    slowing = [timed(i, 0.1 + 0.1 * (i % 8 >= 4), turn=i // 8) for i in range(24)]
    assert drift(slowing, talks) == pytest.approx(1.0)
    plain = [timed(i, 0.1 if i < 4 else 0.2) for i in range(8)]
    assert drift(plain, talks) == pytest.approx(1.0)
    assert drift(plain[:7], talks) is None
    trace = msgspec.structs.replace(talks.classes[0], users=0, trace=Trace(file="x"))
    assert drift(plain, msgspec.structs.replace(talks, classes=[trace])) is None
