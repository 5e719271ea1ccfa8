"""Every matrix of both models that made rows meet, and whether a kernel multiplies it."""

from pathlib import Path

import pytest

from tools import step_kernels
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


@pytest.mark.parametrize(
    ("model", "fp8", "dense"),
    [
        ("V4", step_kernels.SHAPES, step_kernels.DENSE),
        ("V4.1", step_kernels.SHAPES_V41, step_kernels.DENSE_V41),
    ],
)
def test_all_that_made_rows_of_a_backbone_meet_is_timed_by_name(model: str, fp8, dense) -> None:
    timed = {(f"[{n}, {k}]", f"FP8 by {block}") for _, n, k, block in fp8}
    timed |= {(f"[{n}, {k}]", "bfloat16") for _, n, k, _ in dense}
    apart = ("`draft.", "`attention.wo_a", "`ffn.experts")  # drafts; two with cases of their own
    met = [one for one in lines(MODELS[model], "sm_90") if not one.matrix.startswith(apart)]
    assert {(one.shape, one.format) for one in met} <= timed
    assert len({name for name, *_ in (*fp8, *dense)}) == len(fp8) + len(dense)
