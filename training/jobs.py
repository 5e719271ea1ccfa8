"""What a run makes: a backbone, or the draft of one. Each trains, exports and is scored. Knows no
option of the command line and no plot."""

import json
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relight.base.config import ModelConfig
from relight.ember.tasks import Instance
from relight.text.token_classes import token_classes
from training import acceptance, score
from training.draft import DraftNetwork, with_draft
from training.export import DRAFT_SHARD, export, export_draft, read_back, read_draft
from training.hints import Marks
from training.make import make_network
from training.network import Mode
from training.rows import RowMaker
from training.stream import Purpose, Stream, data_hash
from training.train import Recipe, Trainer, trained_parameters
from training.train_draft import DraftTrainer

Sets = dict[tuple[str, str], list[Instance]]
ROUNDED = Mode(weights=True, activations=True)
SERVED = Mode(activations=True)


@dataclass(frozen=True, slots=True)
class Job:
    """`checkpoint` is a folder with the tokenizer, and for a draft with the backbone. `train_s` and
    `decode_s`: seconds for training, and for what one round of scores decodes. `start`: a
    checkpoint to go on from."""

    config: ModelConfig
    recipe: Recipe
    device: torch.device
    out: Path
    scratch: Path
    checkpoint: Path
    maker: RowMaker
    sets: Sets
    per_task: int
    resume: Path | None
    start: Path | None
    train_s: Callable[[], float]
    decode_s: float
    is_late: Callable[[], bool]

    @property
    def classes(self) -> Tensor | None:
        """Of tokens, for n-grams."""
        if self.config.engram is None:
            return None
        classes = token_classes(self.checkpoint, self.config.vocab_size)
        return torch.tensor(classes, device=self.device)

    def report(self, trainer: Trainer, size: int, purpose: Purpose) -> dict[str, Any]:
        layout, seed = self.config.generation, self.recipe.seed
        return {
            "seed": seed,
            "data_sha256": data_hash(self.checkpoint, layout, seed, purpose),
            "steps": trainer.step,
            "training_s": trainer.spent_s,
            "export_bytes": size,
            "instances": self.per_task,
        }

    def write(self, report: dict[str, Any]) -> None:
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (self.out / "report.json").write_text(text, "utf-8")

    def pack(self, name: str, *members: str) -> int:
        """The checkpoint, or some of its files, as OUT/name.tar.gz; its bytes."""
        file = self.out / f"{name}.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            for member in members or ("",):
                archive.add(self.checkpoint / member, Path("ember") / member)
        return file.stat().st_size


def make_backbone(job: Job, stream: Stream, samples: tuple[str, ...]) -> None:
    config, device, recipe = job.config, job.device, job.recipe
    marks = Marks.of(job.maker.tokenizer)
    trainer = Trainer(config, recipe, stream, device, job.out, job.scratch, job.classes, marks)
    if job.start:
        trainer.go_on_from(read_back(job.start, device)[1])
    _train(job, trainer)
    stream.close()
    size = export(config, trainer.parameters, job.checkpoint)
    packed = job.pack("ember")
    print(f"exported {size:,} bytes, {packed:,} packed", flush=True)
    network = make_network(config, trainer.dtype, None, job.classes)
    trained = trained_parameters(trainer)
    _, stored = read_back(job.checkpoint, device)
    del trainer.optimiser

    def scorer(parameters: Any, mode: Mode, seconds: float) -> score.Scorer:
        deadline = time.monotonic() + seconds
        tokens = recipe.step_tokens * 2
        return score.Scorer(job.maker, network, parameters, mode, tokens, deadline)

    def scores(parameters: Any, mode: Mode, some: Sets) -> dict[str, float]:
        made = scorer(parameters, mode, job.decode_s)
        return score.table(made, some, lambda line: print(line, flush=True))

    keys = {name: some for name, some in job.sets.items() if name[0].startswith("key")}
    report = {**job.report(trainer, size, "backbone"), "packed_bytes": packed}
    rounds: list[tuple[str, Any, Mode, Sets]] = [
        ("after export", stored, SERVED, job.sets),
        ("random picks", stored, Mode(activations=True, random_picks=True), keys),
        ("without n-grams", stored, Mode(activations=True, engram=False), job.sets),
        ("before export", trained, ROUNDED, job.sets),
        ("unrounded", trained, Mode(), job.sets),
    ]
    for name, parameters, mode, some in rounds:
        if not mode.engram and config.engram is None:
            continue
        if job.is_late():
            print(f"no time left for the scores '{name}'", flush=True)
            continue
        print(f"{name}:", flush=True)
        report[name] = scores(parameters, mode, some)
        job.write(report)
    report["samples"] = {}
    for thinking in (False, True):
        answers = scorer(stored, SERVED, 60.0).say(samples, thinking=thinking)
        for text, answer in zip(samples, answers, strict=True):
            report["samples"][f"{text} (thinking {'on' if thinking else 'off'})"] = answer
            print(f"> {text}\n{answer}", flush=True)
    job.write(report)


def make_draft(job: Job, stream: Stream) -> None:
    """`job.config` is the backbone's; its folder gets one more shard."""
    config, device = with_draft(job.config), job.device
    _, backbone = read_back(job.checkpoint, device)
    trainer = DraftTrainer(
        config, backbone, job.recipe, stream, device, job.out, job.scratch, job.classes
    )
    _train(job, trainer)
    stream.close()
    size = export_draft(config, trainer.parameters, job.checkpoint)
    packed = job.pack("draft", DRAFT_SHARD, "config.json", "hashes.json", *_indexes(job.checkpoint))
    print(f"exported {size:,} bytes, {packed:,} packed", flush=True)
    network = make_network(config, trainer.dtype, None, job.classes)
    drafting = DraftNetwork(config, trainer.dtype)
    report = {**job.report(trainer, size, "draft"), "packed_bytes": packed}
    tokens = job.recipe.step_tokens
    scorer = score.Scorer(job.maker, network, backbone, SERVED, tokens)
    some = acceptance.slices(job.sets, job.recipe.seed + 1, job.per_task)
    stored = read_draft(job.checkpoint, device)
    report["acceptance"] = acceptance.measure(scorer, drafting, stored, some)
    for name, row in report["acceptance"].items():
        print(f"{name}: {row}", flush=True)
    job.write(report)


def _train(job: Job, trainer: Trainer) -> None:
    if job.resume:
        trainer.resume(job.resume)
    left_s = job.train_s()
    print(f"training for {left_s:.0f} s", flush=True)
    trainer.run(max(left_s, 10.0) / 60)


def _indexes(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.index.json")]


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Files only: what lies beside them is not of the checkpoint."""
    for path in source.iterdir():
        if path.suffix in (".json", ".safetensors"):
            shutil.copy(path, folder / path.name)
