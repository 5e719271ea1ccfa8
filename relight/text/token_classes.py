"""Groups the tokens of a vocabulary that spell the same word, for Engram's n-grams. Knows no hash
and no table.

Case, accents, compatibility forms and the kind and amount of white space make no difference.
"""

from pathlib import Path

import tokenizers
from tokenizers import Regex, normalizers

from relight.base.errors import BadCheckpoint

LONE_SPACE = "\ue000"
"""Stands for a text that is one space while white space is stripped. Of the private use area."""

REPLACED = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""


def token_classes(folder: Path, vocab_size: int) -> list[int]:
    """The class of each id below `vocab_size`, numbered in the order in which they first appear.
    Ids behind the tokenizer's own are of no text; they get the class of id 0. Raises BadCheckpoint.

    A token of broken characters is a class by its raw spelling, since decoding would merge it with
    others that are broken differently.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise BadCheckpoint(
            f"{path} is not a tokenizer that `tokenizers` reads: {error}; fetch the file again"
        ) from None
    normalise = _normaliser().normalize_str
    numbers: dict[str, int] = {}
    classes = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        raw = tokenizer.id_to_token(token)
        key = raw if REPLACED in text and raw is not None else normalise(text) or text
        classes.append(numbers.setdefault(key, len(numbers)))
    return (classes + [0] * vocab_size)[:vocab_size]


def _normaliser() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE, " "),
        ]
    )
