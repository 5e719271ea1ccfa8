"""A pipe where a file belongs is refused: reading it would wait for ever."""

import os
from pathlib import Path

import pytest

from relight.base.checkpoint import open_model
from relight.base.errors import RelightError
from relight.text.tokenizer import Tokenizer

CHECKPOINT = Path(__file__).parents[1] / "golden" / "v4" / "checkpoint"
FILES = ("config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_checkpoint_is_refused_by_name(tmp_path: Path, name: str) -> None:
    for file in CHECKPOINT.iterdir():
        if file.name != name:
            (tmp_path / file.name).symlink_to(file)
    os.mkfifo(tmp_path / name)
    with pytest.raises(RelightError, match=name):
        open_model(tmp_path)


def test_a_pipe_for_a_tokenizer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(RelightError, match="not a regular file"):
        Tokenizer.load(tmp_path)
