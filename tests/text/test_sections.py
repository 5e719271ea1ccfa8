"""The tokens with which sections begin are those of the tokenizer."""

from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint
from relight.text.sections import section_tokens
from relight.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent.parent / "golden" / "text"


def test_sections_begin_with_the_markers_of_the_tokenizer() -> None:
    special = Tokenizer.load(FOLDER).special
    assert section_tokens(FOLDER) == {
        special.think_open: "reasoning",
        special.think_close: "content",
        special.dsml: "tool",
    }


def test_without_a_tokenizer_no_section_is_known(tmp_path: Path) -> None:
    assert section_tokens(tmp_path) == {}


def test_a_tokenizer_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"added_tokens": 3}')
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json cannot be read"):
        section_tokens(tmp_path)
