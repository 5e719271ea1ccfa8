"""The `relight` command. Knows no model: each command imports what it needs when run."""

import typer

from relight import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Relight: an inference engine and server for DeepSeek-V4-Flash."""


@app.command()
def version() -> None:
    """Prints the version."""
    print(__version__)


def main() -> None:
    app()
