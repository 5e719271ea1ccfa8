"""An engine's process is not of the group that a terminal's Ctrl-C is sent to."""

import asyncio
import os
import sys

from relight.base.settings import Settings
from relight.engine.client import ProcessClient

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


def test_ctrl_c_is_not_sent_to_an_engine_even_before_it_can_ignore_it():
    async def group():
        client = ProcessClient(Settings(model="none"), command=SLEEPER)
        await client.start()
        try:
            return os.getpgid(client._process.pid)
        finally:
            await client.aclose()

    assert asyncio.run(group()) != os.getpgrp()
