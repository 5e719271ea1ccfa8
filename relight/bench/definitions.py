"""What each figure means, as pure functions of times in seconds and counts of tokens. Knows no
record, no server and no statistics.

A token chunk is an event with a generated token of any kind: content, reasoning, a tool call, or
an empty text without a role. A role prelude, usage and `[DONE]` are none.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise

Chunks = Sequence[tuple[float, int]]
"""(arrival, tokens in it) of each token chunk of an answer; 0 tokens: the server does not say."""


def tpot(chunks: Chunks, num_tokens: int) -> float | None:
    """Time per output token after the first chunk: (last - first) / (N - tokens of the first).

    The tokens of the first chunk count as 1 when unknown. None, not 0, when nothing is left to
    divide by.
    """
    if not chunks:
        return None
    rest = num_tokens - (chunks[0][1] or 1)
    return (chunks[-1][0] - chunks[0][0]) / rest if rest > 0 and len(chunks) > 1 else None


def icl(chunks: Chunks) -> list[float]:
    """Inter-chunk latencies: what a reader sees, whatever a chunk holds."""
    return [after - before for (before, _), (after, _) in pairwise(chunks)]


def itl(chunks: Chunks) -> list[float] | None:
    """Inter-token latencies: each gap shared by the tokens of the chunk that ends it. None when
    any of those counts is unknown: a chunk is no token."""
    if any(count == 0 for _, count in chunks[1:]):
        return None
    gaps = zip(icl(chunks), chunks[1:], strict=True)
    return [gap / count for gap, (_, count) in gaps for _ in range(count)]


def stalls(gaps: Sequence[float], factor: float = 10) -> int:
    """Gaps that are longer than `factor` medians."""
    middle = statistics.median(gaps) if gaps else 0.0
    return sum(gap > factor * middle for gap in gaps)


def in_system(out_tok_s: float, ttft_s: float, tpot_s: float, num_tokens: float) -> float:
    """Requests in the system by Little's law: rate times time in it."""
    return out_tok_s / num_tokens * (ttft_s + tpot_s * (num_tokens - 1))


def implied_running(out_tok_s: float, decode_s: float, num_tokens: float) -> float:
    """Requests that decode at once, from the mean time between first and last token. It is what
    the slots must have been, whatever was configured."""
    return out_tok_s / num_tokens * decode_s


def slot_ceiling(slots: int, tpot_s: float) -> float:
    """The output tokens a second that `slots` sequences cannot exceed at this time per token."""
    return slots / tpot_s


def closure(out_tok_s: float, e2e_s: float, num_tokens: float, users: float) -> float:
    """Requests in the system by Little's law over the users that were to keep it filled. Near 1
    when window, count and latency belong together; ramp and drain cost a few per cent."""
    return out_tok_s * e2e_s / (num_tokens * users)


def acceptance_length(depth: int, rate: float) -> float:
    """Tokens a verification yields, its bonus token included."""
    return 1 + depth * rate


def advance(per_position: Sequence[float]) -> float:
    """Tokens a verification yields, from unconditional acceptance at each position."""
    return 1 + sum(per_position)


def conditional(per_position: Sequence[float]) -> list[float]:
    """Acceptance at a position given that all before it were accepted."""
    before = [1.0, *per_position][: len(per_position)]
    return [
        at / earlier if earlier else 0.0 for at, earlier in zip(per_position, before, strict=True)
    ]


def best_depth(per_position: Sequence[float], step_s: dict[int, float]) -> int:
    """The draft depth with the most tokens a second: advance over step time. Not the one with the
    best acceptance rate, which only falls with depth."""
    return max(step_s, key=lambda depth: advance(per_position[:depth]) / step_s[depth])


def implausible(points: Sequence[tuple[int, float]], tolerance: float = 0.2) -> list[int]:
    """Lengths whose prefill rate is below that of the next longer one by more than `tolerance`: the
    work for a token never falls with length, so a compilation or a warm-up is in the point.

    `points` are (prompt tokens, TTFT in seconds) by length.
    """
    rates = [(length, length / ttft) for length, ttft in points]
    return [n for (n, rate), (_, longer) in pairwise(rates) if rate < longer * (1 - tolerance)]
