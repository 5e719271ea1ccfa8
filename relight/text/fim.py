"""The prompt that asks for what stands between two texts. Knows no messages.

The layout is prefix, suffix, middle, as published for DeepSeek-Coder and DeepSeek-V3.
"""

from collections.abc import Sequence

from relight.base.errors import Unsupported
from relight.text.tokenizer import Tokenizer


def fill_in(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Ids whose continuation is the text between `before` and `after`. A beginning of a text that
    `before` starts with stays in front. Raises `Unsupported` without the markers for it."""
    mark = tokenizer.special
    if mark.fim_begin is None or mark.fim_hole is None or mark.fim_end is None:
        raise Unsupported(
            "suffix cannot be served: this model's vocabulary has no markers for it; leave it out",
            param="suffix",
        )
    start = int(bool(before) and before[0] == mark.bos)
    middle = [mark.fim_begin, *before[start:], mark.fim_hole, *after, mark.fim_end]
    return [*before[:start], *middle]
