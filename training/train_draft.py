"""Trains a DSpark draft on a backbone that stays as it is: a few blocks of every row in a
step, each against what the backbone itself would say next. Knows no score.

The text is given, so a place learns from the tokens before it as they are, which is also when it
counts: a proposal is only looked at if all before it were accepted.
"""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import ModelConfig
from training.draft import DraftNetwork, initial_draft, live_experts
from training.make import make_network
from training.model import Parameters
from training.network import Extras, Mode
from training.stream import Stream
from training.train import BIAS_RATE, Recipe, Trainer, imbalance

ANCHORS = 16
"""Blocks for every 128 tokens: 5 rows each, so that a step has 0.6 rows for a token."""

FADE = 0.8
"""A place's weight in the loss, by that of the place before it: it is reached less often."""

SERVED = Mode(activations=True)


class DraftTrainer(Trainer):
    PARTS = ("both networks", "the draft", "the backbone")

    def __init__(
        self,
        config: ModelConfig,
        backbone: Parameters,
        recipe: Recipe,
        stream: Stream,
        device: torch.device,
        out: Path,
        scratch: Path,
        classes: Tensor | None = None,
    ) -> None:
        """`backbone`: decoded from its shards, and served as it is."""
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self.backbone = make_network(config, dtype, None, classes).prepare(backbone, SERVED)
        super().__init__(config, recipe, stream, device, out, scratch, classes)

    def _initial(self, seed: int) -> Parameters:
        return initial_draft(self.config, seed, self.device)

    def _network(self, compile: Any = None, part: str = "both networks") -> DraftNetwork:
        read = None if part == "the draft" else compile
        self._backbone = make_network(self.config, self.dtype, read, self.classes)
        return DraftNetwork(self.config, self.dtype, None if part == "the backbone" else compile)

    def _loss(self, ids: Tensor, tags: Tensor, mode: Mode) -> tuple[Tensor, Extras]:
        b, length = ids.shape[0], ids.shape[1] - 1
        share = self.tag_weights[tags].view(b, length)
        with torch.no_grad():
            taps: list[Tensor] = []
            hidden = self._backbone.forward(self.backbone, ids[:, :-1], SERVED, taps=taps)
            anchors = draw_anchors(share, self.config.window, self.config.draft.block_size)
        places = torch.arange(self.config.draft.block_size, device=ids.device)
        # Place i proposes the token behind row `at`, whose logits the backbone has.
        at = anchors.flatten(1).unsqueeze(-1) + 1 + places  # [B, P A, k]
        rows = torch.arange(b, device=ids.device)[:, None, None] * length + at
        tag = tags[rows.flatten()]
        extras = Extras(tag > 0)
        network = self.network
        assert isinstance(network, DraftNetwork)
        weights = network.prepare(self.parameters, mode)
        blocks = network.blocks(
            weights, self.backbone, ids, torch.cat(taps, dim=1), anchors, mode, extras
        )
        before = ids.gather(1, at.flatten(1)).flatten()
        logits, confidence = network.follow(weights, blocks.hidden, blocks.logits, before)
        with torch.no_grad():
            target = self._backbone.logits(self.backbone, hidden[rows.flatten()])
            target = target.float().softmax(-1)
        log_share = logits.log_softmax(-1)
        losses = -(target * log_share).sum(-1)
        with torch.no_grad():
            accepted = torch.minimum(target, log_share.exp()).sum(-1)
        doubts = F.binary_cross_entropy_with_logits(
            confidence, accepted.clamp(0, 1), reduction="none"
        )
        weight = share.flatten()[rows.flatten()] * (FADE**places).repeat(anchors.numel())
        total = weight.sum().clamp(min=1e-6)
        loss, doubt = (losses * weight).sum() / total, (doubts * weight).sum() / total
        with torch.no_grad():
            self._sums[0] += loss
            self._sums[1] += doubt
            self._sums[2] += 1
            self._sums[3] += imbalance(extras)
            self._sums[4:260].index_add_(0, tag, accepted)  # the log's slices: what is accepted
            self._sums[260:].index_add_(0, tag, torch.ones_like(accepted))
        return loss + doubt, extras

    @torch.no_grad()
    def _balance(self, extras: Extras) -> None:
        live = live_experts(self.config)
        loads = torch.stack(extras.loads).float()[:, :live]
        move = BIAS_RATE * self.factor * torch.sign(loads.mean(-1, keepdim=True) - loads)
        self.parameters["ffn.gate.bias"][:, :live] += move


def draw_anchors(share: Tensor, window: int, size: int) -> Tensor:
    """Positions [B, P, A] of rows with weights share [B, T] of the token behind each: likelier
    where a block's first proposal counts for more. Never so late that the block has no target."""
    b, length = share.shape
    weight = F.pad(share, (0, 1))[:, 1:].log()  # a block's first target is two tokens on
    position = torch.arange(length, device=share.device)
    weight = weight.masked_fill(position > length - size - 1, -math.inf)
    rank = weight - (-torch.rand_like(share).clamp(min=1e-9).log()).log()  # Gumbel
    rank = rank.nan_to_num(neginf=-1e9).masked_fill(position > length - size - 1, -math.inf)
    best = rank.view(b, -1, window).topk(ANCHORS, dim=-1).indices
    pieces = torch.arange(best.shape[1], device=share.device) * window
    return best + pieces[:, None]
