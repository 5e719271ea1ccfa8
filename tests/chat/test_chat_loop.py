"""Chats in plain text, from a scripted source."""

import io
from pathlib import Path

import pytest

from relight.base.errors import Overloaded, Unavailable
from relight.chat.dialogue import Dialogue
from relight.chat.lines import Piped
from relight.chat.view import Plain
from relight.text.parse import Content, Reasoning
from tests.chat.scripted import INTERRUPT, TOOL, Scripted, Typed, called, said, talk, thoughtful


class Transcript:
    """A plain view and what it wrote."""

    def __init__(self) -> None:
        self._out, self._log = io.StringIO(), io.StringIO()
        self.view = Plain(self._out, self._log)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def errors(self) -> list[str]:
        lines = self._log.getvalue().splitlines()
        return [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]

    @property
    def figures(self) -> list[str]:
        return [line for line in self._log.getvalue().splitlines() if line.startswith("[")]


def contents(source: Scripted, turn: int) -> list[str | None]:
    return [message.content for message in source.asks[turn].messages]


def test_lines_in_are_answers_out_and_nothing_else() -> None:
    told = Transcript()
    source = Scripted(thoughtful("two and two", "It is 4."), said("Bye.\n"))
    lines = Piped(io.StringIO("2+2?\n\n  \nBye\r\n"))
    talk(source, told.view, lines)  # type: ignore[arg-type]
    assert told.out == "It is 4. \nBye.\n"
    assert contents(source, 1) == ["2+2?", "It is 4. ", "Bye"]
    assert told.errors == []


def test_figures_are_those_of_the_usage() -> None:
    told = Transcript()
    talk(Scripted(thoughtful("a b", "c d e")), told.view, Typed("x"))
    # The clock ticks once an event: asked at 0, the first at 1, the last of five at 5.
    (line,) = told.figures
    assert "9 tokens (2 thinking)" in line
    assert "first 1.00 s" in line
    assert "2.0 tokens/s" in line
    assert "8 of 20 cached" in line


@pytest.mark.parametrize("fault", [Unavailable("it is gone"), Overloaded("busy\nnow")])
def test_a_fault_is_one_line_and_the_text_is_offered_again(fault: Exception) -> None:
    told = Transcript()
    source = Scripted([Content("half an"), fault], said("whole"))
    lines = Typed("hello", "hello")
    chat = talk(source, told.view, lines)
    assert told.errors == [str(fault).replace("\n", " ")]
    assert lines.offered == ["", "hello", ""]
    assert contents(source, 1) == ["hello"]
    assert told.out.endswith("whole\n")
    assert chat.num_faults == 1


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said() -> None:
    told = Transcript()
    source = Scripted([Content("Once upon"), INTERRUPT], said("ok"))
    lines = Typed("a tale", "go on")
    talk(source, told.view, lines)
    assert source.closed == 2
    assert contents(source, 1) == ["a tale", "Once upon", "go on"]
    assert "stopped" in told.figures[0]
    assert lines.offered == ["", "", ""]


def test_ctrl_c_before_any_content_gives_the_text_back() -> None:
    told = Transcript()
    source = Scripted([Reasoning("hm "), INTERRUPT], said("ok"))
    lines = Typed("slow?", "/reasoning", "quick")
    talk(source, told.view, lines)
    assert lines.offered[1] == "slow?"
    assert "hm" in told.out
    assert contents(source, 1) == ["quick"]


def test_ctrl_c_at_the_prompt_leaves_the_chat_alone() -> None:
    told = Transcript()
    source = Scripted(said("one"), said("two"))
    talk(source, told.view, Typed("a", KeyboardInterrupt, "b"))
    assert contents(source, 1) == ["a", "one", "b"]


def test_ctrl_c_ends_a_script() -> None:
    with pytest.raises(KeyboardInterrupt):
        talk(
            Scripted([Content("x"), INTERRUPT]),
            Transcript().view,
            Typed("a", "b", interactive=False),
        )


def test_calls_are_shown_and_their_results_typed() -> None:
    told = Transcript()
    source = Scripted(called('{"city": "Paris"}', '{"city": "Rome"}'), said("Sunny, rain."))
    lines = Typed("weather?", "sunny", "rain")
    talk(source, told.view, lines, Dialogue(tools=(TOOL,)))
    assert lines.prompts == ["> ", "result of weather> ", "result of weather> ", "> "]
    assert 'weather({"city": "Paris"})\nweather({"city": "Rome"})\n' in told.out
    _, assistant, first, second = source.asks[1].messages
    assert assistant.reasoning == "need it"
    assert [call.id for call in assistant.tool_calls] == ["id0", "id1"]
    assert (first.tool_call_id, first.content) == ("id0", "sunny")
    assert (second.tool_call_id, second.content) == ("id1", "rain")


def test_half_a_call_is_not_part_of_the_chat() -> None:
    source = Scripted([Content("I look."), *called("{}")[:3], INTERRUPT], said("ok"))
    talk(source, Transcript().view, Typed("weather?", "so?"), Dialogue(tools=(TOOL,)))
    assert [m.role for m in source.asks[1].messages] == ["user", "assistant", "user"]
    assert source.asks[1].messages[1].tool_calls == ()


def test_switches_act_on_the_next_turn() -> None:
    source = Scripted(said("a"), said("b"), said("c"))
    talk(
        source,
        Transcript().view,
        Typed("1", "/think off", "/effort max", "/system Be brief.\nVery.", "2", "/new", "3"),
    )
    first, second, third = source.asks
    assert (first.thinking, first.effort, len(first.messages)) == (None, None, 1)
    assert (second.thinking, second.effort) == (False, "max")
    assert second.messages[0].content == "Be brief.\nVery."
    assert [m.content for m in third.messages] == ["Be brief.\nVery.", "3"]


def test_help_names_every_command_that_there_is() -> None:
    told = Transcript()
    talk(Scripted(), told.view, Typed("/help"))
    for name in ("/help", "/new", "/think", "/effort", "/system", "/reasoning", "/save", "/quit"):
        assert name in told.out


def test_quit_leaves_at_once() -> None:
    source = Scripted()
    talk(source, Transcript().view, Typed("/quit", "never sent"))
    assert source.asks == []


@pytest.mark.parametrize("text", ["/bogus", "/think perhaps", "/save", "/save /nowhere/at/all"])
def test_a_wrong_command_is_told_and_never_sent(text: str) -> None:
    told = Transcript()
    source = Scripted(said("ok"))
    talk(source, told.view, Typed(text, "hello"))
    assert len(told.errors) == 1
    assert contents(source, 0) == ["hello"]


@pytest.mark.parametrize("text", ["/usr/bin is what?", " /help", "a /quit"])
def test_a_slash_that_begins_no_command_is_text(text: str) -> None:
    source = Scripted(said("ok"))
    talk(source, Transcript().view, Typed(text))
    assert contents(source, 0) == [text]


def test_save_writes_the_chat_and_overwrites_nothing(tmp_path: Path) -> None:
    told = Transcript()
    file = tmp_path / "chat.md"
    save = f"/save {file}"
    talk(Scripted(thoughtful("why", "Because.")), told.view, Typed("why?", save, save))
    text = file.read_text(encoding="utf-8")
    assert "## user\n\nwhy?" in text
    assert "> why" in text
    assert "Because." in text
    (error,) = told.errors
    assert "exists" in error
