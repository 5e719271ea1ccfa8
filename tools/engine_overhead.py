"""Prints what the engine costs per step, with steps in turn and with steps that overlap: first
without a model, scheduler, plan and commit, and what a worker adds by encoding the deltas; then
beside a model that takes a millisecond, for how long that stands still between two steps.
Run: python -m tools.engine_overhead"""

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from relight.base.types import Request, SamplingParams
from relight.cache.blocks import BlockPool
from relight.cache.prefix import PrefixIndex, RecordPool
from relight.engine.admission import Limits
from relight.engine.loop import Loop
from relight.engine.plan import StepPlan
from relight.engine.scheduler import Scheduler
from relight.engine.steps import InTurn, Overlapped, Runner

STEPS = 2000
PROMPT_TOKENS = 1000
MODEL_S = 0.001

Form = type[InTurn] | type[Overlapped]


class NoModel:
    """Draws one token, always the same."""

    def launch(self, plan: StepPlan) -> list[int]:
        return [7] * len(plan.draws)

    def read(self, launched: list[int]) -> list[int]:
        return launched


class Processor(NoModel):
    """Takes its time where it is launched. `idle_s`: from the end of each step to the next one's
    begin."""

    def __init__(self) -> None:
        self.idle_s: list[float] = []
        self._ended_s = time.perf_counter()

    def launch(self, plan: StepPlan) -> list[int]:
        self.idle_s.append(time.perf_counter() - self._ended_s)
        time.sleep(MODEL_S)
        self._ended_s = time.perf_counter()
        return super().launch(plan)


class Device:
    """Gets steps ahead of time, and takes its time for one after the other."""

    def __init__(self) -> None:
        self.idle_s: list[float] = []
        self._ends_s = time.perf_counter()

    def launch(self, plan: StepPlan) -> tuple[list[int], float]:
        begins_s = max(time.perf_counter(), self._ends_s)
        self.idle_s.append(begins_s - self._ends_s)
        self._ends_s = begins_s + MODEL_S
        return [7] * len(plan.draws), self._ends_s

    def read(self, launched: tuple[list[int], float]) -> list[int]:
        tokens, ends_s = launched
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return tokens


def make_loop(num_sequences: int, form: Form, runner: Runner) -> Loop:
    """All of its sequences generate."""
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
    loop = Loop(Scheduler(limits, index), form(runner))
    for number in range(num_sequences):
        prompt = tuple((number * 31 + i) % 1000 for i in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=3000, stop_token_ids=(1,), seed=number)
        loop.add(Request(id=f"request-{number}", prompt=prompt, sampling=sampling))
    while loop.stats().generated_tokens < num_sequences:
        loop.step()
    return loop


def run(loop: Loop) -> tuple[list[float], list[float]]:
    """Seconds of each step: the loop alone, and with encoding."""
    encoder = msgspec.msgpack.Encoder()
    alone, encoded = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        answers = loop.turn(())
        middle = time.perf_counter()
        for answer in answers:
            encoder.encode(answer)
        end = time.perf_counter()
        alone.append(middle - start)
        encoded.append(end - start)
    return alone, encoded


def without_model(num_sequences: int, form: Form) -> Sequence[list[float]]:
    return run(make_loop(num_sequences, form, NoModel()))


def beside_model(num_sequences: int, form: Form) -> Sequence[list[float]]:
    """Of a step's time what is not the model's."""
    idle = []
    for runner in (Device(), Processor()):
        loop = make_loop(num_sequences, form, runner)
        runner.idle_s.clear()
        run(loop)
        idle.append(runner.idle_s)
    return idle


def show(seconds: list[float]) -> str:
    values = [value * 1e6 for value in seconds]
    low, *_, high = statistics.quantiles(values, n=20)
    return f"{statistics.median(values):7.1f} ({low:.1f} to {high:.1f})"


def table(names: Sequence[str], measure: Callable[[int, Form], Sequence[list[float]]]) -> None:
    print(f"{'sequences':>9}  {'steps':>10}" + "".join(f"  {name:>26}" for name in names))
    for num_sequences in (1, 8, 32):
        for form, steps in ((InTurn, "in turn"), (Overlapped, "overlapped")):
            columns = [f"  {show(column):>26}" for column in measure(num_sequences, form)]
            print(f"{num_sequences:9}  {steps:>10}{''.join(columns)}")


def main() -> None:
    print(f"µs per step, median and 5 % to 95 %, over {STEPS} steps without a model")
    table(("loop", "loop and encoding"), without_model)
    print(f"µs per step for which a model of {MODEL_S * 1000:g} ms stands still")
    table(("on a device", "in the processor"), beside_model)


if __name__ == "__main__":
    main()
