import pytest

from relight.base.types import EngineInfo
from relight.cli import generate, show
from relight.text.parse import Content, Reasoning


@pytest.mark.parametrize(
    ("kernels", "shown"),
    [
        ("attend:reference norm:reference", "reference"),
        ("attend:cpu index:reference norm:cpu", "cpu, but index: reference"),
    ],
)
def test_kernels_are_named_once_and_what_differs(
    kernels: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = EngineInfo(
        model="m",
        max_context=1024,
        num_slots=1,
        num_pages=8,
        operator=f"weights 12ab; kernels {kernels}; draft none",
        notes=("of cache_bytes 9 only 8 are used",),
    )
    show.engine(info)
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["kernels", shown] in [[cell.strip() for cell in row] for row in rows]
    assert ["note:", "of cache_bytes 9 only 8 are used"] in rows


def test_an_answer_begins_on_a_line_of_its_own_behind_thoughts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    generate._print(iter([Reasoning("one, "), Reasoning("two"), Content("th"), Content("ree")]))
    assert capfd.readouterr() == ("three", "one, two\n")
