"""Two minutes of load on a tiny model; `tools/soak.py` runs for as long as you like."""

import asyncio
import shutil
from pathlib import Path

import pytest

from relight.base.errors import RelightError
from tools.soak import Report, server, soak, vocab_size

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_a_storm_of_clients_leaves_nothing_behind(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / "v4" / "checkpoint", model)
    shutil.copy(GOLDEN / "text" / "tokenizer.json", model)
    with server(model) as (url, process):
        report = asyncio.run(soak(url, process.pid, seconds=120, clients=32, vocab=320, seed=0))
    report.exit_code = process.returncode
    assert not list(report.mistakes()), str(report)
    assert report.outcomes["complete"]
    assert report.outcomes["closed"]


def test_a_model_is_a_folder_or_a_name_as_in_all_commands(tmp_path: Path) -> None:
    assert vocab_size("ember-v4") == 4096
    assert vocab_size(str(GOLDEN / "v4" / "checkpoint")) == 320
    with pytest.raises(RelightError, match="give the folder that holds"):
        vocab_size(str(tmp_path))


def test_what_does_not_add_up_is_told() -> None:
    report = Report(memory=[10**9] * 10 + [2 * 10**9] * 10, gauges={"waiting": 1.0})
    report.outcomes.update(complete=3, failed=1, refused=5)
    report.counted.update(length=3)
    last = str(report).splitlines()[-1]
    assert last.startswith(
        "soak FAILED (4 mistakes): 4 streams = 3 complete + 0 closed + 0 late + "
    )
    told = " ".join(report.mistakes())
    for words in ("4 streams began", "1 requests failed", "waiting is 1", "memory grew"):
        assert words in told


def test_a_sound_run_is_one_line_with_all_figures() -> None:
    report = Report(memory=[2**30] * 20, gauges={"running": 0.0, "pages held": 0.0}, exit_code=0)
    report.outcomes.update(complete=3, closed=2, late=1, refused=5)
    report.counted.update(length=3, abort=3)
    report.num_tokens, report.seconds = 40, 120.4
    assert report.verdict() == (
        "soak passed: 6 streams = 3 complete + 2 closed + 1 late + 0 failed, 5 refused, 40 events; "
        "server counted 6; left 0 running, 0 pages held; memory 1024 then 1024 MiB; exit code 0; "
        "120 s"
    )
