"""Turns text into token ids and ids into bytes, and finds the markers of the chat format by name.
Knows nothing of messages, turns or HTTP."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import msgspec
import tokenizers

from relight.base.errors import BadCheckpoint, BadRequest
from relight.base.files import read_regular

Segment = str | int
"""A run of plain text, or one token id that stands for itself."""


class SpecialTokens(msgspec.Struct, frozen=True):
    """The ids of the markers that the encoder writes and the parser obeys. Those that a vocabulary
    may lack are None then: V4's has no `system`, a small one none to fill in the middle."""

    bos: int
    eos: int
    pad: int
    user: int
    assistant: int
    think_open: int
    think_close: int
    dsml: int
    latest_reminder: int
    system: int | None = None
    fim_hole: int | None = None
    fim_begin: int | None = None
    fim_end: int | None = None


MARKERS = SpecialTokens.__struct_fields__
SPELLING = {
    "bos": "<｜begin▁of▁sentence｜>",
    "eos": "<｜end▁of▁sentence｜>",
    "pad": "<｜▁pad▁｜>",
    "user": "<｜User｜>",
    "assistant": "<｜Assistant｜>",
    "think_open": "<think>",
    "think_close": "</think>",
    "dsml": "｜DSML｜",
    "latest_reminder": "<｜latest_reminder｜>",
    "system": "<｜System｜>",
    "fim_hole": "<｜fim▁hole｜>",
    "fim_begin": "<｜fim▁begin｜>",
    "fim_end": "<｜fim▁end｜>",
}
OPTIONAL = ("system", "fim_hole", "fim_begin", "fim_end")

# The published vocabulary; a tokenizer of this size must agree with it, id by id.
PUBLIC_VOCAB_SIZE = 129_280
PUBLIC_IDS = SpecialTokens(
    bos=0,
    eos=1,
    pad=2,
    user=128803,
    assistant=128804,
    think_open=128821,
    think_close=128822,
    dsml=128825,
    latest_reminder=128828,
    system=128799,
    fim_hole=128800,
    fim_begin=128801,
    fim_end=128802,
)


class Tokenizer:
    """The byte-level BPE tokenizer of a checkpoint. Safe to use from several threads: nothing is
    written after construction, and encoding releases the interpreter lock."""

    def __init__(self, data: dict[str, Any], *, source: str, trust: bool = False) -> None:
        """`data` is a decoded tokenizer.json, `source` its name in messages. Raises
        `BadCheckpoint` if it is not byte-level BPE, if a marker is not one token, or, unless
        `trust`, if a vocabulary of the public size has its markers elsewhere."""
        try:
            added = {token["content"]: int(token["id"]) for token in data["added_tokens"]}
            vocab: dict[str, int] = data["model"]["vocab"]
            kind = data["model"]["type"]
        except (KeyError, TypeError, ValueError) as error:
            raise BadCheckpoint(f"{source} is not a tokenizer file: {error!r}") from None
        if kind != "BPE":
            raise BadCheckpoint(f"{source} holds a {kind} model; wanted byte-level BPE")
        self._text = _without_added_tokens(data, source)
        self._added = added
        longest_first = sorted(added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.special = self._find_markers(source)
        self._bytes = _byte_table(vocab, added, source)
        self.vocab_size = len(self._bytes)
        self.longest = max(map(len, self._bytes))  # bytes of a token
        if self.vocab_size == PUBLIC_VOCAB_SIZE and not trust:
            _check_public_ids(self.special, source)

    @classmethod
    def load(cls, folder: Path, *, trust: bool = False) -> Self:
        """Reads `folder`/tokenizer.json; raises `BadCheckpoint` as the constructor does."""
        path = folder / "tokenizer.json"
        try:
            data = msgspec.json.decode(read_regular(path))
        except FileNotFoundError:
            raise BadCheckpoint(
                f"{path} does not exist; copy tokenizer.json into the checkpoint folder"
            ) from None
        except OSError as error:
            raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise BadCheckpoint(f"{path} is not JSON: {error}; fetch the file again") from None
        return cls(data, source=str(path), trust=trust)

    @property
    def added_ids(self) -> list[int]:
        """The tokens that no text is encoded to unless it is meant: markers and their like."""
        return sorted(self._added.values())

    def encode_text(self, text: str) -> list[int]:
        """Ids of text from a client. Never an added token, whatever the text spells."""
        return self.encode_segments([text])[0]

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Ids of each segment. All text goes through the library in one call, which runs without
        the interpreter lock (`encode` holds it) and takes the segments in parallel."""
        texts = [segment for segment in segments if isinstance(segment, str)]
        try:
            batch = self._text.encode_batch_fast(texts, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            raise BadRequest(
                "text holds half of a surrogate pair (\\ud800 to \\udfff alone), which is not "
                "Unicode; send the whole character"
            ) from None
        encoded = iter(batch)
        return [[part] if isinstance(part, int) else next(encoded).ids for part in segments]

    def encode_raw(self, text: str) -> list[int]:
        """Ids of text that may spell added tokens and means them: raw completions only."""
        parts = [self._added.get(part, part) for part in self._split.split(text) if part]
        return list(chain.from_iterable(self.encode_segments(parts)))

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token, the UTF-8 spelling for an added one, and nothing for an id
        that the vocabulary does not have (a model may have more rows than its tokenizer)."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids, markers spelt out, bytes that are not UTF-8 as U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def _find_markers(self, source: str) -> SpecialTokens:
        ids = {}
        for name in MARKERS:
            spelling = SPELLING[name]
            if name in OPTIONAL and spelling not in self._added:
                continue
            tokens = self.encode_raw(spelling)
            if spelling not in self._added or len(tokens) != 1:
                raise BadCheckpoint(
                    f"{source} splits the marker {spelling} into {len(tokens)} tokens; the chat "
                    "format of DeepSeek-V4 needs it as one added token"
                )
            ids[name] = tokens[0]
        return SpecialTokens(**ids)


def _without_added_tokens(data: dict[str, Any], source: str) -> tokenizers.Tokenizer:
    plain = {**data, "added_tokens": [], "post_processor": None, "truncation": None}
    plain["padding"] = None
    try:
        return tokenizers.Tokenizer.from_str(msgspec.json.encode(plain).decode())
    except Exception as error:  # the library raises nothing narrower
        raise BadCheckpoint(
            f"{source} is not a tokenizer that `tokenizers` reads: {error}"
        ) from None


def _byte_table(vocab: dict[str, int], added: dict[str, int], source: str) -> list[bytes]:
    """The bytes of every id, b"" where the vocabulary has a hole."""
    table = [b""] * (max(chain(vocab.values(), added.values()), default=-1) + 1)
    byte_of = _byte_alphabet()
    added_ids = set(added.values())
    for spelling, token in vocab.items():
        if token in added_ids:
            continue
        try:
            table[token] = bytes(map(byte_of.__getitem__, spelling))
        except KeyError as error:
            raise BadCheckpoint(
                f"{source} is not byte-level: token {token} holds the character {error}"
            ) from None
    for spelling, token in added.items():
        table[token] = spelling.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells each byte as one visible character: printable Latin-1 bytes stand for
    themselves, the 68 others are numbered upwards from U+0100 (Radford et al. 2019, GPT-2)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): byte for byte in visible}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _check_public_ids(found: SpecialTokens, source: str) -> None:
    for name in MARKERS:
        have, want = getattr(found, name), getattr(PUBLIC_IDS, name)
        if have is not None and have != want:
            raise BadCheckpoint(
                f"{source} has {SPELLING[name]} at id {have}; the public vocabulary of "
                f"{PUBLIC_VOCAB_SIZE:,} tokens has it at {want} (--trust-tokenizer to go on)"
            )
