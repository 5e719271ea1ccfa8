"""What became of guesses is shown under the names that dashboards know."""

from prometheus_client.parser import text_string_to_metric_families

from relight.base.types import EngineStats
from relight.serve.metrics import Metrics


def samples(stats: EngineStats) -> dict[tuple[str, str], float]:
    """By name and position."""
    text = Metrics("m").render({"0": stats}).decode()
    return {
        (sample.name, sample.labels.get("position", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "spec_decode" in sample.name
    }


def test_guesses_are_counted_by_position() -> None:
    stats = EngineStats(
        spec_drafts=10, spec_drafted=(10, 8), spec_accepted=(6, 2), spec_too_long=3, spec_depth=2
    )
    drafted, accepted = "num_draft_tokens", "num_accepted_tokens"
    assert samples(stats) == {
        ("vllm:spec_decode_num_drafts_total", ""): 10,
        (f"vllm:spec_decode_{drafted}_total", ""): 18,
        (f"vllm:spec_decode_{accepted}_total", ""): 8,
        (f"vllm:spec_decode_{accepted}_per_pos_total", "0"): 6,
        (f"vllm:spec_decode_{accepted}_per_pos_total", "1"): 2,
        (f"relight:spec_decode_{drafted}_per_pos_total", "0"): 10,
        (f"relight:spec_decode_{drafted}_per_pos_total", "1"): 8,
        ("relight:spec_decode_advance", ""): 1.8,
        ("relight:spec_decode_depth", ""): 2,
        ("relight:spec_decode_prompts_too_long_total", ""): 3,
    }


def test_without_guesses_all_counts_are_zero() -> None:
    assert set(samples(EngineStats()).values()) == {0.0}
