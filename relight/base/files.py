"""Opens files of a checkpoint folder. Knows no format."""

import errno
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Raises OSError for what is no file, too: reading a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path.open("rb")


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()
