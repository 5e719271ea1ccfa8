"""What became of guesses is shown under the names that dashboards know."""

from prometheus_client.parser import text_string_to_metric_families

from relight.base.types import EngineStats, SpecChoice
from relight.serve.metrics import Metrics

LABELS = ("position", "sampling", "section", "requests")


def samples(stats: EngineStats) -> dict[tuple[str, ...], float]:
    """By name and labels that not all metrics have."""
    text = Metrics("m").render({"0": stats}).decode()
    return {
        (sample.name, *own(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "spec_decode" in sample.name
    }


def own(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in LABELS if name in labels]


def test_guesses_are_counted_by_position() -> None:
    stats = EngineStats(
        spec_drafts=10,
        spec_drafted=(10, 8),
        spec_accepted=(6, 2),
        spec_too_long=3,
        spec_steps=5,
        spec_step_s=0.5,
    )
    drafted, accepted = "num_draft_tokens", "num_accepted_tokens"
    assert samples(stats) == {
        ("vllm:spec_decode_num_drafts_total",): 10,
        (f"vllm:spec_decode_{drafted}_total",): 18,
        (f"vllm:spec_decode_{accepted}_total",): 8,
        (f"vllm:spec_decode_{accepted}_per_pos_total", "0"): 6,
        (f"vllm:spec_decode_{accepted}_per_pos_total", "1"): 2,
        (f"relight:spec_decode_{drafted}_per_pos_total", "0"): 10,
        (f"relight:spec_decode_{drafted}_per_pos_total", "1"): 8,
        ("relight:spec_decode_advance",): 1.8,
        ("relight:spec_decode_steps_total",): 5,
        ("relight:spec_decode_step_seconds_total",): 0.5,
        ("relight:spec_decode_prompts_too_long_total",): 3,
    }


def test_choices_are_told_by_kind_and_whether_guesses_are_off_because_they_lose() -> None:
    choices = (
        SpecChoice("greedy", "reasoning", "1", 4, 0.2),
        SpecChoice("sampled", "content", "5-16", 0, 0.0),
    )
    found = {
        key: value
        for key, value in samples(EngineStats(spec_choices=choices)).items()
        if len(key) == 4
    }
    pays, loses = ("greedy", "reasoning", "1"), ("sampled", "content", "5-16")
    assert found == {
        ("relight:spec_decode_depth", *pays): 4,
        ("relight:spec_decode_depth", *loses): 0,
        ("relight:spec_decode_threshold", *pays): 0.2,
        ("relight:spec_decode_threshold", *loses): 0,
    }


def test_without_guesses_all_counts_are_zero() -> None:
    assert set(samples(EngineStats()).values()) == {0.0}
