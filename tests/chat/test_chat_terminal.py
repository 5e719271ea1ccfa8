"""The command as a user meets it: on a terminal, and in a pipe."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from relight.base.types import Request, TokenDelta
from relight.engine.replay import ReplayClient
from tests.chat.terminal import Program
from tests.serve.fakes import EOS, TOKENIZER, live, rig, tokens

GOLDEN = Path(__file__).parent.parent / "golden"
COMMAND = [sys.executable, "-c", "from relight.cli.main import main; main()", "chat"]
PASTE = "\x1b[200~first line\rsecond line\x1b[201~"
CTRL_C, CTRL_D, CTRL_T = "\x03", "\x04", "\x14"

READY = "Ctrl-D leaves\n>"
ANSWER = "carry the one</think># Sum\n\nIt is **12**." + EOS


class Holding(ReplayClient):
    """To a prompt with the word `slow` it says two tokens, and then nothing until it is aborted."""

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        slow = "slow" in TOKENIZER.decode(request.prompt).split("<｜User｜>")[-1]
        made = cast(Any, super().generate(request))
        async with aclosing(made) as deltas:
            async for delta in deltas:
                yield delta
                if slow and self.num_tokens == 2:
                    await asyncio.Event().wait()


def answer(request: Request) -> Sequence[int]:
    return tokens(ANSWER)


def test_a_chat_on_a_terminal() -> None:
    one = rig(Holding(answer))
    with live(one) as url, Program([*COMMAND, "--url", f"{url}/v1"]) as program:
        program.wait_for(READY)
        program.type("7+5?\r")
        program.wait_for("cached")
        first = program.screen.text
        assert "> 7+5?" in first
        assert "▸ thought for" in first
        assert "It is 12." in first
        assert "carry the one" not in first

        program.type(CTRL_T)
        program.wait_for("▾ carry the one\n>")

        program.type(PASTE + "\r")
        program.wait_for("second line")
        program.type("/save\r")  # an error, and the chat goes on
        program.wait_for("needs the name of a file\n>")
        assert "first line\nsecond line" in TOKENIZER.decode(one.client.requests[-1].prompt)

        program.type(CTRL_D)
        assert program.wait_end() == 0


def test_ctrl_c_stops_an_answer_at_the_server_and_keeps_the_chat() -> None:
    one = rig(Holding(answer))
    with live(one) as url, Program([*COMMAND, "--url", f"{url}/v1"]) as program:
        program.wait_for(READY)
        program.type("slow\r")
        program.wait_for("thinking")
        program.type(CTRL_C)
        program.wait_for("stopped\n\n> slow")  # it had no content yet: the text is offered again
        program.type(CTRL_C)
        program.wait_for("/quit leaves\n>")
        program.type(CTRL_D)
        assert program.wait_end() == 0
    assert one.client.aborted == [request.id for request in one.client.requests]


def test_a_server_that_goes_leaves_the_text_to_be_sent_again() -> None:
    one = rig(Holding(answer))
    with live(one) as url:
        program = Program([*COMMAND, "--url", f"{url}/v1"])
        program.wait_for(READY)
    with program:
        program.type("are you there?\r")
        program.wait_for("cannot be reached")
        program.wait_for("running?\n> are you there?")
        program.type(CTRL_C + CTRL_D)
        assert program.wait_end() == 0


def test_piped_lines_are_answered_in_plain_text_without_a_server(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / "v4" / "checkpoint", folder)
    shutil.copy(GOLDEN / "text" / "tokenizer.json", folder)
    engine = ["--model", str(folder), "--device", "cpu", "--threads", "1", "--num-slots", "2"]
    options = ["--no-thinking", "--max-tokens", "4", "--temperature", "0"]
    saved = tmp_path / "chat.json"
    done = subprocess.run(
        [*COMMAND, *engine, *options],
        input=f"Hi\n/save {saved}\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "[4 tokens" in done.stderr
    said = json.loads(saved.read_text(encoding="utf-8"))
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert done.stdout.startswith(said[1]["content"])


def test_without_any_flag_the_model_inside_the_package_answers() -> None:
    done = subprocess.run(
        COMMAND, input="/think off\nWhat is 12 + 30?\n", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("12 + 30 = 42.\n")


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--tools", "absent.json"]])
def test_what_cannot_act_is_one_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "--url", "http://127.0.0.1:1/v1", "--model", "x", *arguments],
        input="",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_fault_in_a_pipe_shows_in_the_exit_code() -> None:
    done = subprocess.run(
        [*COMMAND, "--url", "http://127.0.0.1:1/v1", "--model", "x"],
        input="Hi\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be reached" in done.stderr
