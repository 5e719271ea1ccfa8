import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from relight.kernels.cubins import Cubin, CubinCache, key_of
from relight.kernels.ptxas import Usage

CUBIN = Cubin(b"code" * 1000, Usage(registers=128, shared_bytes=4608))
KEY = key_of("source", "sm_90")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, told: list[str]) -> CubinCache:
    return CubinCache(tmp_path / "kernels", told.append)


def test_what_was_put_is_found_and_nothing_else(cache: CubinCache, told: list[str]) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, CUBIN)
    assert cache.get(KEY) == CUBIN
    assert cache.get(key_of("source", "sm_80")) is None
    assert told == []


def test_a_key_knows_where_its_parts_end() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("abc", "")}) == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "head"])
def test_a_damaged_file_is_told_and_replaced(
    tmp_path: Path, cache: CubinCache, told: list[str], damage: str
) -> None:
    cache.put(KEY, CUBIN)
    (path,) = (tmp_path / "kernels").iterdir()
    whole = path.read_bytes()
    broken = {"cut": whole[:-9], "changed": whole[:-1] + b"!", "empty": b"", "head": b"{" + whole}
    path.write_bytes(broken[damage])
    assert cache.get(KEY) is None
    assert len(told) == 1
    assert str(path) in told[0]
    assert "damaged" in told[0]
    cache.put(KEY, CUBIN)
    assert cache.get(KEY) == CUBIN


@pytest.mark.parametrize("reason", ["Read-only file system", "No space left on device"])
def test_a_folder_that_takes_nothing_is_told_once_and_left_clean(
    tmp_path: Path, cache: CubinCache, told: list[str], monkeypatch, reason: str
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, reason, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    for name in "ab":
        cache.put(key_of(name), CUBIN)
    assert len(told) == 1
    assert reason in told[0]
    assert "--kernel-cache" in told[0]
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_folder_whose_parent_is_a_file_is_told(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = CubinCache(tmp_path / "file" / "kernels", told.append)
    cache.put(KEY, CUBIN)
    assert cache.get(KEY) is None
    assert any("cannot be kept" in text for text in told)


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path, told: list[str]) -> None:
    CubinCache(tmp_path, told.append).put(KEY, CUBIN)
    tmp_path.chmod(0o777)
    cache = CubinCache(tmp_path, told.append)
    assert cache.get(KEY) is None
    assert len(told) == 1
    assert "chmod go-w" in told[0]
    tmp_path.chmod(0o755)
    assert CubinCache(tmp_path, told.append).get(KEY) == CUBIN


def put_and_get(folder: Path, number: int) -> bool:
    cache = CubinCache(folder, pytest.fail)
    found = []
    for turn in range(40):
        key = key_of(str((number + turn) % 5))
        cache.put(key, CUBIN)
        found.append(cache.get(key))
    return all(one == CUBIN for one in found)


def test_processes_that_write_the_same_files_read_whole_ones(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as pool:
        assert all(pool.map(put_and_get, [folder] * 4, range(4)))
    assert len(os.listdir(folder)) == 5
