"""The commands that serve, check promises and look at the machine. Knows no model."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.knobs import GROUPS
from relight.base.settings import Loaded
from relight.cli import show
from relight.cli.options import ENGINE, with_settings

if TYPE_CHECKING:
    from relight.serve.main import Ready


@with_settings(*GROUPS)
def serve(loaded: Loaded) -> None:
    """Serve a model over HTTP with the OpenAI protocol.

    Example: `relight serve --model /models/DeepSeek-V4-Flash --port 8000`
    """
    from relight.base.config import read_config
    from relight.base.logs import configure
    from relight.base.packaged import model_folder
    from relight.cli.progress import load_bar
    from relight.serve.main import serve as serve_http

    # A wrong folder is told before anything is started.
    read_config(model_folder(loaded.settings.model))
    configure("server", loaded.settings.log_level, loaded.settings.log_format)
    show.settings(loaded)
    with ExitStack() as stack:
        progress = stack.enter_context(load_bar(show.console()))

        def ready(told: "Ready") -> None:
            stack.close()
            show.engine(told.info)
            show.memory(told.info)
            show.line(f"Serving {told.info.model} on {told.url}. Try:")
            show.line(told.curl)

        serve_http(loaded.settings, progress=progress, ready=ready)


@with_settings(*ENGINE)
def audit(loaded: Loaded) -> None:
    """Check on this machine that load, chunks and a warm cache never change the text.

    Example: `relight audit --device cpu`
    """
    from relight.lab.audit import Audit
    from relight.lab.inprocess import start_in_process

    show.settings(loaded, ENGINE)
    verdicts = []
    for promise in Audit(loaded.settings, start_in_process).promises():
        show.line(f"{promise.verdict}: {promise.text} ({promise.detail})")
        verdicts.append(promise.verdict)
    if "not kept" in verdicts:
        raise typer.Exit(1)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    audit: Annotated[bool, typer.Option(help="Check the promises on a small model, too.")] = True,
) -> None:
    """Say what this machine can run, what will not work, and what to do.

    Example: `relight doctor --json > doctor.json`
    """
    import msgspec

    from relight.cli.doctor import print_report
    from relight.lab.doctor import examine

    if audit:
        show.line("Checking the promises on a small model …", stderr=True)
    report = examine(audit=audit)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_report(report)
