"""Trains ember against the clock: batches, loss, steps, checkpoints, a log. Knows no score.

The phases follow the share of the time that has passed, so a slower machine makes fewer steps and
the same schedule: dense attention first, then the indexer's picks, V4.1 in turn with dense
attention for a while; the roundings of the checkpoint and of the cache from the middle on, while
the rate falls to zero.
"""

import json
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relight.base.config import ModelConfig
from training.finite import Watch, not_finite
from training.graphs import Replayed
from training.hints import Marks, first_of_name, sought
from training.make import make_network
from training.model import Parameters, initial
from training.network import Extras, Mode, Network
from training.optimiser import Optimiser
from training.rows import DOCUMENT, PROMPT, TAG
from training.stream import Batch, Stream

SPARSE_FROM = {"v4": 0.6, "v4.1": 0.75}
MIXED_FROM = {"v4": 0.6, "v4.1": 0.45}
"""From then on every other step is sparse. V4.1's layers that borrow picks read nothing else from
the first step on: else it is they that learn to look back, for what only they know, which no
indexer before them can foresee (of what such a layer read at keys, 30 % was among the picks, and
keys were found one time in eight)."""

NGRAMS_FROM = {"v4": 0.0, "v4.1": 0.3}
"""N-grams show what the last two tokens were; without them at first, attention learns to look
further back by itself."""

HINTED_UNTIL = {"v4": 0.0, "v4.1": 0.75}
HINT_WEIGHT = 0.1
NAMED, KNOWN, LOOKED = 255, 254, 253
"""Tags of the hints' losses in the log."""
LOGGED = {
    **TAG,
    "prompt": PROMPT,
    "document": DOCUMENT,
    "named": NAMED,
    "known": KNOWN,
    "looked": LOOKED,
}

GOING_ON_FROM = {"v4": 0.6, "v4.1": 0.3}
"""Where in the schedule a run begins that starts from the weights of another."""
ROUNDED_FROM = {"v4": 0.5, "v4.1": 0.6}
DECAY_FROM = 0.5
WARM_STEPS = 100
BIAS_RATE = 2e-3
"""How far a step at the full rate moves the router's bias towards balance (auxiliary-loss-free
routing)."""

WEIGHTS = {PROMPT: 0.06, DOCUMENT: 0.002}
"""Of the client's tokens in the loss; answers count 1, padding 0."""

CHECKPOINT_S = 60.0
LOG_S = 5.0
SAME_LOSS = 0.05
"""How far, relatively, the loss of compiled code may be from that of the code as it stands."""


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int
    step_tokens: int
    num_workers: int
    compiled: bool


@dataclass(slots=True)
class Point:
    """One line of the log. Losses are means over the time since the last line."""

    seconds: float
    step: int
    tokens_per_s: float
    waited_s: float
    loss: float
    index_loss: float
    imbalance: float
    rate: float
    slices: dict[str, float]


class Trainer:
    PARTS: tuple[str, ...] = ("all",)
    """What to compile, in the order in which it is tried."""

    def __init__(
        self,
        config: ModelConfig,
        recipe: Recipe,
        stream: Stream,
        device: torch.device,
        out: Path,
        scratch: Path,
        classes: Tensor | None = None,
        marks: Marks | None = None,
    ) -> None:
        """The log goes to `out`, checkpoints to `scratch`. `classes` of tokens: see `make`;
        without `marks` of a tokenizer nothing is hinted."""
        self.config, self.recipe, self.stream = config, recipe, stream
        self.marks = marks
        self.out, self.scratch, self.classes = out, scratch, classes
        self.device = device
        self.parameters = self._initial(recipe.seed)
        self.optimiser = Optimiser(self.parameters)
        self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self.watch = Watch()
        self.network = self._network()
        self.points: list[Point] = []
        self.step = 0
        self.setbacks = 0
        self.begun_at = 0.0
        self.spent_s = 0.0
        self.scale = 1.0
        weights = torch.zeros(256)
        for tag in TAG.values():
            weights[tag] = 1.0
        for tag, weight in WEIGHTS.items():
            weights[tag] = weight
        self.tag_weights = weights.to(device)
        self.factor = torch.zeros((), device=device)
        self._replayed = Replayed(self._whole_step, device)
        self._sums = torch.zeros(4 + 512, device=device)
        if recipe.compiled:
            with self._replayed.stream():
                self._compile()

    def _initial(self, seed: int) -> Parameters:
        return initial(self.config, seed, self.device)

    def _network(self, compile: Any = None, part: str = "all") -> Network:
        return make_network(self.config, self.dtype, compile, self.classes)

    def _compile(self) -> None:
        """Compiles the small functions in both kinds of pass, before the clock starts. Where the
        compiler does not work, or makes something else of them, trains without, more slowly."""
        start = time.monotonic()
        torch._dynamo.config.recompile_limit = 64
        wanted = self._first_losses()
        compile = self.watch.over(partial(torch.compile, dynamic=False))
        for part in self.PARTS:
            self.network = self._network(compile, part)
            try:
                found = self._first_losses()
            except Exception as error:
                print(f"cannot compile {part} ({type(error).__name__}: {error})", flush=True)
                continue
            if all(abs(a - b) <= SAME_LOSS * abs(a) for a, b in zip(wanted, found, strict=True)):
                print(f"compiled {part} in {time.monotonic() - start:.0f} s", flush=True)
                return
            print(f"compiled {part} the losses are {found} and not {wanted}", flush=True)
        self.network = self._network()
        print("going on without a compiler", flush=True)

    def _first_losses(self) -> list[float]:
        """Of random tokens in both kinds of pass, with a pass back each."""
        rows, draw = self.recipe.step_tokens // 256, torch.Generator().manual_seed(0)
        ids = torch.randint(self.config.vocab_size, (rows, 257), generator=draw).to(self.device)
        tags = torch.full((rows * 256,), PROMPT, device=self.device)
        losses = []
        for mode in (Mode(sparse=False), Mode(weights=True, activations=True)):
            torch.manual_seed(self.recipe.seed)
            loss = self._loss(ids, tags, mode)[0]
            loss.backward()
            losses.append(float(loss.detach()))
        for tensor in self.parameters.values():
            tensor.grad = None
        self._sums.zero_()
        return losses

    def run(self, minutes: float) -> None:
        """Until the time is up, counting what was spent before a resumption."""
        with self._replayed.stream():
            self._run(minutes)

    def _run(self, minutes: float) -> None:
        budget_s = 60 * minutes
        start = time.monotonic() - self.spent_s
        last_log = last_save = time.monotonic()
        tokens = waited_s = 0.0
        while (share := (time.monotonic() - start) / budget_s) < 1:
            progress = self.begun_at + (1 - self.begun_at) * share
            batch = self.stream.next(progress)
            self._one_step(batch, progress)
            tokens += batch.tags.size
            now = time.monotonic()
            self.spent_s = now - start
            if now - last_log > LOG_S or self.step in (1, 10):
                point = self._point(
                    progress, tokens / (now - last_log), self.stream.waited_s - waited_s
                )
                waited_s = self.stream.waited_s
                self._log(point)
                last_log, tokens = time.monotonic(), 0.0
                if math.isfinite(point.loss):
                    self.setbacks = 0
                else:
                    self._step_back(batch, progress)
            if now - last_save > CHECKPOINT_S:
                self.save()
                last_save = now
        if not_finite(self.parameters) and self._file().exists():
            self.resume(self._file())  # what came since the last line of the log is lost
        self.save()

    def _step_back(self, batch: Batch, progress: float) -> None:
        """To the last checkpoint, at half the rate: the run has one chance only. A second time in
        a row without a compiler, and a third time not at all: what fails at once fails always."""
        mode = self._mode(progress)  # before the step goes back, whose parity it has
        self.setbacks += 1
        self.scale *= 0.5
        spent_s = self.spent_s
        print(f"the loss is not finite; neither are {not_finite(self.parameters)}", flush=True)
        if self._file().exists():
            self.resume(self._file())
        else:
            fresh = self._initial(self.recipe.seed + 1)
            with torch.no_grad():
                for name, tensor in self.parameters.items():
                    tensor.copy_(fresh[name])
            self.optimiser = Optimiser(self.parameters)
        self._replayed.reset()
        self.spent_s = spent_s
        faults = self._faults(batch, mode)
        if self.setbacks > 2:
            raise RuntimeError(f"the loss is not finite from sound parameters on: {faults}")
        if self.setbacks == 2:
            self.network = self._network()
            print("going on without a compiler", flush=True)
        print(f"back to the last checkpoint, rate × {self.scale}; {faults}", flush=True)

    def _faults(self, batch: Batch, mode: Mode) -> str:
        """The first operations of a step that give a NaN."""
        ids, tags = (
            torch.from_numpy(array.astype("int64")).to(self.device)
            for array in (batch.ids, batch.tags.reshape(-1))
        )
        try:
            with self.watch.looking() as found:
                self._loss(ids, tags, mode)[0].backward()
        except RuntimeError as error:
            found.append(f"then {error}")
        for tensor in self.parameters.values():
            tensor.grad = None
        self._sums.zero_()
        return "; ".join(found) or "the same batch gives no NaN now"

    def _one_step(self, batch: Batch, progress: float) -> None:
        self.step += 1
        self.factor.fill_(self._factor(progress))
        self._replayed(batch.ids, batch.tags, self._mode(progress))

    def _mode(self, progress: float) -> Mode:
        generation = self.config.generation
        rounded = progress >= ROUNDED_FROM[generation]
        mixed = progress >= MIXED_FROM[generation] and self.step % 2 == 0
        sparse = mixed or progress >= SPARSE_FROM[generation]
        hinted = self.marks is not None and progress < HINTED_UNTIL[generation]
        ngrams = progress >= NGRAMS_FROM[generation]
        return Mode(rounded, rounded, sparse, borrowed=True, engram=ngrams, hinted=hinted)

    def _whole_step(self, ids: Tensor, tags: Tensor, mode: Mode) -> None:
        loss, extras = self._loss(ids, tags, mode)
        loss.backward()
        self.optimiser.step(self.factor)
        self._balance(extras)

    def _loss(self, ids: Tensor, tags: Tensor, mode: Mode) -> tuple[Tensor, Extras]:
        network = self.network
        extras = Extras(tags > 0)
        if mode.hinted and self.marks is not None:
            extras.hints = first_of_name(ids[:, :-1], self.marks)
            extras.sought = sought(ids, extras.hints, tags > DOCUMENT)
        weights = network.prepare(self.parameters, mode)
        hidden = network.forward(weights, ids[:, :-1], mode, extras)
        logits = network.logits(weights, hidden)
        losses = F.cross_entropy(logits.float(), ids[:, 1:].reshape(-1), reduction="none")
        share = self.tag_weights[tags]
        loss = (losses * share).sum() / share.sum().clamp(min=1.0)
        index_loss = torch.stack(extras.index_losses).mean() if extras.index_losses else loss * 0
        with torch.no_grad():
            self._sums[0] += loss
            self._sums[1] += index_loss
            self._sums[2] += 1
            self._sums[3] += imbalance(extras)
            self._sums[4:260].index_add_(0, tags, losses)
            self._sums[260:].index_add_(0, tags, torch.ones_like(losses))
        if extras.told_losses:
            told = [*extras.told_losses, torch.stack(extras.sought_losses).mean()]
            with torch.no_grad():
                for tag, value in zip((NAMED, KNOWN, LOOKED), told, strict=True):
                    self._sums[4 + tag] += value
                    self._sums[260 + tag] += 1
            loss = loss + HINT_WEIGHT * torch.stack(told).sum()
        return loss + index_loss, extras

    def _factor(self, progress: float) -> float:
        warm = min(self.step / WARM_STEPS, 1.0)
        return self.scale * warm * min(1.0, max((1.0 - progress) / (1.0 - DECAY_FROM), 0.02))

    @torch.no_grad()
    def _balance(self, extras: Extras) -> None:
        """Raises the bias of experts with less than their share of tokens, lowers the others'."""
        bias = self.parameters["ffn.gate.bias"]
        routed = [layer for layer in self.config.layers if layer.routing == "bias"]
        loads = torch.stack([extras.loads[layer.index] for layer in routed]).float()
        bias += BIAS_RATE * self.factor * torch.sign(loads.mean(-1, keepdim=True) - loads)

    def _point(self, progress: float, tokens_per_s: float, waited_s: float) -> Point:
        sums = self._sums.tolist()
        self._sums.zero_()
        count = max(sums[2], 1)
        slices = {
            name: sums[4 + tag] / sums[260 + tag] for name, tag in LOGGED.items() if sums[260 + tag]
        }
        return Point(
            seconds=round(self.spent_s, 1),
            step=self.step,
            tokens_per_s=round(tokens_per_s),
            waited_s=round(waited_s, 2),
            loss=sums[0] / count,
            index_loss=sums[1] / count,
            imbalance=sums[3] / count,
            rate=self._factor(progress),
            slices=slices,
        )

    def _log(self, point: Point) -> None:
        self.points.append(point)
        parts = " ".join(f"{name}={value:.3f}" for name, value in point.slices.items())
        print(
            f"{point.seconds:6.1f}s step {point.step:5d} {point.tokens_per_s / 1e6:.3f}M tok/s "
            f"waited {point.waited_s:.1f}s loss {point.loss:.3f} index {point.index_loss:.3f} "
            f"uneven {point.imbalance:.2f} rate {point.rate:.2f} | {parts}",
            flush=True,
        )
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(asdict(point)) + "\n")

    def save(self) -> None:
        """Enough to go on from: `resume` of the file. Nothing that a NaN is in."""
        if not_finite(self.parameters):
            return
        path = self._file()
        state = {
            "parameters": self.parameters,
            "optimiser": self.optimiser.state(),
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)

    def _file(self) -> Path:
        return self.scratch / "resume.pt"

    @torch.no_grad()
    def go_on_from(self, weights: Parameters) -> None:
        """Weights as they are stored, in a new run of the last phases."""
        for name, tensor in self.parameters.items():
            tensor.copy_(weights[name])
        self.begun_at = GOING_ON_FROM[self.config.generation]

    def resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(state["parameters"][name])
        self.optimiser.load(state["optimiser"])
        self.step, self.spent_s = state["step"], state["spent_s"]
        self._replayed.reset()


def imbalance(extras: Extras) -> Tensor:
    """Most tokens of an expert over the mean, averaged over layers."""
    loads = torch.stack(extras.loads).float()
    return (loads.amax(-1) / loads.mean(-1).clamp(min=1)).mean()


def trained_parameters(trainer: Trainer) -> Parameters:
    return {name: tensor.detach() for name, tensor in trainer.parameters.items()}
