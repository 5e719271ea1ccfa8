"""Turns a conversation into the exact token ids that DeepSeek-V4 and V4.1 were trained on. Knows
nothing of requests, engines or HTTP."""

from collections.abc import Sequence

from msgspec.structs import replace

from relight.base.errors import BadCheckpoint, BadRequest
from relight.text.conversation import Conversation, Message, Tool
from relight.text.dialect import Encoding, load_dialect
from relight.text.dsml import Tags, open_block, python_json, render_calls
from relight.text.literals import FixedText
from relight.text.tokenizer import SPELLING, Tokenizer
from relight.text.turns import AssistantTurn, ReminderTurn, SystemTurn, Turn, UserTurn, arrange
from relight.text.writer import Prompt, Recall, Writer


class PromptEncoder:
    """Encodes conversations for one checkpoint. Thread-safe: it holds constants only.

    Only the encoder's own markers become special ids. Text between two markers is encoded as one
    run, whoever wrote its parts, without the added vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, encoding: Encoding = "v4") -> None:
        """Raises `BadCheckpoint` if the vocabulary lacks a marker of the encoding."""
        self._tokenizer = tokenizer
        self._dialect = load_dialect(encoding)
        self._literals = self._dialect.literals
        if self._dialect.marks_system and tokenizer.special.system is None:
            raise BadCheckpoint(
                f"tokenizer.json has no token {SPELLING['system']}, which the encoding "
                f"{encoding} needs; choose another one (--encoding)"
            )

    @property
    def tags(self) -> Tags:
        """Those of the calls that it writes."""
        return self._dialect.tags

    def encode(self, conversation: Conversation, recall: Recall | None = None) -> Prompt:
        """Past answers that `recall` finds stand as they were made. Raises `BadRequest` for what
        cannot be written down as asked."""
        _check_choice(conversation)
        system, turns = arrange(conversation, hoist=not self._dialect.marks_system)
        mark = self._tokenizer.special
        out = Writer(self._tokenizer, recall)
        out.add(mark.bos)
        self._write_system(out, system, conversation)
        keep_from = self._keep_reasoning_from(conversation, turns)
        for i, turn in enumerate(turns):
            match turn:
                case UserTurn():
                    out.begin_turn(turn.message, of_user=True)
                    out.add(mark.user, _user_text(turn))
                case ReminderTurn(text=text):
                    out.begin_turn(turn.message)
                    out.add(mark.latest_reminder, text)
                case SystemTurn(text=text):
                    out.begin_turn(turn.message)
                    out.add(self._system, text)
                case AssistantTurn(said=said):
                    out.begin_turn(turn.message)
                    if conversation.continue_final and i == len(turns) - 1:
                        return self._continue(out, said, conversation.thinking)
                    self._write_assistant(out, turn, keep_reasoning=i >= keep_from)
        out.add(mark.assistant, mark.think_open if conversation.thinking else mark.think_close)
        out.begin_body()
        if conversation.thinking:
            return out.prompt("reasoning")
        if conversation.tool_choice != "required":
            return out.prompt("content")
        out.add(*open_block(self._dialect.tags, mark.dsml))
        return out.prompt("tools")

    @property
    def _system(self) -> int:
        marker = self._tokenizer.special.system
        assert marker is not None, "an encoding that writes it has it"
        return marker

    def _keep_reasoning_from(self, conversation: Conversation, turns: Sequence[Turn]) -> int:
        """The index of the first turn that shows its reasoning. With tools, or on request, all do.
        Else none does, but that V4.1 shows those of a round of tool calls that is not finished."""
        if not conversation.thinking:
            return len(turns)
        if conversation.usable_tools or conversation.keep_reasoning:
            return 0
        if not self._dialect.marks_system:
            return len(turns)
        starts = [i for i, turn in enumerate(turns) if _starts_round(turn)]
        return starts[-1] if starts else 0

    def _write_system(self, out: Writer, system: str, conversation: Conversation) -> None:
        effort = self._dialect.effort_text(conversation.effort) if conversation.thinking else ()
        has_format = conversation.response_format != "text"
        if self._dialect.marks_system and (
            system or effort or conversation.usable_tools or has_format
        ):
            out.add(self._system)
        self._write_fixed(out, effort)
        out.add(system)
        if tools := conversation.usable_tools:
            out.add("\n\n")
            self._write_fixed(out, self._literals.tools_head)
            out.add("\n".join(map(_schema_line, tools)))
            self._write_fixed(out, self._literals.tools_tail)
        if has_format:
            out.add("\n\n")
            self._write_fixed(out, getattr(self._literals, conversation.response_format))
        if conversation.response_format == "json_schema":
            out.add(python_json(conversation.response_schema))

    def _write_fixed(self, out: Writer, pieces: FixedText) -> None:
        special = self._tokenizer.special
        for piece in pieces:
            out.add(getattr(special, piece.marker) if piece.marker else piece.text)

    def _write_assistant(self, out: Writer, turn: AssistantTurn, keep_reasoning: bool) -> None:
        """A finished turn. One that keeps its reasoning shows an absent one as empty."""
        mark = self._tokenizer.special
        said = turn.said if keep_reasoning else replace(turn.said, reasoning=None)
        out.add(mark.assistant, mark.think_open if keep_reasoning else mark.think_close)
        out.begin_body(turn.message, said)
        if keep_reasoning:
            out.add(said.reasoning or "", mark.think_close)
        out.add(said.content or "")
        if said.tool_calls:
            out.add(*render_calls(said.tool_calls, self._dialect.tags, mark.dsml))
        out.end_body()
        out.add(mark.eos)

    def _continue(self, out: Writer, message: Message, thinking: bool) -> Prompt:
        """The last turn left open. Reasoning without content is itself what goes on."""
        mark = self._tokenizer.special
        reasoning, content = message.reasoning or "", message.content or ""
        out.add(mark.assistant)
        if thinking:
            out.add(mark.think_open, reasoning)
            if not content:
                return out.prompt("reasoning", continued=bool(reasoning))
        out.add(mark.think_close, content)
        return out.prompt("content", continued=bool(content))


def _user_text(turn: UserTurn) -> str:
    results = [f"<tool_result>{result}</tool_result>" for result in turn.results]
    return "\n\n".join(results if turn.text is None else [*results, turn.text])


def _starts_round(turn: Turn) -> bool:
    """Whether what comes after it is a new round: results alone go on with the old one."""
    return isinstance(turn, SystemTurn) or (isinstance(turn, UserTurn) and turn.text is not None)


def _schema_line(tool: Tool) -> str:
    """Always the three keys, so that a client's extra ones never change the cached prefix."""
    schema = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": {} if tool.parameters is None else tool.parameters,
    }
    return python_json(schema)


def _check_choice(conversation: Conversation) -> None:
    if conversation.tool_choice == "required" and not conversation.tools:
        raise BadRequest(
            "tool_choice forces a call and there are no tools; send tools, or 'auto'",
            param="tool_choice",
        )
