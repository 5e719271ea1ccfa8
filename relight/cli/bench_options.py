"""Options that several commands of the benchmark share. Knows no command."""

from pathlib import Path
from typing import Annotated

import typer

SCENARIO = Annotated[str, typer.Argument(help="A YAML file or a shipped name, such as chat.")]
URL = Annotated[str, typer.Option(help="The server, as http://host:port.")]
CELL = Annotated[
    str, typer.Option(help="Change fields of classes: users=4,long.input_tokens=4096.")
]
LOW = Annotated[str, typer.Option("--from", help="Shortest prompt, in tokens.")]
HIGH = Annotated[str, typer.Option("--to", help="Longest; between them it doubles.")]
BASE = Annotated[str, typer.Option(help="File whose body, corpus and limits to take.")]
MODEL = Annotated[str, typer.Option(help="Needed only when a server has several models.")]
OUT = Annotated[Path, typer.Option(help="Folder for all result files.")]
KEY = Annotated[Path | None, typer.Option(help="File with the server's key; never stored.")]
CLIENTS = Annotated[int, typer.Option(min=1, help="Client processes that share the load.")]
START = Annotated[
    str, typer.Option(help="Command that starts the server; it is stopped at the end.")
]
READY = Annotated[float, typer.Option(help="Seconds that a started server may take to answer.")]
RESULTS = Path("bench-results")
