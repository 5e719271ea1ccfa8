"""What one draw must give, by a definition in plain Python."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from relight.base.types import SamplingParams
from relight.engine.plan import Draw
from relight.engine.sampler import draw_tokens


def adjusted(logits: Sequence[float], sampling: SamplingParams, made: Sequence[int]) -> list[float]:
    """The logits that a sequence draws from when it has made `made`."""
    found = list(logits)
    for token, count in Counter(made).items():
        repetition = sampling.repetition_penalty
        found[token] = found[token] / repetition if found[token] > 0 else found[token] * repetition
        found[token] -= sampling.frequency_penalty * count
        found[token] -= sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        found[token] += bias
    if len(made) < len(sampling.forced):
        forced = sampling.forced[len(made)]
        return [x if i == forced else -math.inf for i, x in enumerate(found)]
    if len(made) == sampling.think_budget and sampling.think_close not in made:
        found = [x if i == sampling.think_close else -math.inf for i, x in enumerate(found)]
    if len(made) < sampling.min_tokens:
        for token in sampling.stop_token_ids:
            found[token] = -math.inf
    return found


def alone(logits: Tensor, sampling: SamplingParams, made: Sequence[int], *, position: int) -> int:
    """The token that is drawn from logits [V] by a sequence that has made `made`."""
    plain = msgspec.structs.replace(
        sampling,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias=(),
        min_tokens=0,
        think_budget=None,
        forced=(),
    )
    row = torch.tensor([adjusted(logits.tolist(), sampling, made)], device=logits.device)
    return int(draw_tokens([Draw(0, position, plain)], row)[0])
