"""Grammars over the tokens of one vocabulary: which tokens may come next. Knows no request, and
not what a grammar is for.

`llguidance` parses (Earley's algorithm over a lexer of derivatives) and walks the trie of all
tokens' bytes. Tokens with a literal of their own, the added ones, are never text here: a grammar
names them by id, as in `<[128825]>`.
"""

import re
from collections.abc import Iterable, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from relight.base.errors import BadRequest
from relight.text.tokenizer import Tokenizer

MAX_CHARACTERS = 1_000_000
"""Of a grammar. Schemas that people write have some thousands."""

MAX_REASON = 300
"""Characters of the library's own message that are passed on."""

_SHOWN = re.compile(r"\s*(\d+ \||\^)")

# What one mask may cost is bounded in the library's own units; errors quote no text of a client.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


class Grammar:
    """A grammar that compiles. Not changed by use."""

    def __init__(self, matcher: LLMatcher, mask_bytes: int) -> None:
        self._matcher = matcher
        self._mask_bytes = mask_bytes

    def start(self) -> "Matcher":
        return Matcher(self._matcher.deep_copy(), self._mask_bytes)


class Matcher:
    """One text on its way through a grammar."""

    def __init__(self, matcher: LLMatcher, mask_bytes: int) -> None:
        self._matcher = matcher
        self._mask_bytes = mask_bytes

    def consume(self, token: int) -> None:
        """Raises `BadRequest` if the token may not stand here, or the grammar got too complex."""
        self._matcher.consume_token(token)
        self._check()

    def mask(self) -> bytes:
        """Bit t % 8 of byte t // 8: whether token t may come next; the end of the turn may where
        the text is whole. Raises `BadRequest` if the grammar is too complex here."""
        mask = self._matcher.compute_bitmask()[: self._mask_bytes]
        self._check()
        return mask.ljust(self._mask_bytes, b"\0")

    def forget(self, num_tokens: int) -> None:
        """The last so many tokens were not consumed."""
        self._matcher.rollback(num_tokens)
        self._check()

    @property
    def is_whole(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadRequest(f"the grammar cannot go on: {_in_one_line(self._matcher.get_error())}")


class Vocabulary:
    """What llguidance has to know of a tokenizer, for logits of `num_logits` tokens (0: as many as
    the tokenizer has). Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, num_logits: int = 0) -> None:
        size = max(num_logits, tokenizer.vocab_size)
        self.eos = tokenizer.special.eos
        self.mask_bytes = -(-(num_logits or size) // 32) * 4
        self._llguidance = LLTokenizer(
            TokenizerWrapper(_Tokens(tokenizer)), n_vocab=size, eos_token=self.eos
        )

    def compile(self, grammar: str) -> Grammar:
        """Takes up to seconds, without the interpreter's lock. Raises `BadRequest` that says what
        is wrong with the grammar."""
        if len(grammar) > MAX_CHARACTERS:
            raise BadRequest(
                f"it makes a grammar of {len(grammar)} characters; the most is {MAX_CHARACTERS}"
            )
        matcher = LLMatcher(self._llguidance, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise BadRequest(f"it cannot be compiled: {_in_one_line(matcher.get_error())}")
        compiled = Grammar(matcher, self.mask_bytes)
        try:
            compiled.start().mask()
        except BadRequest as error:
            raise BadRequest(f"it allows no text, or is too complex: {error.message}") from None
        return compiled

    def mask_of(self, tokens: Iterable[int]) -> bytes:
        """A mask that allows these tokens only."""
        mask = bytearray(self.mask_bytes)
        for token in tokens:
            if token < len(mask) * 8:
                mask[token // 8] |= 1 << token % 8
        return bytes(mask)

    def mask_without(self, tokens: Iterable[int]) -> bytes:
        """A mask that allows all but these tokens."""
        return bytes(byte ^ 0xFF for byte in self.mask_of(tokens))


class _Tokens:
    """The form in which llguidance takes a tokenizer. It asks for the ids of text that a grammar
    leaves no choice about, so that this is tokenised as a prompt would be."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode_text
        self.eos_token_id = tokenizer.special.eos
        self.bos_token_id = tokenizer.special.bos
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids: Sequence[int] = tokenizer.added_ids

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


def either(one: bytes, other: bytes) -> bytes:
    """A mask that allows what one of the two allows."""
    union = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return union.to_bytes(len(one), "little")


def has(mask: bytes, token: int) -> bool:
    """Whether it allows this token."""
    return token < 8 * len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def _in_one_line(message: str) -> str:
    """What the library says, without the lines of our grammar that it shows."""
    lines = [line for line in message.splitlines() if not _SHOWN.match(line)]
    told = re.sub(r"^at \d+\(\d+\): ", "", " ".join(" ".join(lines).split()))
    return told.removesuffix("<non-verbose/>").strip()[:MAX_REASON] or "no reason was given"
