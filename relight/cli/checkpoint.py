"""The commands about checkpoints on disk. Knows no tensor."""

from pathlib import Path
from typing import Annotated

import typer

from relight.base.packaged import NAMES

FOLDER = Annotated[Path, typer.Argument(help="Folder to write, made if it is not there.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite a checkpoint that is there.")]


def inspect(
    model: Annotated[str, typer.Argument(help=f"Folder of the checkpoint, or {NAMES}.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Check a checkpoint's config and headers, and show its layers, tensors and bytes.

    Example: `relight inspect /models/DeepSeek-V4-Flash`
    """
    import json

    from rich.console import Console

    from relight.base.packaged import model_folder
    from relight.lab import inspect as lab

    inspection = lab.inspect(model_folder(model))
    if as_json:
        print(json.dumps(inspection.as_json(), indent=2))
    else:
        lab.show(inspection, Console())


def synth(
    folder: FOLDER,
    preset: Annotated[
        str,
        typer.Option(
            help="Which sizes: tiny, v4-flash, v4-flash-0731, v4-flash-base, v4-pro, tiny-v4.1, "
            "v4.1-flash."
        ),
    ] = "tiny",
    config: Annotated[
        Path | None, typer.Option(help="A config.json to take the sizes from instead.")
    ] = None,
    layers: Annotated[
        int, typer.Option(min=0, help="Only the first layers of the preset; 0: all.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of all values.")] = 0,
    sparse: Annotated[
        bool,
        typer.Option(
            "--sparse", help="Headers and full sizes without data: zeros, almost no disk."
        ),
    ] = False,
    tokenizer: Annotated[
        bool, typer.Option("--tokenizer/--no-tokenizer", help="Add the public V4 tokenizer.")
    ] = True,
    force: FORCE = False,
) -> None:
    """Write a random checkpoint in the official layout, of any size, the same for the same seed.

    Example: `relight synth big --preset v4-flash --layers 4`
    """
    from rich.console import Console

    from relight.base.config import read_config
    from relight.base.errors import BadSetting
    from relight.cli.progress import load_bar
    from relight.lab import synth as lab

    if config is not None and (preset != "tiny" or layers):
        raise BadSetting("config gives all sizes: leave out preset and layers", param="config")
    sizes = read_config(config).config if config is not None else lab.preset(preset, layers)
    with load_bar(Console(), "writing", "wrote") as progress:
        written = lab.synth(
            sizes,
            folder,
            seed=seed,
            sparse=sparse,
            tokenizer="deepseek" if tokenizer else None,
            force=force,
            progress=progress,
        )
    print(
        f"{written.folder}: {written.num_tensors:,} tensors, {written.nbytes:,} bytes, "
        f"{written.num_shards} shards"
    )


def convert(
    source: Annotated[Path, typer.Argument(help="Folder of the unpacked weights.")],
    folder: FOLDER,
    quantise: Annotated[
        bool,
        typer.Option("--quantise", help="Round weights that do not lie on FP8 and FP4 grids."),
    ] = False,
    force: FORCE = False,
) -> None:
    """Rewrite unpacked weights, as transformers saves V4, in the official layout.

    Example: `relight convert saved official --quantise`
    """
    from rich.console import Console

    from relight.cli.progress import load_bar
    from relight.lab import convert as lab

    with load_bar(Console(), "converting", "converted") as progress:
        done = lab.convert(source, folder, quantise=quantise, force=force, progress=progress)
    for loss in done.losses:
        print(f"{loss.part}: relative error {loss.relative_rms:.2%} (worst: {loss.worst_tensor})")
    if done.left_out:
        print(f"left out: {done.left_out:,} tensors of a V4 draft or for images only")
    if done.unknown_fields:
        print(f"fields of config.json that are not kept: {', '.join(done.unknown_fields)}")
    print(f"{done.folder}: {done.num_tensors:,} tensors, {done.nbytes:,} bytes")
