"""Draws ember's scores: what its making measured, and what `relight eval` did.

    python training/plot.py [--folder docs/ember]

Reads report.json, eval.json and ablation.json of the folder and writes scores.png there.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this folder, whose modules have common names

LANGUAGES = {"en": "English", "zh": "Chinese"}
WIDTH = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "ember")
    folder = parser.parse_args().folder

    from matplotlib import pyplot

    from relight.ember.bars import BARS

    trained = json.loads((folder / "report.json").read_text())["after export"]
    random = json.loads((folder / "ablation.json").read_text())["percent right"]["random picks"]
    served = {
        f"{task['task']} / {count['language']}": 100 * count["right"] / count["count"]
        for task in json.loads((folder / "eval.json").read_text())["tasks"]
        for count in task["counts"]
    }
    series = [
        (f"{what}, {said}", {task: scores[f"{task} / {language}"] for task in BARS}, colour, hatch)
        for what, scores, colour in (
            ("training's network", trained, "tab:blue"),
            ("relight eval", served, "tab:orange"),
        )
        for (language, said), hatch in zip(LANGUAGES.items(), ("", "///"), strict=True)
    ]
    figure, axes = pyplot.subplots(figsize=(11, 4.2))
    for i, (label, scores, colour, hatch) in enumerate(series):
        places = [place + (i - 1.5) * WIDTH for place in range(len(BARS))]
        axes.bar(
            places, list(scores.values()), WIDTH, label=label, color=colour, hatch=hatch, ec="w"
        )
    for place, (task, bar) in enumerate(BARS.items()):
        label = "wanted" if place == 0 else None
        axes.hlines(bar, place - 0.45, place + 0.45, "black", "dashed", label=label)
        if f"{task} / en" in random:
            mean = sum(random[f"{task} / {language}"] for language in LANGUAGES) / 2
            text = f"random picks: {mean:.0f} %"
            paper = {"fc": "white", "ec": "none"}
            axes.annotate(text, (place, 4), ha="center", fontsize=8, bbox=paper)
    axes.set_xticks(range(len(BARS)), list(BARS))
    axes.set_ylabel("right, % of held-out instances")
    axes.set_ylim(0, 105)
    axes.legend(fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(folder / "scores.png", dpi=110)
    print(folder / "scores.png")


if __name__ == "__main__":
    main()
