"""What begins with a slash: help, switches, saving. Knows no source and no key."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import BadSetting
from relight.chat.dialogue import Dialogue, as_json, as_markdown
from relight.chat.view import View

COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
KEYS = (
    "Enter sends, Alt-Enter begins a new line, Ctrl-T unfolds the last thinking,\n"
    "Ctrl-C stops an answer, Ctrl-D leaves."
)


class Leave(Exception):
    """The user asked to end the chat."""


@dataclass(frozen=True, slots=True)
class Command:
    """`does` gets what stands behind the name; it raises BadSetting for what it cannot take."""

    usage: str
    help: str
    does: Callable[[str], None]


class Commands:
    """`reasoning` gives that of the last answer."""

    def __init__(self, dialogue: Dialogue, view: View, reasoning: Callable[[], str]) -> None:
        self._dialogue = dialogue
        self._view = view
        self._reasoning = reasoning
        listed = (
            Command("/help", "this list", self._help),
            Command("/new", "begin again; switches and system message stay", self._new),
            Command("/think on|off", "whether the model thinks before it answers", self._think),
            Command("/effort WORD", "how long it thinks: high or max; none: its own", self._effort),
            Command("/system TEXT", "set the system message; no text: remove it", self._system),
            Command("/reasoning", "unfold the last thinking", self._unfold),
            Command("/save FILE", "write the chat: messages if .json, else Markdown", self._save),
            Command("/quit", "leave", self._quit),
        )
        self._commands: Mapping[str, Command] = {
            command.usage.split()[0][1:]: command for command in listed
        }

    def run(self, text: str) -> bool:
        """Whether the text was a command. A path is none, nor is anything behind a space. Raises
        `Leave`, and BadSetting for a command that does not exist or act."""
        match = COMMAND.fullmatch(text)
        if match is None:
            return False
        command = self._commands.get(match[1])
        if command is None:
            raise BadSetting(f"there is no command /{match[1]}; /help lists them")
        command.does((match[2] or "").strip())
        return True

    def _help(self, _: str) -> None:
        width = max(len(command.usage) for command in self._commands.values())
        lines = [f"{c.usage:{width}}  {c.help}" for c in self._commands.values()]
        self._view.say("\n".join([*lines, KEYS]))

    def _new(self, _: str) -> None:
        self._dialogue.messages.clear()
        self._view.say("a new chat")

    def _think(self, word: str) -> None:
        if word not in ("on", "off"):
            raise BadSetting(f"/think is told {word!r}; wanted on or off")
        self._dialogue.thinking = word == "on"
        self._view.say(f"thinking is {word}")

    def _effort(self, word: str) -> None:
        self._dialogue.effort = None if word in ("", "none") else word
        self._view.say(f"effort is {self._dialogue.effort or 'up to the model'}")

    def _system(self, text: str) -> None:
        self._dialogue.system = text
        self._view.say("the system message is set" if text else "there is no system message")

    def _unfold(self, _: str) -> None:
        reasoning = self._reasoning()
        if reasoning:
            self._view.unfold(reasoning)
        else:
            self._view.say("the last answer had no thinking")

    def _save(self, name: str) -> None:
        if not name:
            raise BadSetting("/save needs the name of a file")
        file = Path(name).expanduser()
        messages = self._dialogue.whole
        text = as_json(messages) if file.suffix == ".json" else as_markdown(messages)
        try:
            with file.open("x", encoding="utf-8") as stream:  # what is there stays
                stream.write(text)
        except OSError as problem:
            raise BadSetting(f"{file} cannot be written: {problem.strerror}") from problem
        self._view.say(f"saved {len(messages)} messages to {file}")

    def _quit(self, _: str) -> None:
        raise Leave
