"""Properties of the project's own lint: it finds what is planted, and nothing else."""

from pathlib import Path

import pytest

from tools.lint import changelog, main, names_of_torch_cuda, old_results, torch_cuda


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.synchronize()",
        "x = torch.cuda",
        "import torch.cuda",
        "import torch.cuda.nvtx as nvtx",
        "from torch import cuda",
        "from torch.cuda import Stream",
    ],
)
def test_every_way_to_name_torch_cuda_is_found(line: str) -> None:
    assert list(names_of_torch_cuda(f"import torch\n\n{line}\n")) == [3]


@pytest.mark.parametrize(
    "line",
    ["# torch.cuda", "'torch.cuda'", "torch.accelerator", "torch.version.cuda", "my.torch.cuda"],
)
def test_nothing_else_is_taken_for_it(line: str) -> None:
    assert list(names_of_torch_cuda(line)) == []


def test_a_planted_name_is_refused_outside_the_rooms_that_may_have_it(tmp_path: Path) -> None:
    for name in ["model/layers.py", "kernels/norm/cuda.py", "engine/graphs.py", "dist/group.py"]:
        file = tmp_path / "relight" / name
        file.parent.mkdir(parents=True)
        file.write_text("import torch\n\ntorch.cuda.synchronize()\n")
    assert list(torch_cuda(tmp_path)) == [
        "relight/model/layers.py:3: names torch.cuda; use torch.accelerator"
    ]


def test_a_changelog_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "relight").mkdir()
    (tmp_path / "relight" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n")
    assert list(changelog(tmp_path)) == [
        "CHANGELOG.md:1: first version is 0.1.0; relight/__init__.py says 0.2.0"
    ]


def test_results_about_older_sources_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "gpu"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"sources": "old"}')
    (folder / "b.json").write_text('{"sources": "new"}')
    assert list(old_results(tmp_path, "new")) == [
        "note: docs/gpu/a.json is about sources old; they are new now"
    ]


def test_the_project_itself_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out
