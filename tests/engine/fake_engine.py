"""An engine process without a model. What goes wrong in it is chosen by the model's name."""

import os
import signal
import sys
import time

from relight.base.errors import CannotFit, Unavailable
from relight.base.types import EngineInfo
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.loop import Loop
from relight.engine.scheduler import Scheduler
from relight.engine.steps import Overlapped
from relight.engine.worker import main


class Counting:
    """Draws the position of each token, a millisecond a step."""

    def __init__(self, fault):
        self.fault = fault

    def launch(self, plan):
        time.sleep(0.001)
        if plan.step == 5:
            if self.fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hangs":
                time.sleep(1000)
            if self.fault == "out of memory":
                raise MemoryError("no memory for 12 bytes")
            if self.fault == "fails":
                raise RuntimeError("the kernel failed")
            if self.fault == "lost":
                raise Unavailable("the device is lost")
        return [draw.position for draw in plan.draws]

    def read(self, launched):
        return launched


def assemble(settings, progress):
    for done in range(3):
        progress(done + 1, 3)
    if settings.model == "too big":
        raise CannotFit("the model does not fit", param="cache_bytes")
    if settings.model == "broken":
        raise ValueError("no such thing")
    if settings.model == "slow to load":
        time.sleep(1000)
    index = PrefixIndex(BlockPool(65), RecordPool(4), "fake")
    limits = Limits(
        num_slots=4,
        max_context=4096,
        max_step_tokens=512,
        admit_output=512,
        max_queue=8,
        vocab_size=100_000,
    )
    info = EngineInfo(
        model=settings.model, max_context=4096, num_slots=4, num_pages=64, operator="fake"
    )
    return Loop(Scheduler(limits, index), Overlapped(Counting(settings.model))), info


if __name__ == "__main__":
    sys.exit(main(assemble))
