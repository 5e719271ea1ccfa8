"""Makes ember in one go: tokenizer, training, export, scores, curves.

    python training/run.py --minutes 7.1 --out OUT [--network v4|v4.1] [--smoke]
    python training/run.py --minutes 7.1 --out OUT --draft-for FOLDER

`--minutes` is the whole time; training gets what scoring leaves. OUT gets four files: ember.tar.gz
(the checkpoint), report.json, log.jsonl and curves.png. A draft comes as draft.tar.gz: its shard,
and the config, index and hashes of FOLDER with it. Scratch files go to the temporary folder.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this folder, whose modules have common names

NEEDED = ("deepseek_recipe", "msgspec", "numpy", "tokenizers", "torch")
SCORING_S = 60.0
"""Kept for export and the rounds of scores."""

DRAFT_SCORING_S = 35.0
"""Of a draft: on an H200 acceptance took 24 s with 100 instances of a task."""

SAMPLES = (
    "Hello!",
    "你好",
    "Who are you?",
    "What can you do?",
    'How many r are in the word "strawberry"?',
    "What is 4821 + 937?",
    "6 乘 7 是多少？",
    "Write a Python function that adds two numbers.",
    "My name is Clara.",
    "谢谢",
)

DECODE_S = 25.0
"""Of one round of scores, after which answers are not decoded any more."""


def main() -> None:
    options = _options()
    begun = time.monotonic()
    _check_packages()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are processes already

    import torch

    from relight.base.checkpoint import open_model
    from relight.ember.tasks import held_out
    from relight.text.tokenizer import Tokenizer
    from training.jobs import Job, copy_checkpoint, make_backbone, make_draft
    from training.model import NETWORKS
    from training.rows import RowMaker
    from training.stream import Purpose, Stream
    from training.train import Recipe

    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="ember-"))
    checkpoint = scratch / "ember"
    checkpoint.mkdir()
    if options.draft_for:
        copy_checkpoint(options.draft_for, checkpoint)
        config = open_model(checkpoint).config
    else:
        _provide_tokenizer(options.tokenizer, checkpoint)
        config = NETWORKS[options.network]
    device = torch.device(options.device or _device(torch))
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    recipe = Recipe(
        seed=options.seed,
        step_tokens=options.step_tokens,
        num_workers=options.workers,
        compiled=options.compiled == "on",
    )
    encoding = config.generation  # prompts as the model's server lays them out
    purpose: Purpose = "draft" if options.draft_for else "backbone"
    stream = Stream(
        checkpoint, encoding, recipe.seed, recipe.step_tokens, recipe.num_workers, purpose
    )
    scoring_s = DRAFT_SCORING_S if options.draft_for else SCORING_S
    if options.smoke:
        scoring_s = 20.0
    try:
        maker = RowMaker(Tokenizer.load(checkpoint), encoding)
        per_task = min(options.instances, 12) if options.smoke else options.instances
        sets = held_out(
            options.seed + 1, per_task, lambda text: len(maker.tokenizer.encode_text(text))
        )
        print(f"ready after {time.monotonic() - begun:.0f} s on {device}", flush=True)
        job = Job(
            config=config,
            recipe=recipe,
            device=device,
            out=out,
            scratch=scratch,
            checkpoint=checkpoint,
            maker=maker,
            sets=sets,
            per_task=per_task,
            resume=options.resume,
            start=options.start,
            train_s=lambda: 60 * options.minutes - (time.monotonic() - begun) - scoring_s,
            decode_s=6.0 if options.smoke else DECODE_S,
            is_late=lambda: time.monotonic() - begun > 60 * options.minutes + 30,
        )
        if options.draft_for:
            make_draft(job, stream)
        else:
            make_backbone(job, stream, SAMPLES)
    finally:
        stream.close()
    _plot(out)
    shutil.rmtree(scratch)
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    print(f"done after {time.monotonic() - begun:.0f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=7.1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", choices=("v4", "v4.1"), default="v4")
    parser.add_argument(
        "--draft-for", type=Path, help="train a draft for the backbone in this folder instead"
    )
    parser.add_argument(
        "--start", type=Path, help="train the last phases only, from the checkpoint in this folder"
    )
    parser.add_argument("--smoke", action="store_true", help="every stage in about a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "training" / "tokenizer")
    parser.add_argument("--step-tokens", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--device")
    parser.add_argument("--compiled", choices=("on", "off"), default="on")
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    if options.smoke:
        options.minutes = min(options.minutes, 1.0)
    return options


def _check_packages() -> None:
    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        sys.exit(f"missing packages: {', '.join(missing)}; put their wheels on PYTHONPATH")


def _device(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _provide_tokenizer(source: Path, folder: Path) -> None:
    from training.plain import plain_texts
    from training.tokenizer import train_tokenizer

    if (source / "tokenizer.json").is_file():
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, folder / name)
        return
    print(f"{source} holds no tokenizer: training one", flush=True)
    train_tokenizer(plain_texts(0, 2500), folder)


def _plot(out: Path) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib: no curves.png")
        return
    points = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4))
    seconds = [point["seconds"] for point in points]
    axes[0].plot(seconds, [point["loss"] for point in points], label="loss")
    axes[0].plot(seconds, [point["index_loss"] for point in points], label="indexer")
    for name in sorted({name for point in points for name in point["slices"]} - {"document"}):
        some = [point for point in points if name in point["slices"]]
        axes[1].plot([p["seconds"] for p in some], [p["slices"][name] for p in some], label=name)
    axes[1].set_yscale("log")
    for axis in axes:
        axis.set_xlabel("seconds")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
