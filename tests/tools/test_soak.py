"""Two minutes of load on a tiny model; `tools/soak.py` runs for as long as you like."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tools.soak import Report, server, soak

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


def test_what_does_not_add_up_is_told() -> None:
    report = Report(memory=[10**9] * 10 + [2 * 10**9] * 10, gauges={"waiting": 1.0})
    report.outcomes.update(complete=3, failed=1, refused=5)
    report.counted.update(length=3)
    told = " ".join(report.mistakes())
    for words in ("4 streams began", "1 requests failed", "waiting is 1", "memory grew"):
        assert words in told
