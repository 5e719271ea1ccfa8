"""The layout of prompts is the model's own unless it is set."""

import json
import shutil
from pathlib import Path

import pytest

from relight.base.config import read_config
from relight.base.errors import BadConfig
from relight.base.packaged import PACKAGED, model_folder
from relight.base.settings import Settings
from relight.session.encoding import encoding_of
from relight.text.tokenizer import SPELLING, Tokenizer

CONFIGS = Path(__file__).parent.parent / "base" / "configs"
TINY = Path(__file__).parent.parent / "golden" / "text" / "tokenizer.json"


def checkpoint(folder: Path, config: str, *, marked: bool = True) -> tuple[Path, Tokenizer]:
    shutil.copy(CONFIGS / f"{config}.json", folder / "config.json")
    data = json.loads(TINY.read_text(encoding="utf-8"))
    if not marked:
        marker = SPELLING["system"]
        data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != marker]
        del data["model"]["vocab"][marker]
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return folder, Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("config", "encoding"),
    [("v4_flash", "v4"), ("v4_flash_0731", "v4"), ("v4_pro", "v4"), ("v41_flash", "v4.1")],
)
def test_a_model_is_asked_in_its_own_layout(tmp_path: Path, config: str, encoding: str) -> None:
    assert encoding_of(Settings(), *checkpoint(tmp_path, config)) == encoding


@pytest.mark.parametrize("name", PACKAGED)
def test_a_model_of_the_package_is_asked_as_it_was_trained(name: str) -> None:
    """Its rows were laid out by the name of its generation."""
    folder = model_folder(name)
    encoding = encoding_of(Settings(), folder, Tokenizer.load(folder))
    assert encoding == read_config(folder).config.generation


@pytest.mark.parametrize("encoding", ["v4", "v4-first", "v4.1"])
def test_what_is_set_holds_whatever_the_model_is(tmp_path: Path, encoding: str) -> None:
    folder, tokenizer = checkpoint(tmp_path, "v4_flash")
    (folder / "config.json").unlink()
    assert encoding_of(Settings(encoding=encoding), folder, tokenizer) == encoding  # type: ignore[arg-type]


def test_a_vocabulary_without_the_markers_is_asked_as_v4_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = checkpoint(tmp_path, "v41_flash", marked=False)
    assert encoding_of(Settings(), *found) == "v4"
    assert "lacks markers of V4.1" in caplog.text


def test_a_folder_without_a_configuration_is_told(tmp_path: Path) -> None:
    folder, tokenizer = checkpoint(tmp_path, "v4_flash")
    (folder / "config.json").unlink()
    with pytest.raises(BadConfig, match=r"config\.json"):
        encoding_of(Settings(), folder, tokenizer)
