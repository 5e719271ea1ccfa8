"""Builds what guesses tokens, as settings ask for it. Knows no request and no scheduler.

Without speculation no tensor of a draft is read, and no ring kept for one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from relight.base.checkpoint import OpenModel
from relight.base.config import ModelConfig
from relight.base.errors import BadSetting
from relight.base.numerics import Numerics
from relight.base.settings import Settings
from relight.base.tensors import draft_tensors
from relight.cache.pool import Pool
from relight.engine.proposer import DraftProposer
from relight.engine.speculate import Speculation
from relight.model.draft import Draft
from relight.model.network import AnyWeights
from relight.model.state import draft_rings
from relight.model.weights_draft import DraftWeights, load_draft
from relight.text.sections import section_tokens


@dataclass(frozen=True, slots=True)
class Drafting:
    """At most `depth` tokens are guessed at once, by a draft whose weights take `nbytes`."""

    depth: int
    nbytes: int


def choose_drafting(config: ModelConfig, settings: Settings) -> Drafting | None:
    """None without speculation. Raises `BadSetting` if the model has no draft for it."""
    if settings.spec == "off":
        return None
    draft = config.draft
    if draft.kind != "dspark":
        found = {
            "mtp1": "the preview's MTP block (mtp.0), which is skipped: it guesses one token, and "
            "nothing here runs it",
            "none": "no draft",
        }[draft.kind]
        raise BadSetting(
            f"spec is {settings.spec} and the checkpoint has {found}; set spec to off, or choose a "
            "checkpoint with DSpark stages",
            param="spec",
        )
    nbytes = sum(tensor.nbytes for tensor in draft_tensors(config))
    return Drafting(settings.spec_k or draft.block_size, nbytes)


def build_proposer(
    model: OpenModel,
    drafting: Drafting,
    backbone: AnyWeights,
    pool: Pool,
    numerics: Numerics,
    bind: Callable[[DraftWeights], DraftWeights],
) -> DraftProposer:
    """Reads the draft's weights, and has kernels given to them by `bind`. The trained block is run
    whole, and cut to what is asked for; a longer one is one block of more rows, never a second
    block. Raises `BadCheckpoint`."""
    config = model.config
    weights = bind(load_draft(model, pool.device))
    size = max(drafting.depth, config.draft.block_size)
    config = replace(config, draft=replace(config.draft, block_size=size))
    draft = Draft(config, weights, backbone.embed, backbone.head, numerics, backbone.ops)
    return DraftProposer(draft, draft_rings(config, pool), backbone.ops.sample)


def build_speculation(
    drafting: Drafting | None, settings: Settings, folder: Path
) -> Speculation | None:
    """What is written where is known by the markers of the tokenizer in `folder`."""
    if drafting is None:
        return None
    return Speculation(
        drafting.depth,
        settings.spec_threshold,
        settings.spec_max_prompt,
        adapts=settings.spec_k == 0,
        sections=section_tokens(folder),
    )


def drafting_notes(
    config: ModelConfig, settings: Settings, drafting: Drafting | None
) -> Iterator[str]:
    """What there is to know of it beside the settings."""
    trained = config.draft.block_size
    if drafting is None:
        return
    if settings.spec_k:
        count = f"{drafting.depth} tokens are guessed at once"
    else:
        count = f"up to {drafting.depth} tokens are guessed at once, as many as pay in each section"
    yield f"{count}; answers with penalties go without"
    if drafting.depth > trained:
        yield (
            f"spec_k {drafting.depth} is beyond the {trained} tokens that the draft was trained "
            "for: the further guesses may rarely be right"
        )
