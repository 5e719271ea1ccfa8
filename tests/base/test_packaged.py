"""What a model's name stands for, and that damaged package data is refused by hash."""

import hashlib
import json
from pathlib import Path

import pytest

from relight.base.errors import BadCheckpoint
from relight.base.packaged import (
    DEFAULT_MODEL,
    MANIFEST,
    NAMES,
    PACKAGED,
    check_files,
    model_folder,
)
from relight.base.settings import load


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, str]:
    """A folder as it is packed, and the digest of its manifest."""
    files = {"config.json": b"{}", "model-1.safetensors": bytes(range(256))}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = json.dumps(hashes).encode()
    (tmp_path / MANIFEST).write_bytes(manifest)
    return tmp_path, hashlib.sha256(manifest).hexdigest()


def test_what_was_packed_is_accepted(packed: tuple[Path, str]) -> None:
    check_files(*packed)


@pytest.mark.parametrize("name", ["config.json", "model-1.safetensors", MANIFEST])
def test_one_changed_bit_is_refused_with_file_hashes_and_remedy(
    packed: tuple[Path, str], name: str
) -> None:
    folder, digest = packed
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(BadCheckpoint) as refused:
        check_files(folder, digest)
    message = refused.value.message
    assert str(folder / name) in message
    assert hashlib.sha256(data).hexdigest()[:16] in message
    assert message.count("…") == 2  # found and wanted
    assert "install relight again" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["config.json", "model-1.safetensors", MANIFEST])
def test_a_missing_file_is_refused_by_name(packed: tuple[Path, str], name: str) -> None:
    folder, digest = packed
    (folder / name).unlink()
    with pytest.raises(BadCheckpoint, match=f"{name}: cannot be read .*No such file"):
        check_files(folder, digest)


def test_data_of_another_release_is_refused_though_it_agrees_with_itself(
    packed: tuple[Path, str],
) -> None:
    folder, _ = packed
    with pytest.raises(BadCheckpoint, match=MANIFEST):
        check_files(folder, 64 * "1")


@pytest.mark.parametrize("name", PACKAGED)
def test_any_other_name_is_a_path(tmp_path: Path, name: str) -> None:
    for model in (str(tmp_path), f"./{name}", f"{name}/", name.upper()):
        assert model_folder(model) == Path(model)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_name_is_checked_wherever_it_is_asked_for(
    packed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, digest = packed
    monkeypatch.setitem(PACKAGED, name, (folder, digest))
    assert model_folder(name) == folder
    (folder / "config.json").write_bytes(b"{ }")
    with pytest.raises(BadCheckpoint):
        model_folder(name)


@pytest.mark.parametrize("name", PACKAGED)
def test_the_package_has_the_model_of_this_release_and_no_file_besides(name: str) -> None:
    folder = model_folder(name)
    listed = json.loads((folder / MANIFEST).read_bytes())
    assert {file.name for file in folder.iterdir()} == {*listed, MANIFEST}


def test_without_a_model_a_packaged_one_is_meant() -> None:
    assert load({}, {}).settings.model == DEFAULT_MODEL
    assert DEFAULT_MODEL in PACKAGED


def test_the_help_names_all_models_inside_the_package() -> None:
    assert NAMES.split(" or ") == list(PACKAGED)
