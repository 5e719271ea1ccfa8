"""Fills rows of a fixed length with conversations, as the server would render them, and says of
every token whether it is to be learnt. Knows no torch.

A row is one conversation from its first token on, never two: a prompt always starts at position 0
when it is served, and compression counts windows from there. Rows are filled with further turns.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from relight.ember import arithmetic, documents, letters, tools
from relight.ember.tasks import ROOM, Output, arithmetic_output, letters_output
from relight.ember.words import LANGUAGES, Language
from relight.text.conversation import Conversation, Message, Tool
from relight.text.dialect import Encoding
from relight.text.dsml import render_calls
from relight.text.prompt import PromptEncoder
from relight.text.tokenizer import Segment, Tokenizer
from training import recall
from training.smalltalk import draw_system, draw_talk
from training.snippets import draw_snippet

PAD, PROMPT, DOCUMENT = 0, 1, 2
SLICES = ("talk", "arithmetic", "letters", "tool call", "tool result", "key", "python", "recall")
TAG = {name: 3 + i for i, name in enumerate(SLICES)}
"""What each target token belongs to: padding, the client's text, a long document, or an answer."""

EFFORTS = (None, None, "low", "low", "max")
"""Efforts of thinking conversations: the default, the least and the most; of V4 no prefix and the
longest."""


CHAT_KINDS = "aaaaallllltttp"
"""Of turns, by the first letter of what is asked: arithmetic, letters, talk, python."""

PIECES = re.compile(r"\d|[A-Za-z]{1,6}|[^\sA-Za-z\d]")


@dataclass(frozen=True, slots=True)
class Row:
    ids: npt.NDArray[np.uint16]  # [length + 1]
    tags: npt.NDArray[np.uint8]  # [length], of the token after each


@dataclass(frozen=True, slots=True)
class Turn:
    slice: str
    question: str
    output: Output
    tool_result: str | None = None  # answers the call of `output`; the next turn has no question


class RowMaker:
    """Draws rows. One for each process; deterministic in the random numbers that it is given."""

    def __init__(self, tokenizer: Tokenizer, encoding: Encoding) -> None:
        self.tokenizer = tokenizer
        self.encoder = PromptEncoder(tokenizer, encoding)
        self.special = tokenizer.special
        self._density: dict[Language, float] = {}

    def estimate(self, text: str) -> int:
        """About the number of tokens of one kind of text, without the cost of encoding it."""
        return len(PIECES.findall(text)) + 1

    def _filler_length(self, language: Language) -> Callable[[str], int]:
        """Tokens of a sentence by its characters: exact to a percent over a whole document."""
        if language not in self._density:
            rng = Random(0)
            text = " ".join(documents.filler_sentence(rng, language) for _ in range(400))
            self._density[language] = 1.03 * len(self.tokenizer.encode_text(text)) / len(text)
        density = self._density[language]
        return lambda text: round(len(text) * density + 0.5)

    def thinking_row(self, rng: Random, length: int) -> Row:
        """Talk before, whose reasoning is gone by now, then one thought answer."""
        language = _language(rng)
        turns = [self._chat_turn(rng, language, thinking=True, kinds="aaaalllltp")]
        effort = rng.choice(EFFORTS)
        output = turns[0].output
        left = length - (2 if effort == "low" else 95) - self.estimate(turns[0].question)
        left -= self.estimate(output.content) + self.estimate(output.reasoning or "")
        while rng.random() < 0.6:
            turn = self._chat_turn(rng, _language(rng), thinking=True, kinds="altp")
            left -= self.estimate(turn.question) + self.estimate(turn.output.content) + 4
            if left < 8:
                break
            turns.insert(0, turn)
        system = draw_system(rng, language)
        return self._row(turns, (), True, effort, length, system=system, last_only=True)

    def chat_row(self, rng: Random, length: int, kinds: str = CHAT_KINDS) -> Row:
        """Turns without thinking until the row is full; mostly one language."""
        language = _language(rng)
        turns, left = [], length
        while left > 0:
            turn_language = language if rng.random() < 0.9 else _language(rng)
            turn = self._chat_turn(rng, turn_language, thinking=False, kinds=kinds)
            turns.append(turn)
            left -= self.estimate(turn.question) + self.estimate(turn.output.content) + 4
        return self._row(turns, (), False, None, length, system=draw_system(rng, language))

    def tools_row(self, rng: Random, length: int, asked: float = 0.7) -> Row:
        """Requests with calls, results and answers until the row is full; of `asked` only which
        tool it is."""
        language = _language(rng)
        box = tools.draw_toolbox(rng, language, "train", most=12)
        order = rng.sample(range(len(box.tools)), len(box.tools))
        thinking = rng.random() < 0.4
        left = length - 300 - 30 * len(box.tools)
        turns: list[Turn] = []
        while left > 0 or not turns:
            if rng.random() < 0.08:
                question, answer = draw_talk(rng, language)
                thought = "" if thinking else None
                turns.append(Turn("talk", question, Output(answer, reasoning=thought)))
                left -= 40
                continue
            # Each is asked for once before any is again, whose name could be copied from a call.
            which = order.pop() if order else None
            request = tools.draw_request(
                rng, language, box, by_name=rng.random() < 0.1, which=which
            )
            if rng.random() < asked:  # finding the tool is what is hard: practise that alone
                question, answer = recall.ask_tool(rng, language, request)
                thought = "" if thinking else None
                turns.append(Turn("recall", question, Output(answer, reasoning=thought)))
                left -= 30
                continue
            thought = request.thought(language) if thinking else None
            call = request.call(f"call_{len(turns)}")
            turns.append(
                Turn("tool call", request.text, Output("", (call,), thought), request.result)
            )
            thought = "" if thinking else None
            turns.append(
                Turn("tool result", "", Output(request.answer(language), reasoning=thought))
            )
            left -= 110
        effort = rng.choice(EFFORTS) if thinking else None
        system = draw_system(rng, language)
        return self._row(turns, box.tools, thinking, effort, length, system=system)

    def key_row(self, rng: Random, length: int) -> Row:
        """A document that fills the row, then questions for keys in it."""
        language = _language(rng)
        num_keys = rng.choice((1, 4, 8, 12, 16)) if rng.random() < 0.9 else 2
        asked = min(num_keys, 8)
        room = ROOM + 45 * (asked - 1)
        share = 1.0 if rng.random() < 0.6 else rng.uniform(0.3, 1.0)
        document = documents.draw_document(
            rng,
            language,
            "train",
            int((length - room) * share),
            self._filler_length(language),
            num_keys,
        )
        turns = []
        for hidden in rng.sample(document.hidden, asked):
            question = documents.question(rng, language, hidden)
            if not turns:
                question = f"{document.text}\n\n{question}"
            turns.append(Turn("key", question, Output(documents.answer(language, hidden))))
        return self._row(turns, (), False, None, length, document=True)

    def recall_row(self, rng: Random, length: int) -> Row:
        """A list, repeated whole or asked for one by one until the row is full. Half of its tokens
        can be known only by looking back beyond the window, which is what teaches looking back."""
        language = _language(rng)
        if rng.random() < 0.3:
            turns = self._repeated(rng, language, length)
        else:
            turns = self._looked_up(rng, language, length)
        return self._row(turns, (), False, None, length, document=True)

    def _repeated(self, rng: Random, language: Language, length: int) -> list[Turn]:
        room = (length - 20) // 2
        items: list[str] = []
        while room > 0:
            items.append(recall.draw_item(rng, language))
            room -= self.estimate(items[-1]) + 1
        text = recall.listed(rng, language, items)
        return [Turn("recall", recall.ask_again(rng, language, text), Output(text))]

    def _looked_up(self, rng: Random, language: Language, length: int) -> list[Turn]:
        form = recall.draw_form(rng, language)
        pairs, room = [], length * 2 // 5
        for pair in recall.draw_pairs(rng, language, form.keys):
            room -= self.estimate(form.statement(pair))
            if room < 0:
                break
            pairs.append(pair)
        turns, left = [], length
        text = recall.stated(language, form, pairs)
        while left > 0 and pairs:  # none twice: a second answer is a copy of the first
            pair = pairs.pop(rng.randrange(len(pairs)))
            question = form.question(pair)
            if not turns:
                question = f"{text}\n\n{question}"
            turns.append(Turn("recall", question, Output(form.answer(pair))))
            left -= self.estimate(question) + self.estimate(form.answer(pair)) + 4
        return turns

    def _chat_turn(self, rng: Random, language: Language, *, thinking: bool, kinds: str) -> Turn:
        kind = rng.choice(kinds)
        if kind == "a":
            task = arithmetic.draw_sum(rng, "train")
            question = arithmetic.question(rng, language, task)
            return Turn(
                "arithmetic", question, arithmetic_output(language, task, thinking=thinking)
            )
        if kind == "l":
            count = letters.draw_count(rng, "train")
            question = letters.question(rng, language, count)
            return Turn("letters", question, letters_output(language, count, thinking=thinking))
        draw = draw_talk if kind == "t" else draw_snippet
        question, answer = draw(rng, language)
        slice = "talk" if kind == "t" else "python"
        return Turn(slice, question, Output(answer, reasoning="" if thinking else None))

    def _row(
        self,
        turns: list[Turn],
        tools: tuple[Tool, ...],
        thinking: bool,
        effort: str | None,
        length: int,
        *,
        system: str = "",
        last_only: bool = False,
        document: bool = False,
    ) -> Row:
        """Encodes all but the last answer as the server encodes history, then that answer."""
        messages = [Message("system", system)] if system else []
        for turn in turns:
            if turn.question:
                messages.append(Message("user", turn.question))
            output = turn.output
            messages.append(Message("assistant", output.content, output.reasoning, output.calls))
            if turn.tool_result is not None:
                id = output.calls[0].id
                messages.append(Message("tool", turn.tool_result, tool_call_id=id))
        while messages[-1].role != "assistant":
            messages.pop()
        prompt = self.encoder.encode(
            Conversation(
                messages=tuple(messages[:-1]), tools=tools, thinking=thinking, effort=effort
            )
        ).ids
        ids = [*prompt, *self.encode_output(turns[-1].output, thinking)]
        tags = self._tags(ids, turns, len(prompt) if last_only else 0, document)
        return _cut(ids, tags, length, self.special.pad)

    def encode_output(self, output: Output, thinking: bool) -> list[int]:
        """What the model writes after the prompt, the end of the turn included."""
        segments: list[Segment] = []
        if thinking:
            segments += [output.reasoning or "", self.special.think_close]
        run = output.content
        calls = output.calls
        tags, dsml = self.encoder.tags, self.special.dsml
        for piece in render_calls(calls, tags, dsml) if calls else ():
            if isinstance(piece, str):
                run += piece
            else:
                segments += [run, piece]
                run = ""
        segments += [run, self.special.eos]
        return [id for part in self.tokenizer.encode_segments(segments) for id in part]

    def _tags(
        self, ids: list[int], turns: list[Turn], first: int, document: bool
    ) -> npt.NDArray[np.uint8]:
        """Answers are what stands between the header of an assistant turn (its marker and <think>
        or </think>) and its end."""
        array = np.array(ids)
        tags = np.full(len(ids), DOCUMENT if document else PROMPT, np.uint8)
        starts = np.flatnonzero(array == self.special.assistant) + 2
        ends = np.flatnonzero(array == self.special.eos) + 1
        for turn, start, end in zip(turns, starts, ends, strict=True):
            if start >= first:
                tags[start:end] = TAG[turn.slice]
        return tags


def _cut(ids: list[int], tags: npt.NDArray[np.uint8], length: int, pad: int) -> Row:
    """Exactly `length` + 1 ids; targets are shifted by one."""
    row = np.full(length + 1, pad, np.uint16)
    row_tags = np.full(length + 1, PAD, np.uint8)
    count = min(len(ids), length + 1)
    row[:count], row_tags[:count] = ids[:count], tags[:count]
    return Row(row, row_tags[1:])


def _language(rng: Random) -> Language:
    return rng.choice(LANGUAGES)
