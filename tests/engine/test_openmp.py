"""How threads wait, by what OpenMP itself reports, and how many an engine takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relight.engine.openmp import choose_threads

LOAD_TORCH = "from relight.engine.worker import _assemble; _assemble()"


def omp_settings(**variables: str) -> str:
    """What OpenMP has read from the environment once a worker has loaded torch."""
    if not torch.backends.openmp.is_available():
        pytest.skip("torch has no OpenMP here")
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_TORCH],
        env=environment | {"OMP_DISPLAY_ENV": "true"} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_threads_of_the_engine_sleep_while_they_wait() -> None:
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in omp_settings()


def test_the_user_has_the_last_word_on_how_threads_wait() -> None:
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in omp_settings(OMP_WAIT_POLICY="active")


@pytest.mark.parametrize(
    ("cpu_max", "setting", "threads"),
    [
        ("max 100000", 0, 64),
        ("200000 100000", 0, 2),
        ("150000 100000", 0, 2),
        ("5000 100000", 0, 1),
        ("9900000 100000", 0, 64),
        ("200000 100000", 5, 5),
        ("", 0, 64),
    ],
)
def test_threads_stay_within_a_containers_quota_unless_they_are_set(
    tmp_path: Path, cpu_max: str, setting: int, threads: int
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(cpu_max)
    assert choose_threads(setting, 64, file) == threads


def test_without_a_control_group_the_default_stays(tmp_path: Path) -> None:
    assert choose_threads(0, 64, tmp_path / "absent") == 64
