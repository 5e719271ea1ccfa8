"""How threads wait in an engine's process, by what OpenMP itself reports."""

import os
import subprocess
import sys

import pytest

LOAD_TORCH = "from relight.engine.worker import _assemble; _assemble()"


def omp_settings(**variables: str) -> str:
    """What OpenMP has read from the environment once a worker has loaded torch."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_TORCH],
        env=environment | {"OMP_DISPLAY_ENV": "true"} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("torch has no OpenMP here")
    return done.stderr


def test_threads_of_the_engine_sleep_while_they_wait() -> None:
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in omp_settings()


def test_the_user_has_the_last_word_on_how_threads_wait() -> None:
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in omp_settings(OMP_WAIT_POLICY="active")
