"""Which layout of prompts a checkpoint is asked in. Knows no prompt."""

import logging
from pathlib import Path

from relight.base.config import read_config
from relight.base.settings import Settings
from relight.text.dialect import Encoding
from relight.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def encoding_of(settings: Settings, folder: Path, tokenizer: Tokenizer) -> Encoding:
    """That of the model unless it is set. Raises `BadConfig`."""
    if settings.encoding != "auto":
        return settings.encoding
    if read_config(folder).config.generation != "v4.1":
        return "v4"
    if tokenizer.special.system is None:  # as with a model that was made for a test
        log.warning("the vocabulary lacks markers of V4.1, so prompts are laid out as V4's")
        return "v4"
    return "v4.1"
