"""Decides how threads of an op wait for each other. Acts before torch is loaded; knows no torch."""

import os


def let_threads_sleep() -> None:
    """Threads that wait for each other sleep, unless the user's environment says otherwise.

    OpenMP's spin. Beside any other busy process, be it only the HTTP server, a spinning thread
    holds the core that the last one needs: on 2 cores with 2 busy neighbours a token of the small
    model took 1.3 s, and 0.1 s with threads that sleep. The library reads the variable once, when
    torch loads it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
