"""Bounded replay: of a prompt only the last window runs through V4.1's decoder. Approximate, and
off unless asked for. Knows no scheduler and no tensor.

Layers up to the last that makes entries are V4.1's encoder. The decoder behind them remembers
nothing but window rows, so of given tokens only those that a later token sees must run there. But a
window row of its layer n hangs on n windows before it: with bounded replay the rows of the decoder
see no window row before the first that ran. Prompts of up to a window are exact.
"""

from collections.abc import Iterator, Sequence

import msgspec

from relight.base.config import ModelConfig
from relight.base.errors import BadSetting
from relight.base.settings import Settings
from relight.engine.plan import Rows

NAMES = {"exact": "exact", "bounded": "bounded (approximate)"}
"""By the setting: as it stands in the identity of what computed a state, and in all tables."""


def replay_rows(config: ModelConfig, settings: Settings) -> int:
    """Of the given tokens in a row, how many run through all layers; 0: all of them. Raises
    `BadSetting` for a model without a decoder."""
    if settings.replay == "exact":
        return 0
    if config.candidates is None:
        raise BadSetting(
            f"replay is {settings.replay} and the model is a {config.generation.upper()}, all of "
            "whose layers remember more than a window; set replay to exact, or choose a V4.1",
            param="replay",
        )
    return config.window


def replay_notes(config: ModelConfig, settings: Settings) -> Iterator[str]:
    if settings.replay == "bounded" and config.candidates is not None:
        first, last = config.candidates.source + 1, config.num_layers - 1
        yield (
            f"replay bounded is approximate: of a prompt only the last {config.window} tokens run "
            f"through layers {first} to {last}, so texts behind longer prompts are not the model's "
            "own; `relight audit` tells how many differ (replay exact: none)"
        )


def part(given: Sequence[Rows]) -> tuple[Sequence[Rows], Sequence[Rows]]:
    """Rows that run through the encoder alone, and those behind them that run through it all."""
    if not any(rows.whole_from for rows in given):
        return (), given
    heads, whole = [], []
    for rows in given:
        cut = min(max(rows.whole_from - rows.start, 0), len(rows.tokens))
        if cut:
            heads.append(Rows(rows.slot, rows.start, rows.tokens[:cut]))
        if cut < len(rows.tokens):
            whole.append(
                msgspec.structs.replace(rows, start=rows.start + cut, tokens=rows.tokens[cut:])
            )
        else:
            assert not rows.sample, "a draw needs the logits of a row that ran through all layers"
    return heads, whole
