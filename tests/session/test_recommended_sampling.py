"""What a checkpoint recommends for sampling."""

from pathlib import Path

import pytest

from relight.session.request import SamplingDefaults


@pytest.mark.parametrize(
    ("text", "temperature"),
    [
        ("{}", None),
        ('{"do_sample": true}', None),
        ('{"do_sample": false}', 0.0),
        ('{"do_sample": false, "temperature": 0.5}', 0.5),
        ('{"do_sample": true, "temperature": 0.5, "eos_token_id": 1}', 0.5),
    ],
)
def test_a_model_that_is_not_to_be_sampled_is_not(
    tmp_path: Path, text: str, temperature: float | None
) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert SamplingDefaults.load(tmp_path).temperature == temperature
