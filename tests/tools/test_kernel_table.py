"""Every matrix of both models that made rows meet, and whether a kernel multiplies it."""

from pathlib import Path

import pytest

from tools.kernel_table import MODELS, lines, table

NOTE = Path(__file__).parents[2] / "docs" / "notes" / "kernels.md"


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("model", MODELS)
def test_all_but_the_confidence_of_a_draft_is_taken(model: str, arch: str) -> None:
    found = {line.matrix: line.found for line in lines(MODELS[model], arch)}
    assert [matrix for matrix, why in found.items() if why != "yes"] == ["`draft.confidence`"]
    assert len(found) > 25


def test_the_table_of_the_note_is_that() -> None:
    assert "\n".join(table("sm_90")) in NOTE.read_text(encoding="utf-8")
