"""Trials of the kernels between products for given rows: what made rows are tried with, and more
rows at once. Knows no network."""

from dataclasses import replace

import torch
from torch import Tensor

from relight.kernels.canary import Trial
from relight.kernels.cuda_tools import COMPRESS, GIVEN, HYPER
from relight.kernels.toolbox import Toolbox
from relight.kernels.trials_engram import engram_trials
from relight.kernels.trials_small import compress_trials, hyper_trials, small_trials
from relight.kernels.trials_sparse import attend_trials, index_trials

TIMES = 8
"""So many rows for each of a trial of made rows."""


def given_trials(tools: Toolbox, device: torch.device) -> list[Trial]:
    """Attention and hyper-connections have kernels of their own in this family, and raw rows are
    read elsewhere; all else is the same."""
    boundary = torch.bfloat16 if tools.form.bf16 else torch.float32
    made = [*index_trials(tools, device), *small_trials(tools, device)]
    made += engram_trials(tools, device)
    own = (COMPRESS, HYPER)
    same = [one for one in made if one.variant.op in GIVEN and one.variant not in own]
    other = compress_trials(tools, device, boundary, "prefill")
    other += attend_trials(tools, device, given=True)
    other += hyper_trials(tools, device, boundary, given=True)
    return [_given(one) for one in (*same, *other)]


def _given(trial: Trial) -> Trial:
    def inputs() -> Tensor:
        return torch.cat([trial.inputs() for _ in range(TIMES)])

    return replace(trial, variant=GIVEN[trial.variant.op], inputs=inputs)
