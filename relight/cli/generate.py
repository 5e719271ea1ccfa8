"""The command that answers one prompt in this process. Knows no setting by name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.base.errors import BadSetting
from relight.base.settings import Loaded
from relight.cli import show
from relight.cli.options import ENGINE, with_settings

if TYPE_CHECKING:
    from relight.session import Piece

MODELS_OWN = "[default: what generation_config.json says, else 1]"


@with_settings(*ENGINE)
def generate(
    loaded: Loaded,
    prompt: Annotated[
        str | None, typer.Argument(help="The text; else --file, else standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.")] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Continue the text as it is, without a conversation around it."),
    ] = False,
    system: Annotated[str, typer.Option(help="System message of the conversation.")] = "",
    thinking: Annotated[bool, typer.Option(help="Think before answering.")] = True,
    effort: Annotated[str | None, typer.Option(help="How long to think: high or max.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to make.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help=f"0: always the likeliest token. {MODELS_OWN}"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help=f"Share of probability to draw from. {MODELS_OWN}"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
) -> None:
    """Answer one prompt without a server; reasoning goes to standard error.

    Example: `relight generate "What is 4821 + 937?"`
    """
    from relight.cli.progress import load_bar
    from relight.llm import LLM

    text = _prompt(prompt, file)
    given = {
        name: getattr(loaded.settings, name)
        for name, source in loaded.sources.items()
        if source != "default"
    }
    with load_bar(show.console(stderr=True)) as progress:
        llm = LLM(progress=progress, **given)
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    if raw:
        _print(llm.stream(text, **options))
        return
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    _print(llm.stream_chat(messages, thinking=thinking, effort=effort, **options))


def _prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise BadSetting("prompt and --file are both given; give one", param="file")
    if prompt is not None:
        return prompt
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(f"{file} cannot be read as text: {error}", param="file") from error
    if sys.stdin.isatty():
        raise BadSetting("there is no prompt; give a text, --file or standard input")
    return sys.stdin.read()


def _print(pieces: "Iterator[Piece]") -> None:
    from relight.session import CallStart, Finish
    from relight.text.parse import Content, Reasoning, ToolCallArguments

    thinks = False
    for piece in pieces:
        if thinks and not isinstance(piece, Reasoning):
            print(flush=True, file=sys.stderr)
        thinks = isinstance(piece, Reasoning)
        match piece:
            case Content(text=text):
                print(text, end="", flush=True)
            case Reasoning(text=text) | ToolCallArguments(text=text):
                print(text, end="", flush=True, file=sys.stderr)
            case CallStart(name=name):
                print(f"\ncall of {name}: ", end="", file=sys.stderr)
            case Finish(reason=reason, usage=usage):
                print(flush=True)
                print(
                    f"[{reason}: {usage.prompt_tokens} prompt tokens, "
                    f"{usage.completion_tokens} made]",
                    file=sys.stderr,
                )
