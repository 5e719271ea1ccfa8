"""The rules that no ready-made linter knows. Prints each breach as file:line and exits with 1.

1. Only the kernels, the graphs and the collectives name `torch.cuda`: all else goes through
   `torch.accelerator`, so that any torch device works.
2. The first version in the changelog is the package's.

It also tells, and that is no breach, when results in docs/gpu are about older sources.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.sources import sources_hash

ROOT = Path(__file__).resolve().parent.parent
MAY_NAME_CUDA = ("relight/kernels/", "relight/engine/graphs", "relight/dist/")


def names_of_torch_cuda(source: str) -> Iterator[int]:
    """Line numbers where code, not comments or texts, names the module `torch.cuda`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="cuda"):
                yield node.lineno
            case ast.Import(names=names):
                if any(re.match(r"torch\.cuda\b", alias.name) for alias in names):
                    yield node.lineno
            case ast.ImportFrom(module=str(module), names=names):
                if re.match(r"torch\.cuda\b", module) or (
                    module == "torch" and any(alias.name == "cuda" for alias in names)
                ):
                    yield node.lineno


def torch_cuda(root: Path) -> Iterator[str]:
    for path in sorted(
        [*root.glob("*.py"), *root.glob("relight/**/*.py"), *root.glob("tests/**/*.py")]
    ):
        name = path.relative_to(root).as_posix()
        if not name.startswith(MAY_NAME_CUDA):
            for line in names_of_torch_cuda(path.read_text(encoding="utf-8")):
                yield f"{name}:{line}: names torch.cuda; use torch.accelerator"


def changelog(root: Path) -> Iterator[str]:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    logged = re.search(r"^## (\S+)", text, re.MULTILINE)
    source = (root / "relight" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    assert version is not None
    if logged is None or logged[1] != version[1]:
        found = logged[1] if logged else "none"
        yield f"CHANGELOG.md:1: first version is {found}; relight/__init__.py says {version[1]}"


def old_results(root: Path, sources: str) -> Iterator[str]:
    for file in sorted(root.glob("docs/gpu/*.json")):
        about = json.loads(file.read_text(encoding="utf-8")).get("sources")
        if about != sources:
            name = file.relative_to(root).as_posix()
            yield f"note: {name} is about sources {about}; they are {sources} now"


def main(root: Path = ROOT) -> int:
    for note in old_results(root, sources_hash()):
        print(note)
    breaches = [*torch_cuda(root), *changelog(root)]
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
