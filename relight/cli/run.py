"""The commands that run a model or look at the machine. Knows no setting by name."""

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Say what this machine can run, what will not work, and what to do.

    Example: `relight doctor --json > doctor.json`
    """
    import msgspec

    from relight.cli.doctor import print_report
    from relight.lab.doctor import examine

    report = examine()
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_report(report)
