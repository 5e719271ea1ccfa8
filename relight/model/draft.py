"""DSpark over cached state: keeps what the backbone's layers passed at the taps, and proposes a
block of tokens at once. Knows no acceptance, no sampling rule and no request.

A stage keeps one window row a position, made of the taps of committed tokens alone, in a ring like
the backbone's. Rows of a proposal are made, read and forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relight.base.numerics import Numerics
from relight.base.specs import LayerSpec, ModelConfig
from relight.cache.layout import window_ring_rows
from relight.kernels import store
from relight.kernels.attend import Keys, attend
from relight.kernels.codec import DenseWeight
from relight.kernels.linear import grouped, linear
from relight.kernels.row_ops import NO_KERNELS, Ops
from relight.kernels.rows import Rows
from relight.model.addresses import NO_KEY, RingAddresses, pad_keys, ring_addresses
from relight.model.attention import Attention
from relight.model.inputs import Segment
from relight.model.moe import Moe
from relight.model.streams import Mhc, Streams
from relight.model.weights_draft import DraftWeights, StageWeights

Pick = Callable[[Tensor, int], Tensor]
"""The tokens [n] of logits [n, V] for the i-th place behind the anchors."""


def greedy(logits: Tensor, _place: int) -> Tensor:
    return logits.argmax(dim=1)


@dataclass(frozen=True, slots=True)
class Proposal:
    """For the k places behind the anchors. `confidence` is a logit: of acceptance, if all before
    are accepted. Logits are float32, before and after the Markov head."""

    tokens: Tensor  # [n, k]
    base_logits: Tensor  # [n, k, V]
    logits: Tensor  # [n, k, V]
    confidence: Tensor  # [n, k]


@dataclass(frozen=True, slots=True)
class Seen:
    """A scratch of window + k rows for each of n sequences, and what is listed of it."""

    rings: Tensor  # [n * window] ring rows that go into the scratch
    kept: Tensor  # [n * window] their places in it
    own: Tensor  # [n * k] places of the block's own rows
    keys: Tensor  # [n * k, keys] what each row of a block attends to


class Draft:
    """The draft of one model. `embed`, `head` and `ops` are the backbone's."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DraftWeights,
        embed: Tensor,
        head: DenseWeight,
        numerics: Numerics,
        ops: Ops = NO_KERNELS,
    ) -> None:
        self.config = config
        self.weights = weights
        self.embed = embed
        self.head = head
        self.numerics = numerics
        self.boundary = getattr(torch, numerics.boundary)
        inner = replace(
            config,
            num_experts=config.draft_experts,
            experts_per_token=config.draft_experts_per_token,
        )
        self.stages = tuple(
            Stage(inner, number, stage, numerics, self.boundary, ops)
            for number, stage in enumerate(weights.stages)
        )
        self.mhc = Mhc(config, self.boundary, ops)

    @torch.inference_mode()
    def keep(self, taps: Tensor, segment: Segment, rings: Sequence[Rows]) -> None:
        """Stores the rows of a segment whose tokens are committed; taps [rows, taps * D]."""
        w, quantised = self.weights, self.numerics.quantised
        main = linear(taps, w.main_proj, segment.family, quantised, self.boundary)
        main = self.stages[0].vectors.norm(main, w.main_norm, segment)
        where = ring_addresses(segment, window_ring_rows(self.config), 0)
        for stage, ring in zip(self.stages, rings, strict=True):
            stage.keep(main, segment, ring, where)

    @torch.inference_mode()
    def propose(
        self,
        slots: Tensor,
        positions: Tensor,
        anchors: Tensor,
        rings: Sequence[Rows],
        pick: Pick = greedy,
    ) -> Proposal:
        """slots [n], positions [n] of the last kept rows, anchors [n]: the tokens behind them."""
        draft, count = self.config.draft, slots.shape[0]
        ids = anchors.new_full((count, draft.block_size), draft.noise_token_id)
        ids[:, 0] = anchors
        segment = block_segment(ids, slots, positions + 1)
        seen = self.seen(slots, positions)
        rows = self.embed[segment.token_ids].to(self.boundary)
        streams: Streams = rows.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        pre = torch.zeros((len(rows), self.config.hc_mult), device=rows.device)
        pre[:, 0] = 1.0  # V4.1 starts each block afresh
        for stage, ring in zip(self.stages, rings, strict=True):
            streams, pre = stage.advance(streams, pre, segment, ring, seen)
        return self._head(self.mhc.whole(streams), pre, segment, anchors, pick)

    def seen(self, slots: Tensor, positions: Tensor) -> "Seen":
        """What the rows of each block see: the window that ends at the last kept position, then the
        block itself. Window rows come in the order of position mod window, as in official code,
        whose sums run over 64 keys of such a list."""
        ring, window, block = (
            window_ring_rows(self.config),
            self.config.window,
            self.config.draft.block_size,
        )
        place = torch.arange(window, device=slots.device)
        last = positions.unsqueeze(1)
        kept = last - (last - place) % window  # negative before the sequence's start
        rings = slots.unsqueeze(1) * ring + kept.clamp(min=0) % ring
        listed = torch.arange(window + block, device=slots.device)
        count = (last + 1).clamp(max=window)
        own = torch.where(listed < count + block, window + listed - count, NO_KEY)
        keys = torch.where(listed < count, listed, own)
        base = torch.arange(len(slots), device=slots.device).unsqueeze(1) * (window + block)
        keys = torch.where(keys < 0, NO_KEY, base + keys)
        return Seen(
            rings.flatten(),
            (base + place).flatten(),
            (base + window + torch.arange(block, device=slots.device)).flatten(),
            pad_keys(keys).repeat_interleave(block, 0),
        )

    def _head(
        self, streams: Tensor, pre: Tensor, segment: Segment, anchors: Tensor, pick: Pick
    ) -> Proposal:
        """Place i is of the token behind the i-th row's; each follows from the one before it."""
        w, c, family = self.weights, self.config, segment.family
        if w.hyper_head is not None:
            x, normed = self.mhc.read_by_head(streams, w.hyper_head, w.norm, segment)
        else:
            x, normed = self.mhc.read(streams, pre, w.norm, segment)
        shape = (anchors.shape[0], c.draft.block_size, -1)
        base = linear(normed, self.head, family, False, torch.float32).view(shape)
        x = x.view(shape)
        tokens, logits, confidence = [anchors], [], []
        for place in range(c.draft.block_size):
            before = w.markov_embed.data[tokens[-1]]
            bias = linear(before, w.markov_head, family, False, torch.float32)
            hint = torch.cat([x[:, place].float(), before.float()], dim=1)
            confidence.append(linear(hint, w.confidence, family, False, torch.float32))
            logits.append(base[:, place] + bias)
            tokens.append(pick(logits[-1], place))
        return Proposal(
            torch.stack(tokens[1:], 1), base, torch.stack(logits, 1), torch.cat(confidence, 1)
        )


class Stage(Attention):
    """One block of the draft: sliding attention in which the rows of a block see each other."""

    def __init__(
        self,
        config: ModelConfig,
        number: int,
        weights: StageWeights,
        numerics: Numerics,
        boundary: torch.dtype,
        ops: Ops,
    ) -> None:
        layer = LayerSpec(number, "sliding", 0, "bias")
        super().__init__(config, layer, weights.attention, numerics, boundary, ops)
        self.stage = weights
        self.moe = Moe(config, weights.ffn, numerics, boundary, ops)
        self.mhc = Mhc(config, boundary, ops)

    def keep(self, x: Tensor, segment: Segment, ring: Rows, where: RingAddresses) -> None:
        """Stores the window rows of x [rows, D] that a ring keeps."""
        kv = self._linear(x, self.weights.wkv, segment)[where.kept]
        at = segment.positions[where.kept]
        self.vectors.keep(kv, self.weights.kv_norm, segment, ring, where.places, at)

    def advance(
        self, streams: Streams, pre: Tensor, segment: Segment, ring: Rows, seen: Seen
    ) -> tuple[Streams, Tensor]:
        """Streams and, for V4.1, how to read them -> both for the next stage."""
        w, deferred = self.stage, self.config.generation == "v4.1"
        reading = pre if deferred else None
        whole, mix, x = self.mhc.mix_and_read(
            *(streams, w.hyper_attention, w.attention_norm, segment, reading),
            into=self.weights.wq_a,
        )
        out = self._attend(x, segment, ring, seen, mix.finish)
        streams = self.mhc.spread(out, whole, mix, segment)
        reading = mix.pre if deferred else None
        whole, mix, x = self.mhc.mix_and_read(
            *(streams, w.hyper_ffn, w.ffn_norm, segment, reading), into=w.ffn.shared.w1
        )
        routed, out = self.moe.forward(x, segment, mix.finish)
        return self.mhc.spread(out, whole, mix, segment, routed), mix.pre

    def _attend(
        self, x: Tensor, segment: Segment, ring: Rows, seen: Seen, late: Callable[[], None]
    ) -> Tensor:
        """To kept rows and all rows of the own block. V4 norms queries head by head."""
        w, c, vectors = self.weights, self.config, self.vectors
        ops = self.ops.of(segment.family)

        def keys() -> Rows:
            scratch = Rows.empty(ring.format, seen.kept.shape[0] + seen.own.shape[0], x.device)
            store.copy(ring, seen.rings, scratch, seen.kept, ops.store)
            vectors.keep(self._linear(x, w.wkv, segment), w.kv_norm, segment, scratch, seen.own)
            late()
            return scratch

        def queries() -> Tensor:
            latent = self._linear(x, w.wq_a, segment)
            latent = vectors.norm(latent, w.q_norm, segment, w.wq_b)
            q = self._linear(latent, w.wq_b, segment).view(-1, c.num_heads, c.head_dim)
            return (vectors.queries if c.generation == "v4" else vectors.rotate)(q, segment)

        with ops.branches() as beside:
            kept = beside.begin("keys", keys)
            q = queries()
            scratch = kept()
        out = attend(
            q,
            Keys(scratch, seen.keys),
            w.sink,
            c.head_dim**-0.5,
            segment.family,
            self.boundary,
            ops.attend,
            vectors.back(segment),
        )
        out = out.reshape(out.shape[0], c.o_groups, -1)
        out = grouped(out, w.wo_a, segment.family, self.boundary)
        return self._linear(out.flatten(1), w.wo_b, segment)


def block_segment(ids: Tensor, slots: Tensor, starts: Tensor) -> Segment:
    """A block of ids [n, k] for each of n sequences, from positions starts [n] on."""
    count, size = ids.shape
    sequence = torch.arange(count, device=ids.device).repeat_interleave(size)
    first = torch.arange(count, device=ids.device) * size
    offsets = torch.arange(size, device=ids.device).repeat(count)
    return Segment(
        family="step",
        token_ids=ids.flatten(),
        positions=starts[sequence] + offsets,
        sequence=sequence,
        slots=slots,
        starts=starts,
        counts=(size,) * count,
        first_rows=first,
        page_table=ids.new_zeros((count, 0)),
        max_length=0,  # nothing is read from pages
        closing_rows={},
        kept_rows={},
        sample_rows=first,
    )
