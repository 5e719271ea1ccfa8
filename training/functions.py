"""The parts of a training pass that hold no product of matrices but small ones: norms, rotations,
roundings, hyper-connections, masks, and the indexer's loss. Knows no layer and no parameter's name.

Symbols as in `network`. Functions of single tokens are compiled, others are not.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.formats import SMALL_FP8_GROUP
from relight.model.reference_parts import overlap
from training.quant import fp8_rows, straight

GRADIENT_ITERATIONS = 5
"""Sinkhorn rounds that gradients pass. It converges fast, so the last ones determine them."""


# Functions of single tokens


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """float32."""
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return x if weight is None else x * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the last pairs of x."""
    plain, pairs = x.split([x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]], dim=-1)
    even, odd = pairs.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return torch.cat([plain, turned.flatten(-2).to(x.dtype)], dim=-1)


def unit_rotate(q: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    return rotate(rms_norm(q, None, eps).to(q.dtype), cos.unsqueeze(1), sin.unsqueeze(1))


def rotate_heads(q: Tensor, cos: Tensor, sin: Tensor, _eps: float) -> Tensor:
    return rotate(q, cos.unsqueeze(1), sin.unsqueeze(1))


def norm_rotate(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, grid: str
) -> Tensor:
    """`grid`: the generation whose stored rows it is rounded as, none if empty."""
    row = rotate(rms_norm(x, weight, eps).to(x.dtype), cos, sin)
    if grid == "v4.1":
        return straight(row, fp8_rows(row, SMALL_FP8_GROUP))
    return quantised_nope(row, 2 * cos.shape[-1]) if grid else row


def quantised_nope(row: Tensor, rope_dim: int) -> Tensor:
    """As the cache stores a row: FP8 in blocks of 64 before the rotary dims, those as bf16."""
    plain, turned = row.split([row.shape[-1] - rope_dim, rope_dim], dim=-1)
    turned = straight(turned, turned.to(torch.bfloat16).to(turned.dtype))
    return torch.cat([straight(plain, fp8_rows(plain, 64)), turned], dim=-1)


def quantised_rows(x: Tensor, block: int) -> Tensor:
    return straight(x, fp8_rows(x, block))


def gated(gate: Tensor, up: Tensor, share: Tensor | None, limit: float, block: int) -> Tensor:
    """[N, X I], [N, X] -> the input of the down product, rounded in blocks unless `block` is 0."""
    hidden = F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    if share is not None:
        hidden = (hidden.unflatten(-1, (share.shape[1], -1)) * share.unsqueeze(-1)).flatten(1)
    hidden = hidden.to(gate.dtype)
    return quantised_rows(hidden, block) if block else hidden


def pool(
    values: Tensor,
    gates: Tensor,
    ape: Tensor,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    length: int,
    eps: float,
) -> Tensor:
    """values, gates [N, d or 2 d] -> entries [N / ratio, d], normed and turned."""
    ratio = ape.shape[0]
    dtype = values.dtype
    values = values.float().unflatten(0, (-1, length // ratio, ratio))  # [B, E, ratio, ..]
    gates = gates.float().unflatten(0, (-1, length // ratio, ratio)) + ape
    if ratio == 4:
        values, gates = overlap(values, 0.0), overlap(gates, -math.inf)
    entries = (gates.softmax(dim=-2) * values).sum(dim=-2).flatten(0, 1)
    return rotate(rms_norm(entries, norm, eps).to(dtype), cos, sin)


def stream_mixes(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    flat = streams.flatten(1)
    scale = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    return F.linear(flat, fn.to(flat.dtype)).float() * scale


def stream_mean(streams: Tensor) -> Tensor:
    return streams.float().mean(1).to(streams.dtype)


def hyper_read(
    streams: Tensor,
    given: Tensor | None,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    iterations: int,
    hc_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """streams [N, S, D] -> the sublayer's input [N, D], post [N, S], comb [N, S, S], and the
    streams' own pre [N, S], which is read by unless another one is given."""
    hc = streams.shape[1]
    parts = stream_mixes(streams, fn, eps).split([hc, hc, hc * hc], dim=-1)
    bases = base.split([hc, hc, hc * hc])
    pre = torch.sigmoid(parts[0] * scale[0] + bases[0]) + hc_eps
    post = 2 * torch.sigmoid(parts[1] * scale[1] + bases[1])
    comb = sinkhorn((parts[2] * scale[2] + bases[2]).unflatten(-1, (hc, hc)), iterations, hc_eps)
    x = ((pre if given is None else given).unsqueeze(-1) * streams).sum(1)
    return rms_norm(x, norm, eps).to(streams.dtype), post, comb, pre


def hyper_write(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    spread = post.unsqueeze(-1) * out.unsqueeze(1)
    mixed = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)  # from, to
    return (spread + mixed).to(streams.dtype)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """As the reference; gradients pass the last rounds only."""
    free = max(iterations - GRADIENT_ITERATIONS, 1)
    fixed = logits.detach()
    mix = fixed.softmax(dim=-1) + eps
    mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
    for _ in range(free - 1):
        mix = mix / (mix.sum(dim=-1, keepdim=True) + eps)
        mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
    mix = mix * (1 + (logits - fixed))
    for _ in range(iterations - free):
        mix = mix / (mix.sum(dim=-1, keepdim=True) + eps)
        mix = mix / (mix.sum(dim=-2, keepdim=True) + eps)
    return mix


# Masks and the indexer's loss


def hidden_entries(length: int, ratio: int, device: torch.device) -> Tensor:
    """[T, E]: 0 where the entry is complete at the token, else -inf."""
    complete = (torch.arange(length, device=device) + 1) // ratio
    entries = torch.arange(length // ratio, device=device)
    return torch.where(entries < complete[:, None], 0.0, -math.inf)


def window_bias(blocks: int, size: int, device: torch.device) -> Tensor:
    """[blocks, size, 1, 2 size]: a token sees itself and the size - 1 tokens before it."""
    token = torch.arange(size, device=device)[:, None] + size
    row = torch.arange(2 * size, device=device)
    age = token - row
    seen = ((age >= 0) & (age < size)).expand(blocks, size, 2 * size)
    exists = (torch.arange(blocks, device=device)[:, None, None] > 0) | (row >= size)
    return torch.where(seen & exists, 0.0, -math.inf).unsqueeze(2)


def index_loss(scores: Tensor, mass: Tensor, bias: Tensor | None, valid: Tensor) -> Tensor:
    """Cross entropy of softmax(scores) over what attention could read to the mass of attention
    there, summed over heads. Rows count by their mass: who does not look back teaches little."""
    assert bias is not None
    read = bias.squeeze(2)[..., : scores.shape[-1]] == 0
    # Finite, since a row without a complete entry would have no softmax.
    log_share = scores.masked_fill(~read, -1e4).log_softmax(dim=-1)
    mass = mass * valid.view(*mass.shape[:2], 1)
    return -(mass * log_share).sum() / mass.sum().clamp(min=1.0)
