"""The bytes of streams, as they were when they were last read by a person."""

import pytest

from tests.serve.golden import CASES, FOLDER, file_of, stream


@pytest.mark.parametrize(("path", "name"), CASES)
def test_a_stream_has_the_bytes_that_are_written_down(path: str, name: str) -> None:
    assert stream(path, name) == file_of(path, name).read_bytes()


def test_every_file_is_a_stream_that_is_tested() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(*case).name for case in CASES}
