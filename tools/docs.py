"""Writes the documents that are generated from code, or with --check tells which are stale."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from relight.base.knobs import GROUPS, Knob
from relight.base.metrics import COMMON_LABELS, METRICS
from relight.base.settings import KNOBS, NEEDS
from relight.cli.main import app
from relight.cli.options import SETTINGS_PANEL
from tools.docs_api import api
from tools.docs_bench import scenarios

ROOT = Path(__file__).resolve().parent.parent
BANNER = "<!-- Written by `make docs` from the code. Do not edit. -->\n"


def settings() -> Iterator[str]:
    yield "# Settings\n"
    yield BANNER
    yield (
        "A value comes from the flag, else the variable, else the file given with `--config`,\n"
        "else the default. The file is TOML, one `name = value` a line. Unknown names and values\n"
        "out of range are refused. Bytes may be written as `1048576`, `512 MiB` or `8 GiB`.\n"
    )
    for group in GROUPS:
        yield f"## {group.capitalize()}\n"
        yield "| name, flag, variable | default | values | meaning |\n| --- | --- | --- | --- |"
        for knob in KNOBS.values():
            if knob.group == group:
                yield _row(knob)
        yield ""


def _row(knob: Knob) -> str:
    default = knob.show(knob.default) or '""'
    meaning = knob.help
    if knob.name in NEEDS:
        other, value = NEEDS[knob.name]
        meaning += f"; refused unless `{other}` is `{value}`"
    names = f"`{knob.name}`<br>`{knob.flag}`<br>`{knob.variable}`"
    return f"| {names} | `{default}` | {knob.wanted.split(', written')[0]} | {meaning} |"


def commands() -> Iterator[str]:
    yield "# Commands\n"
    yield BANNER
    root: Any = typer.main.get_command(app)
    for name, command in _leaves("", root):
        yield f"## relight {name}\n"
        yield "\n".join(line.strip() for line in command.help.strip().splitlines()) + "\n"
        own = [param for param in command.params if not _is_setting(param)]
        if own:
            yield "| parameter | meaning |\n| --- | --- |"
            for param in own:
                yield f"| {_usage(param)} | {param.help or ''}{_default(param)} |"
            yield ""
        groups = {KNOBS[param.name].group for param in command.params if _is_setting(param)}
        if groups:
            links = ", ".join(f"[{g}](settings.md#{g})" for g in GROUPS if g in groups)
            yield f"And a flag for each setting of: {links}.\n"


def _is_setting(param: Any) -> bool:
    """A command may have a flag of its own that is named like a setting."""
    return (getattr(param, "rich_help_panel", None) or "").startswith(SETTINGS_PANEL)


def _leaves(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, those of groups among them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(f"{prefix}{name} ", command)
        else:
            yield f"{prefix}{name}", command


def _usage(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.name.upper()}`" + ("" if param.required else " (optional)")
    return " ".join(f"`{option}`" for option in [*param.opts, *param.secondary_opts])


def _default(param: Any) -> str:
    """A switch is off unless its help or a second name says otherwise."""
    if isinstance(param.default, bool):
        return f" [default: {'on' if param.default else 'off'}]" if param.secondary_opts else ""
    return "" if param.default in (None, "") or param.required else f" [default: {param.default}]"


def metrics() -> Iterator[str]:
    yield "# Metrics\n"
    yield BANNER
    common = " and ".join(f"`{label}`" for label in COMMON_LABELS)
    yield f"`GET /metrics`, in Prometheus' text form. Every metric has the labels {common}."
    yield "Beside them stand the usual `process_*` of the server's process.\n"
    yield "| name | kind | further labels | meaning |\n| --- | --- | --- | --- |"
    for metric in METRICS:
        name = metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{name}` | {metric.kind} | {labels} | {metric.help} |"


ROOMS = (
    "cli",
    "bench",
    "lab",
    "serve",
    "chat",
    "session",
    "ember",
    "engine",
    "model",
    "kernels",
    "cache",
    "text",
    "base",
)
"""From the top layer down."""
TREE = re.compile(r"(<!-- rooms: .*? -->\n).*(<!-- end of rooms -->\n)", re.DOTALL)


def rooms() -> Iterator[str]:
    """What each room is for, in the words of its own first sentence."""
    yield "```text"
    yield "relight/"
    for room in ROOMS:
        source = (ROOT / "relight" / room / "__init__.py").read_text(encoding="utf-8")
        doc = ast.get_docstring(ast.parse(source))
        assert doc, f"relight/{room}/__init__.py does not say what the room is for"
        sentence = " ".join(doc.split()).split(". ")[0].removesuffix(".")
        yield f"  {room + '/':10}{sentence}"
    yield "```"


def readme(text: str) -> str:
    """README.md with the table of rooms as the code has it."""
    tree = "\n".join(rooms()) + "\n"
    written, count = TREE.subn(lambda match: match[1] + tree + match[2], text)
    assert count == 1, "README.md has no place for the rooms"
    return written


def protocols() -> Iterator[str]:
    yield "# Protocols\n"
    yield BANNER
    yield from api()


DOCUMENTS = {
    "settings.md": settings,
    "commands.md": commands,
    "metrics.md": metrics,
    "api.md": protocols,
    "scenarios.md": scenarios,
}


def main(check: bool, root: Path = ROOT) -> int:
    texts = {f"docs/{n}": "\n".join(w()).rstrip("\n") + "\n" for n, w in DOCUMENTS.items()}
    texts["README.md"] = readme((root / "README.md").read_text(encoding="utf-8"))
    stale = 0
    for name, text in texts.items():
        file = root / name
        if check and (not file.exists() or file.read_text(encoding="utf-8") != text):
            print(f"{name} does not match the code; run make docs")
            stale += 1
        elif not check:
            file.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
