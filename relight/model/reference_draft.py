"""Computes DSpark drafts in plain float32 torch, of V4 and V4.1: the oracle of the engine's draft.
Knows no ring, no acceptance and no request.

The stages read what the backbone's layers passed at the taps, one row of K for each position, and
turn an anchor and noise tokens into a block of proposals at once. Symbols in shapes as in
`reference_parts`; k is the block size, V the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relight.base.tensors import markov_names
from relight.model.reference_network import Network
from relight.model.reference_parts import LayerTrace, Routing, collapse

Pick = Callable[[Tensor, int], int]
"""The token of logits [V] for a position."""


def greedy(logits: Tensor, _position: int) -> int:
    return int(logits.argmax())


@dataclass(frozen=True, slots=True)
class StageTrace:
    """What one stage did with the block."""

    streams: Tensor  # [k, S, D]
    pre: Tensor  # [k, S]
    routing: Routing  # [k, …]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for the k positions behind the anchor's. Logits are before and after the Markov
    head; `confidence` is a logit, of the proposal's acceptance if those before it are."""

    tokens: tuple[int, ...]
    base_logits: Tensor  # [k, V]
    logits: Tensor  # [k, V]
    confidence: Tensor  # [k]
    stages: tuple[StageTrace, ...]


class ReferenceDraft(Network):
    """The draft stages (`mtp.*`) as a function of the model's tensors."""

    @property
    def _stages(self) -> list[str]:
        assert self.config.draft.kind == "dspark"
        return [f"mtp.{stage}" for stage in range(self.config.draft.num_stages)]

    def taps(self, layers: Sequence[LayerTrace]) -> Tensor:
        """[B, T, taps · D] of the backbone's trace: means over the streams, of V4 behind the tapped
        layers, of V4.1 before their attention."""
        tapped = [layers[index] for index in self.config.draft.target_layers]
        is_v4 = self.config.generation == "v4"
        return torch.cat(
            [(done.streams if is_v4 else done.entered).mean(dim=-2) for done in tapped], dim=-1
        )

    def context(self, taps: Tensor) -> list[Tensor]:
        """The rows [T, K] that each stage keeps of positions 0 … T-1, from taps [T, taps · D]. A
        stage applies nothing but its row's projection to them."""
        main = self.norm("mtp.0.main_norm", self.linear("mtp.0.main_proj", taps))[None]
        positions = torch.arange(taps.shape[0], device=taps.device)
        return [
            self.rope(self.window_rows(f"{name}.attn", main), positions, compressed=False)[0]
            for name in self._stages
        ]

    def propose(
        self, context: Sequence[Tensor], position: int, anchor: int, pick: Pick = greedy
    ) -> Draft:
        """After `position`, whose successor is the token `anchor`; rows of later positions in the
        context are not read."""
        draft, device = self.config.draft, context[0].device
        ids = [anchor, *(draft.noise_token_id,) * (draft.block_size - 1)]
        streams = self.embed(torch.tensor([ids], device=device))
        positions = torch.arange(draft.block_size, device=device) + position + 1
        pre = streams.new_zeros(1, draft.block_size, self.config.hc_mult)
        pre[..., 0] = 1  # V4.1 starts each block afresh
        first = max(0, position + 1 - self.config.window)
        stages = []
        for name, rows in zip(self._stages, context, strict=True):
            streams, pre, routing = self._stage(
                name, streams, pre, rows[first : position + 1], positions
            )
            stages.append(StageTrace(streams[0], pre[0], routing))
        return self._head(streams, pre, position, anchor, pick, tuple(stages))

    def _stage(
        self, name: str, streams: Tensor, pre: Tensor, context: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Routing]:
        """A sliding block in which all rows see the same context and each other."""
        deferred = self.config.generation == "v4.1"
        attn = self.enter(name, "attn", streams, pre if deferred else None)
        q, _ = self.queries(f"{name}.attn", attn.x)
        q = self.rope(q, positions, compressed=False)
        own = self.rope(self.window_rows(f"{name}.attn", attn.x), positions, compressed=False)
        rows = torch.cat([context[None], own], dim=-2)
        visible = torch.ones(*attn.x.shape[:2], rows.shape[-2], dtype=torch.bool, device=q.device)
        out = self.attend(f"{name}.attn", q, positions, rows, visible, compressed=False)
        ffn = self.enter(name, "ffn", attn.leave(out), attn.pre if deferred else None)
        out, routing = self.experts(f"{name}.ffn", ffn.x, self.config.draft_experts_per_token)
        return ffn.leave(out), ffn.pre, routing

    def _head(
        self,
        streams: Tensor,
        pre: Tensor,
        position: int,
        anchor: int,
        pick: Pick,
        stages: tuple[StageTrace, ...],
    ) -> Draft:
        """Row i proposes the token at position + 2 + i; a bias from the token before it makes the
        proposals follow each other."""
        last = self._stages[-1]
        is_v4 = self.config.generation == "v4"
        x = self.hyper_head(f"{last}.", streams) if is_v4 else collapse(streams, pre)
        base_logits = self.linear("head", self.norm(f"{last}.norm", x))[0]
        embed, matrix = (f"{last}.markov_head.{name}" for name in markov_names(self.config))
        tokens, logits, confidence = [anchor], [], []
        for row, base in enumerate(base_logits):
            before = self.tensors[f"{embed}.weight"][tokens[-1]]
            logits.append(base + self.linear(matrix, before))
            hint = torch.cat([x[0, row], before])
            confidence.append(self.linear(f"{last}.confidence_head.proj", hint))
            tokens.append(pick(logits[-1], position + 2 + row))
        return Draft(
            tuple(tokens[1:]), base_logits, torch.stack(logits), torch.cat(confidence), stages
        )
