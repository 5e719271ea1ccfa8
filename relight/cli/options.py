"""Turns settings into command line flags. Knows no single setting."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from relight.base.knobs import Group, Knob
from relight.base.settings import KNOBS, load

ENGINE: tuple[Group, ...] = ("model", "compute", "memory")
"""The settings of an engine without a server."""

SETTINGS_PANEL = "Settings: "

CONFIG = Annotated[
    Path | None,
    typer.Option(help="TOML file with settings, one `name = value` a line.", show_default=False),
]


def with_settings(*groups: Group) -> Callable[[Callable[..., None]], Any]:
    """The command's parameter `loaded` becomes one flag for each setting of `groups`, and
    `--config`. Ranges are checked where settings are loaded, whatever their source."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "loaded"]
        flags = [_parameter(knob) for knob in KNOBS.values() if knob.group in groups]
        config = inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG
        )

        @functools.wraps(command)
        def run(*, config: Path | None = None, **values: Any) -> None:
            given = {flag.name: values.pop(flag.name) for flag in flags}
            command(loaded=load(given, os.environ, config), **values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        signature = inspect.Signature([*parameters, *flags, config])
        run.__dict__["__signature__"] = signature
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return decorate


def _parameter(knob: Knob) -> inspect.Parameter:
    switch = knob.kind == "bool"
    option = typer.Option(
        f"{knob.flag}/--no-{knob.flag[2:]}" if switch else knob.flag,
        help=_help(knob),
        show_default=False,  # the value of a flag that is not given is None, not the default
        rich_help_panel=SETTINGS_PANEL + knob.group,
        metavar="" if switch else _metavar(knob),
    )
    kind: Any = bool | None if switch else str | None
    if knob.kind == "list":
        kind = list[str] | None  # the flag may be repeated
    return inspect.Parameter(
        knob.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


def _help(knob: Knob) -> str:
    text = f"{knob.help[0].upper()}{knob.help[1:]}."
    return f"{text} [default: {knob.show(knob.default) or 'empty'}]"


def _metavar(knob: Knob) -> str:
    if knob.kind == "choice":
        return "|".join(knob.wanted.split(" or "))
    number = {"int": "NUMBER", "float": "NUMBER", "bytes": "BYTES"}
    return number.get(knob.kind, "TEXT")
