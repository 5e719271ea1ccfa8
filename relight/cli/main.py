"""The `relight` command. Knows no model: each command imports what it needs when it is run."""

import sys

import typer

from relight import __version__
from relight.base.errors import RelightError
from relight.cli import bench, chat, checkpoint, evaluate, generate, kernels, run, show, step
from relight.engine.openmp import let_threads_sleep

REMEDY = "give another path, or see to its rights and to free space"

app = typer.Typer(
    name="relight",
    help="Relight: an inference engine and server for DeepSeek-V4-Flash.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    run.serve,
    chat.chat,
    generate.generate,
    checkpoint.inspect,
    checkpoint.synth,
    checkpoint.convert,
    run.doctor,
    run.audit,
    step.step,
):
    app.command()(command)
app.command("eval")(evaluate.evaluate)
app.add_typer(bench.app)
app.add_typer(kernels.app)


@app.command()
def version() -> None:
    """Print the version.

    Example: `relight version`
    """
    print(__version__)


def main() -> None:
    """Runs the command line. A user's error is one line and exit code 2, never a traceback."""
    let_threads_sleep()
    try:
        app()
    except RelightError as problem:
        show.error(problem.message)
    except OSError as problem:
        if problem.strerror is None:  # raised by code, not by the system
            raise
        show.error(f"{problem.filename or 'the system'}: {problem.strerror}; {REMEDY}")
    else:
        return
    sys.exit(2)
