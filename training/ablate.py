"""Scores ember on hidden keys, again with the indexer's picks replaced by chance, and on all tasks
with and without n-grams if it has any.

    python training/ablate.py [--checkpoint relight/ember/v4] [--instances 100] [--out FILE]

The network is the one that trains, with served roundings; a minute for each hundred keys at 1K.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this folder, whose modules have common names


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "relight" / "ember" / "v4")
    parser.add_argument("--instances", type=int, default=100, help="at 1K tokens; a quarter at 4K")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    import torch

    from relight.ember.tasks import held_out
    from relight.text.token_classes import token_classes
    from relight.text.tokenizer import Tokenizer
    from training import score
    from training.export import read_back
    from training.make import make_network
    from training.network import Mode
    from training.rows import RowMaker

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config, stored = read_back(options.checkpoint, device)
    maker = RowMaker(Tokenizer.load(options.checkpoint), config.generation)
    sets = held_out(
        options.seed, options.instances, lambda text: len(maker.tokenizer.encode_text(text))
    )
    keys = {name: some for name, some in sets.items() if name[0].startswith("key")}
    keys = {
        name: some[: options.instances // 4] if "4K" in name[0] else some
        for name, some in keys.items()
    }
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    classes = torch.tensor(token_classes(options.checkpoint, config.vocab_size), device=device)
    network = make_network(config, dtype, None, classes)
    torch.manual_seed(options.seed)
    report: dict[str, dict[str, float]] = {}
    modes = {
        "picks of the indexer": (Mode(activations=True), keys),
        "random picks": (Mode(activations=True, random_picks=True), keys),
    }
    others = keys
    if config.engram is not None:
        others = {name: some for name, some in sets.items() if name not in keys} | keys
        modes["picks of the indexer"] = (Mode(activations=True), others)
        modes["without n-grams"] = (Mode(activations=True, engram=False), others)
    for name, (mode, some) in modes.items():
        scorer = score.Scorer(maker, network, stored, mode, 8192)
        print(f"{name}:", flush=True)
        report[name] = score.table(scorer, some, lambda line: print(line, flush=True))
    counts = {f"{task} / {language}": len(some) for (task, language), some in others.items()}
    text = json.dumps({"instances": counts, "percent right": report}, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
