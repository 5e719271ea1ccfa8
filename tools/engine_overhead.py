"""Prints what the engine costs per step without a model: scheduler, plan and commit, and what a
worker adds by encoding the deltas; with steps in turn, and with steps that overlap, where a thread
takes over and back. Run: python tools/engine_overhead.py"""

import statistics
import time

import msgspec

from relight.base.types import Request, SamplingParams
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.loop import Loop
from relight.engine.plan import StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.steps import InTurn, Overlapped

STEPS = 2000
PROMPT_TOKENS = 1000


class NoModel:
    """Draws one token, always the same."""

    def launch(self, plan: StepPlan) -> list[int]:
        return [7] * len(plan.draws)

    def read(self, launched: list[int]) -> list[int]:
        return launched


def make_loop(num_sequences: int, steps: type[InTurn | Overlapped]) -> Loop:
    pages = 1 + num_sequences * 32
    index = PrefixIndex(BlockPool(pages), RecordPool(4 * num_sequences), "no model")
    limits = Limits(
        num_slots=num_sequences,
        max_context=4096,
        max_step_tokens=8192,
        admit_output=4096,
        max_queue=1000,
        vocab_size=129_280,
    )
    loop = Loop(Scheduler(limits, index), steps(NoModel()))
    for number in range(num_sequences):
        prompt = tuple((number * 31 + i) % 1000 for i in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=3000, stop_token_ids=(1,), seed=number)
        loop.add(Request(id=f"request-{number}", prompt=prompt, sampling=sampling))
    return loop


def measure(
    num_sequences: int, steps: type[InTurn | Overlapped]
) -> tuple[list[float], list[float]]:
    """µs of each step while all sequences generate: the loop alone, and with encoding."""
    loop = make_loop(num_sequences, steps)
    while loop.stats().generated_tokens < num_sequences:
        loop.step()
    encoder = msgspec.msgpack.Encoder()
    alone, encoded = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        answers = loop.turn(())
        middle = time.perf_counter()
        for answer in answers:
            encoder.encode(answer)
        end = time.perf_counter()
        alone.append((middle - start) * 1e6)
        encoded.append((end - start) * 1e6)
    return alone, encoded


def show(values: list[float]) -> str:
    low, *_, high = statistics.quantiles(values, n=20)
    return f"{statistics.median(values):7.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    print(f"µs per step, median and 5 % to 95 %, over {STEPS} steps without a model")
    print(f"{'sequences':>9}  {'steps':>10}  {'loop':>26}  {'loop and encoding':>26}")
    for num_sequences in (1, 8, 32):
        for steps in (InTurn, Overlapped):
            alone, encoded = measure(num_sequences, steps)
            name = "in turn" if steps is InTurn else "overlapped"
            print(f"{num_sequences:9}  {name:>10}  {show(alone):>26}  {show(encoded):>26}")


if __name__ == "__main__":
    main()
