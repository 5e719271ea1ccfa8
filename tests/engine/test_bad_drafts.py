"""A draft that is not the config's is refused by name where guesses are asked for, and in nobody's
way where they are not."""

import json
from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint
from relight.base.settings import Settings
from relight.engine.assemble import assemble
from tests.engine.real import write_checkpoint


@pytest.mark.parametrize(
    ("field", "value", "found", "wanted"),
    [
        ("dspark_markov_rank", 16, "is BF16 [320, 32]", "wanted BF16 [320, 16]"),
        ("dspark_target_layer_ids", [5, 6], "is F8_E4M3 [64, 192]", "wanted F8_E4M3 [64, 128]"),
        ("dspark_n_routed_experts", 8, "is BF16 [4, 64]", "wanted BF16 [8, 64]"),
    ],
    ids=["markov rank", "taps", "experts"],
)
def test_a_draft_of_another_width_is_refused_by_name(
    tmp_path: Path, field: str, value: object, found: str, wanted: str
) -> None:
    folder = write_checkpoint(tmp_path, "v41")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][field] = value
    (folder / "config.json").write_text(json.dumps(config))

    def build(**options: object) -> None:
        settings = Settings(model=str(folder), device="cpu", num_slots=2, **options)  # type: ignore
        assemble(settings, lambda done, total: None)

    with pytest.raises(BadCheckpoint) as caught:
        build(spec="dspark")
    message = caught.value.message
    assert "mtp." in message.split(";")[0]
    assert found in message
    assert wanted in message
    assert "use the config.json and the shards of one model" in message
    build(spec="off")
