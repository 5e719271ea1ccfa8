"""The weights of a DSpark draft, made of stored tensors. Knows no cache and no request.

Embedding and head are the backbone's. Shapes as in `weights`; P is the rank of the Markov head.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relight.base.checkpoint import OpenModel
from relight.base.errors import BadCheckpoint
from relight.base.headers import StoredTensor
from relight.base.specs import LayerSpec
from relight.base.tensors import draft_tensors, markov_names
from relight.kernels.codec import DenseWeight, Weight
from relight.model.source import Progress, WeightSource
from relight.model.weights import AttentionWeights, FfnWeights, HyperWeights, Loaded, nbytes


@dataclass(frozen=True, slots=True)
class StageWeights:
    hyper_attention: HyperWeights
    attention_norm: Tensor  # [D] float32
    attention: AttentionWeights  # of a sliding layer
    hyper_ffn: HyperWeights
    ffn_norm: Tensor  # [D] float32
    ffn: FfnWeights


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """`hyper_head` is V4's last reading of the streams, None in V4.1."""

    main_proj: Weight  # [D, taps * D]
    main_norm: Tensor  # [D] float32
    stages: tuple[StageWeights, ...]
    hyper_head: HyperWeights | None
    norm: Tensor  # [D] float32
    markov_embed: DenseWeight  # [V, P]
    markov_head: DenseWeight  # [V, P]
    confidence: DenseWeight  # [1, D + P]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, mapped or copied; embedding and head are not among them."""
        return nbytes(self)


def load_draft(
    model: OpenModel,
    device: torch.device,
    *,
    threads: int = 4,
    progress: Progress | None = None,
) -> DraftWeights:
    """Brings the draft of a checked checkpoint to `device`. Raises BadCheckpoint for a draft that
    config.json does not describe."""
    assert model.config.draft.kind == "dspark"
    stored = _checked(model)
    config = replace(model.config, num_experts=model.config.draft_experts)
    with WeightSource(device) as source:
        loaded = LoadedDraft(config, stored, source)
        source.run(threads, progress)
    return loaded.draft()


def _checked(model: OpenModel) -> dict[str, StoredTensor]:
    """The draft's tensors by name, as the table wants them."""
    stored = {tensor.name: tensor for tensor in model.tensors.skipped}
    found: dict[str, StoredTensor] = {}
    for spec in draft_tensors(model.config):
        tensor = stored.get(spec.name)
        if tensor is None or (tensor.dtype, tensor.shape) != (spec.dtype, spec.shape):
            have = f"is {tensor.dtype} {list(tensor.shape)}" if tensor else "is missing"
            raise BadCheckpoint(
                f"{tensor.file if tensor else model.checkpoint.folder}: {spec.name} {have}; wanted "
                f"{spec.dtype} {list(spec.shape)}; use the config.json and the shards of one model",
                param="model",
            )
        found[spec.name] = tensor
    return found


class LoadedDraft(Loaded):
    def draft(self) -> DraftWeights:
        last = f"mtp.{self._config.draft.num_stages - 1}."
        embed, head = (self._dense(f"{last}markov_head.{n}") for n in markov_names(self._config))
        is_v4 = self._config.generation == "v4"
        return DraftWeights(
            main_proj=self._fp8("mtp.0.main_proj"),
            main_norm=self._norm("mtp.0.main_norm"),
            stages=tuple(self._stage(stage) for stage in range(self._config.draft.num_stages)),
            hyper_head=self._hyper(f"{last}hc_head_") if is_v4 else None,
            norm=self._norm(f"{last}norm"),
            markov_embed=embed,
            markov_head=head,
            confidence=self._dense(f"{last}confidence_head.proj"),
        )

    def _stage(self, stage: int) -> StageWeights:
        prefix, layer = f"mtp.{stage}.", LayerSpec(stage, "sliding", 0, "bias")
        return StageWeights(
            hyper_attention=self._hyper(f"{prefix}hc_attn_"),
            attention_norm=self._norm(f"{prefix}attn_norm"),
            attention=self._attention(layer, f"{prefix}attn."),
            hyper_ffn=self._hyper(f"{prefix}hc_ffn_"),
            ffn_norm=self._norm(f"{prefix}ffn_norm"),
            ffn=self._ffn(layer, f"{prefix}ffn."),
        )
