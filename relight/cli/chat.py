"""The command that chats in a terminal. Knows no setting by name but the model's."""

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from relight.base.errors import BadSetting
from relight.base.settings import Loaded
from relight.cli import show
from relight.cli.options import ENGINE, with_settings

if TYPE_CHECKING:
    from relight.chat.dialogue import Dialogue
    from relight.chat.source import Source

WELCOME = "/help lists commands; Ctrl-D leaves"


@with_settings(*ENGINE)
def chat(
    loaded: Loaded,
    url: Annotated[
        str,
        typer.Option(help="Chat with a server, as http://host:port/v1; --model is a name there."),
    ] = "",
    api_key: Annotated[str, typer.Option(help="The server's key.")] = "",
    tools: Annotated[
        Path | None, typer.Option(help="JSON list of tools; you type the results of calls.")
    ] = None,
    system: Annotated[str, typer.Option(help="System message of the chat.")] = "",
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Think before answering; else as it does."),
    ] = None,
    effort: Annotated[str | None, typer.Option(help="How long to think: high or max.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer.", show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: always the likeliest token.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of probability to draw from.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
) -> None:
    """Chat in the terminal, with a server or without one; piped lines are answered in plain text.

    Example: `relight chat --url http://127.0.0.1:8000/v1`
    """
    from relight.chat.dialogue import Dialogue
    from relight.chat.wire import read_tools
    from relight.session import Options

    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    dialogue = Dialogue(
        system=system,
        thinking=thinking,
        effort=effort,
        tools=read_tools(tools) if tools else (),
        options=msgspec.convert(options, Options),
    )
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        source = _remote(loaded, url, api_key) if url else _local(loaded)
        stack.callback(lambda: runner.run(source.aclose()))
        runner.run(source.open())
        num_faults = _talk(source, dialogue, runner)
    if num_faults and not _interactive():
        raise typer.Exit(1)


def _remote(loaded: Loaded, url: str, api_key: str) -> "Source":
    from relight.chat.http import HttpSource

    flags = {
        name: source.removeprefix("flag ")
        for name, source in loaded.sources.items()
        if source.startswith("flag ")
    }
    name = loaded.settings.model if flags.pop("model", None) else ""
    if flags:
        raise BadSetting(
            f"{', '.join(flags.values())} cannot act with --url: the server has its own settings"
        )
    return HttpSource(url, model=name, api_key=api_key)


def _local(loaded: Loaded) -> "Source":
    from relight.base.config import read_config
    from relight.base.packaged import model_folder
    from relight.chat.engine import EngineSource
    from relight.cli.progress import load_bar

    read_config(model_folder(loaded.settings.model))  # a wrong folder is told before all else
    settings = loaded.settings
    if loaded.sources["log_level"] == "default":  # this screen is no place for a log
        settings = msgspec.structs.replace(settings, log_level="warning")
    return EngineSource(settings, lambda: load_bar(show.console(stderr=True)))


def _talk(source: "Source", dialogue: "Dialogue", runner: asyncio.Runner) -> int:
    """Returns the number of faults."""
    from relight.chat.lines import Piped
    from relight.chat.loop import Chat
    from relight.chat.view import Plain

    if not _interactive():
        chat = Chat(source, dialogue, Plain(sys.stdout, sys.stderr), runner)
        chat.run(Piped(sys.stdin))
        return chat.num_faults

    from rich.console import Console

    from relight.chat.keyboard import Keyboard, quiet_terminal
    from relight.chat.screen import Screen

    screen = Screen(Console(highlight=False, markup=False))
    chat = Chat(source, dialogue, screen, runner)
    with quiet_terminal():
        screen.say(f"{source.name} · {WELCOME}")
        chat.run(Keyboard(chat.unfold))
    return chat.num_faults


def _interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
