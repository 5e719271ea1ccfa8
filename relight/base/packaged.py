"""Finds the folder of a model by what a user calls it: the name of one inside the package, else a
path. Knows no model, and of the files inside the package only their hashes.
"""

import hashlib
from pathlib import Path

import msgspec

from relight.base.errors import BadCheckpoint
from relight.base.files import read_regular
from relight.base.headers import fault

EMBER = "ember"
EMBER_V4 = "ember-v4"
DEFAULT_MODEL = EMBER
"""What is served, asked and measured where none is named."""

MANIFEST = "hashes.json"
PACKAGED: dict[str, tuple[Path, str]] = {
    EMBER: (
        Path(__file__).parents[1] / "ember" / "v41",
        "d742a0116af14bade847370cf3f010f6a9470f6b44e70475106d32899bb8cbcd",
    ),
    EMBER_V4: (
        Path(__file__).parents[1] / "ember" / "v4",
        "d0788c2e3aed657955ec96d534ed337c6d847432237c61846723b107fba100e2",
    ),
}
"""Name to folder and SHA-256 of its manifest, which has that of each other file. So data of another
release is told from this one's."""

NAMES = " or ".join(PACKAGED)
"""As help texts say it."""

REMEDY = "install relight again, or give the folder of another model"
SHOWN_DIGITS = 16


def model_folder(model: str) -> Path:
    """A folder named as a model inside the package is meant by `./NAME`.

    Raises BadCheckpoint for a file inside the package that is missing or not the one that was
    packed: 23 MB are hashed in about 15 ms. What lies elsewhere is not looked at.
    """
    if model not in PACKAGED:
        return Path(model)
    folder, digest = PACKAGED[model]
    check_files(folder, digest)
    return folder


def check_files(folder: Path, digest: str) -> None:
    """`digest` is the manifest's SHA-256. Raises BadCheckpoint."""
    _check(folder / MANIFEST, digest)
    hashes = msgspec.json.decode(read_regular(folder / MANIFEST), type=dict[str, str])
    for name, wanted in hashes.items():
        _check(folder / name, wanted)


def _check(file: Path, wanted: str) -> None:
    try:
        found = hashlib.sha256(read_regular(file)).hexdigest()
    except OSError as error:
        raise _damaged(file, f"cannot be read ({error.strerror})", wanted) from error
    if found != wanted:
        raise _damaged(file, f"is damaged: its SHA-256 is {found[:SHOWN_DIGITS]}…", wanted)


def _damaged(file: Path, found: str, wanted: str) -> BadCheckpoint:
    return fault(file, found, f"{wanted[:SHOWN_DIGITS]}…, as it was packed", REMEDY)
