"""Every matrix of both models that made rows meet, and whether a kernel multiplies it."""

from pathlib import Path

import pytest

from tools.kernel_table import MODELS, lines, table

NOTE = Path(__file__).parents[2] / "docs" / "notes" / "kernels.md"


@pytest.mark.parametrize("model", MODELS)
def test_all_but_the_confidence_of_a_draft_is_taken(model: str) -> None:
    found = {line.matrix: line.found for line in lines(MODELS[model], "sm_90")}
    assert [matrix for matrix, why in found.items() if why != "yes"] == ["`draft.confidence`"]
    assert len(found) > 25


@pytest.mark.parametrize("model", MODELS)
def test_volta_takes_what_is_packed_but_groups(model: str) -> None:
    for line in lines(MODELS[model], "sm_70"):
        packed = line.format.startswith("FP") and "wo_a" not in line.matrix
        assert (line.found == "yes") == packed, line


def test_the_table_of_the_note_is_that() -> None:
    assert "\n".join(table("sm_90")) in NOTE.read_text(encoding="utf-8")
