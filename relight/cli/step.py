"""The step benchmark from the command line. Knows no model."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from relight.cli import show

COLUMNS = ("rows", "context", "µs", "spread", "MB", "stream", "matrix", "matmul µs")
"""`stream` and `matrix`: shares of what the device reads and multiplies at best."""


def step(
    model: Annotated[
        list[str] | None,
        typer.Option(help="v4-flash or v4.1-flash; may be given again. Default: both."),
    ] = None,
    device: Annotated[str, typer.Option(help="torch device; auto: the accelerator.")] = "auto",
    rows: Annotated[
        str | None,
        typer.Option(help="Widths of steps, joined by commas. Default: 1,2,4,6,8,16; small: 1,2."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            help="Tokens in front of a step, joined by commas; ops are at the first. "
            "Default: 8192,1024,32768,131072; small: 256."
        ),
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(
            help="Prompt tokens read at once, joined by commas; 0: none. Default: 2048; small: 64."
        ),
    ] = None,
    layers: Annotated[
        int, typer.Option(help="Layers of V4 at most; 0: as many as fit; small: 4.", min=0, max=43)
    ] = 0,
    kernels: Annotated[str, typer.Option(help="As the setting of that name.")] = "auto",
    seconds: Annotated[float, typer.Option(help="What is not begun by then is left out.")] = 540.0,
    small: Annotated[
        bool, typer.Option("--small", help="Narrow layers and few of them, as for a processor.")
    ] = False,
    peers: Annotated[bool, typer.Option(help="Time torch's products on unpacked weights.")] = True,
    out: Annotated[Path | None, typer.Option(help="File that gets all of it as JSON.")] = None,
) -> None:
    """Time steps of networks of real size with random weights, op by op, beside the device's roof.

    Example: `relight step --model v4-flash --rows 1,8 --out step.json`
    """
    from dataclasses import replace

    from relight.base.errors import BadSetting
    from relight.base.settings import load
    from relight.engine.assemble import choose_device
    from relight.lab.random_model import SIZES
    from relight.lab.step import measure
    from relight.lab.step_bench import SMALL, Wanted

    models = tuple(model or SIZES)
    for name in models:
        if name not in SIZES:
            raise BadSetting(f"model is {name!r}; wanted {' or '.join(SIZES)}", param="model")
    usual = SMALL if small else Wanted()
    contexts = usual.contexts if context is None else _numbers("context", context)
    wanted = replace(
        usual,
        models=models,
        widths=usual.widths if rows is None else _numbers("rows", rows),
        contexts=contexts,
        context=usual.context if context is None else contexts[0],
        chunks=usual.chunks if chunk is None else _numbers("chunk", chunk) if chunk != "0" else (),
        layers=layers or usual.layers,
        kernels=load({"kernels": kernels}, {}).settings.kernels,
        seconds=seconds,
        peers=peers,
    )
    where = choose_device(device)
    if where.type == "cpu" and not small and not layers:
        raise BadSetting(
            "device is cpu, where as many layers of real size as fit take most of the memory and "
            "minutes a step; give --small, or say how many with --layers",
            param="layers",
        )

    if out is not None:
        out.touch()  # a bad path is told of before minutes of building

    def tell(found: dict[str, Any]) -> None:
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    command = shlex.join(["relight", *sys.argv[1:]])
    found = measure(wanted, where, tell, command)
    _print(found, ", narrow" if small else "")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    from relight.base.errors import BadSetting

    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise BadSetting(f"{name} is {text!r}; wanted numbers from 1 on, like 1,8", param=name)
    return found


def _print(found: dict[str, Any], size: str) -> None:
    roof = found["roof"]
    show.line(
        f"The device reads {roof['stream_bytes_per_s'] / 1e9:,.0f} GB/s ({roof['stream']}) and "
        f"multiplies at {roof['matrix_flops_per_s'] / 1e12:,.2f} TFLOP/s ({roof['matrix']})."
    )
    for name, model in found["models"].items():
        few = f"{model['layers_here']} of {model['layers_of_model']} layers{size}"
        for title, key, lines in (
            (f"{name}, {few}: µs a layer", "layer", [*model["layers"], *model["prefill"]]),
            (f"{name}: µs a call", "op", model["ops"]),
        ):
            rows = [_row(key, line) for line in lines]
            show.table(title, (key, *COLUMNS), rows, numbers=COLUMNS)
        for peer in model["transformers"]:
            if "why_not" in peer:
                show.line(f"transformers' layer was not timed: {peer['why_not']}")
            else:
                where = f"{peer['rows']:,} rows at {peer['context']:,}"
                show.line(f"transformers' {peer['layer']} layer, {where}: {peer['us']:,.1f} µs")
        for note in model["notes"]:
            show.line(note)
        for left in model["left"]:
            show.line(f"no time was left for {left}")


def _row(key: str, line: dict[str, Any]) -> tuple[str, ...]:
    return (
        line[key] + (", same experts" if "experts" in line else ""),
        str(line["rows"]),
        f"{line['context']:,}",
        f"{line['us']:,.1f}",
        f"{line['least_us']:,.1f}–{line['most_us']:,.1f}",
        f"{line['bytes'] / 1e6:,.2f}",
        f"{line['share_of_stream']:.0%}",
        f"{line['share_of_matrix']:.0%}" if "share_of_matrix" in line else "",
        f"{line['matmul_us']:,.1f}" if "matmul_us" in line else "",
    )
