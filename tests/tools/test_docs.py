"""Generated documents name everything, and a stale one is found."""

from pathlib import Path

import pytest

from relight.base.metrics import METRICS
from relight.base.settings import KNOBS
from tools.docs import commands, main, metrics, settings


def test_every_setting_and_metric_is_documented() -> None:
    text = "\n".join([*settings(), *metrics()])
    for knob in KNOBS.values():
        assert f"`{knob.flag}`" in text
        assert f"`{knob.variable}`" in text
    for metric in METRICS:
        assert metric.name in text


def test_every_command_says_in_one_line_what_it_does_and_shows_an_example() -> None:
    sections = "\n".join(commands()).split("\n## ")[1:]
    assert sections
    for section in sections:
        name, _, summary, _, example, *_ = section.splitlines()
        assert summary.endswith("."), name
        assert example.startswith(f"Example: `{name}"), name


def test_a_stale_document_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("<!-- rooms: here -->\n<!-- end of rooms -->\n")
    assert main(check=True, root=tmp_path) == 1
    assert main(check=False, root=tmp_path) == 0
    assert main(check=True, root=tmp_path) == 0
    capsys.readouterr()
    (tmp_path / "docs" / "settings.md").write_text("old")
    assert main(check=True, root=tmp_path) == 1
    assert capsys.readouterr().out == "docs/settings.md does not match the code; run make docs\n"
